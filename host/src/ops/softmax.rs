//! Softmax `y = exp(x - max) / sum(exp(x - max))` over the last dimension, or the logarithm of softmax.
use cuda_std::row::Rows;
use kernels_gpu::softmax::online::SoftmaxParams;

use crate::launch::{RowKernels, Rung, cluster_block, cluster_of, in_registers, rung};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::ladder::{Ladder, ONE_OPERAND, RegisterRungs};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};
use kernels_gpu::ops::softmax::launch;

const OP: &str = "softmax";

/// Launch configurations for rows of 129 to 2048 packs (16-byte vectors). Softmax needs many instructions per
/// element, so idle threads would waste time. A row therefore gets the smallest number of whole warps whose
/// registers can store it.
const SHORT: &[Rung] = &[
    rung(192, 8, 32, 64),
    rung(256, 4, 64, 64),
    rung(384, 4, 96, 96),
    rung(512, 4, 128, 128),
    rung(640, 4, 160, 160),
    rung(768, 8, 96, 96),
    rung(1_024, 8, 128, 128),
    rung(1_280, 8, 160, 160),
    rung(1_536, 8, 192, 192),
    rung(2_048, 8, 256, 256),
];

/// Launch configurations for rows of more than 2048 packs (16-byte vectors). Most configurations with a
/// thread block cluster keep 7 packs per thread in registers instead of 8. A thread then uses 56 registers
/// instead of 64, and each SM runs one more block.
///
/// Bandwidth on an H200, relative to a copy kernel (benches/results/decisions/softmax.txt):
///
/// - 151,936 columns: 94 % with 7 packs per thread, and 82 % with 8 packs per thread.
/// - 65,536 columns: 97 % with a cluster, and 78 % with a single block of 1024 threads.
///
/// The single block is slower because it loads nothing during its reduction.
const IN_REGISTERS: RegisterRungs = RegisterRungs {
    sm90: &[
        cluster_of(5_376, 7, 96),
        cluster_of(7_168, 7, 128),
        cluster_of(8_960, 7, 160),
        cluster_of(10_752, 7, 192),
        cluster_of(12_544, 7, 224),
        cluster_of(14_336, 7, 256),
        cluster_of(16_128, 7, 288),
        cluster_of(16_384, 8, 256),
        cluster_of(19_712, 7, 352),
        cluster_of(21_504, 7, 384),
        cluster_of(26_624, 8, 416),
        cluster_of(32_768, 8, 512),
        cluster_of(49_152, 8, 768),
        cluster_of(65_536, 8, 1_024),
    ],
    ..ONE_OPERAND
};

/// Rows that do not fit in registers are read twice, by blocks of 1024 threads, one row per block. Only one
/// such block fits on an SM, so the GPU reads few rows at a time. Most of a row is therefore still in L2 when
/// the block reads it again.
const LADDER: Ladder =
    Ladder { short: SHORT, in_registers: IN_REGISTERS, blocks_up_to: 4_096, reread: 1_024 };
/// A function that launches a kernel of this op.
type SoftmaxKernel = unsafe fn(LaunchSite, Rows, Rows, SoftmaxParams) -> Result<()>;
const KERNELS: RowKernels<SoftmaxKernel> = RowKernels {
    any: launch::softmax_any,
    in_registers: &[
        in_registers(2, launch::softmax_block2),
        in_registers(4, launch::softmax_block4),
        in_registers(8, launch::softmax_block8),
        cluster_block(8, launch::softmax_cluster8),
        cluster_block(7, launch::softmax_cluster7),
    ],
};

/// Computes `y = exp(x - max(x)) / sum(exp(x - max(x)))` over the last dimension, the formula of
/// `torch.softmax`.
///
/// If `log` is true, computes `y = x - max(x) - ln(sum(exp(x - max(x))))`, the formula of
/// `torch.log_softmax`. In both cases, `y` is computed in f32 and rounded once.
///
/// `x` and `y` are f32, f16 or bf16 and have the same shape and dtype. `x` and `y` must be viewable as `[n,
/// m, columns]` without a copy, with the same `n` and `m`. If there are no rows, the call does nothing.
///
/// A row that contains NaN or +inf, or only -inf, gives NaN. Results below 2^-126 become 0. The bits of a
/// result row depend on the row length, and on whether both operands and their strides are aligned to 16
/// bytes. The bits of a result row do not depend on the other rows.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps `x`.
/// [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn softmax(device: &Device, x: View, y: ViewMut, log: bool, stream: Stream) -> Result<()> {
    let y = y.as_view();
    let layout = RowLayout::of(OP, device, [("x", &x), ("out", y)])?;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x))])?;
    let rung = LADDER.pick(OP, device, &KERNELS, &layout)?;
    let (p, [x, y]) = (kernel_params(&layout, log), layout.operands);
    let kernel = rung.kernel(&KERNELS);
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, y, p) }
    })
}

pub(super) fn kernel_params<const N: usize>(layout: &RowLayout<N>, log: bool) -> SoftmaxParams {
    SoftmaxParams {
        rows: layout.rows,
        inner: layout.inner,
        cols: layout.cols,
        vector: u32::from(layout.vector),
        log: u32::from(log),
    }
}
