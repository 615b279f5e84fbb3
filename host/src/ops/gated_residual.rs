//! `sum = x + gate * y`.
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::gated_residual::GatedResidualArg;
use kernels_gpu::ops::gated_residual::THREADS;
use kernels_gpu::ops::gated_residual::launch;

use crate::arguments::arguments;
use crate::library::LaunchSite;
use crate::operands::modulation::{GATE, Target};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::elementwise::Elementwise;
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "gated_residual";
/// A function that launches a kernel of this op.
type GatedResidualKernel = unsafe fn(LaunchSite, GatedResidualArg, Extent) -> Result<()>;
/// Two kernels: one for any layout, and one for rows that can be read in 16-byte vectors.
const KERNELS: [GatedResidualKernel; 2] = [launch::gated_residual_any, launch::gated_residual_block1];
/// The kernels for a gate with one column.
const PER_ROW: [GatedResidualKernel; 2] =
    [launch::gated_residual_per_row_any, launch::gated_residual_per_row_block1];

arguments! {
    /// The parameters of a gated residual.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GatedResidual {
        /// Whether to round `gate * y` to the dtype of `x` before the addition, as torch's separate operators
        /// do. This field has no effect, and only the sum is rounded, if the gate or its table is f32. The
        /// table is an additional vector that is added to the gate.
        pub exact: bool,
        /// Whether to clamp the sum to ±65504, the range of f16. diffusers clamps this sum in the models Flux
        /// and Qwen-Image if they run in f16.
        pub clip: bool,
    }
}

impl Default for GatedResidual {
    fn default() -> Self {
        Self { exact: true, clip: false }
    }
}

impl GatedResidual {
    /// Returns the argument of the kernel: the tensors and the flags. For a call without a gate, `gate` is
    /// marked as absent.
    pub(super) fn arg(
        self,
        [x, y, sum]: [cuda_std::row::Rows; 3],
        gate: kernels_gpu::norm::operand::Modulation,
    ) -> GatedResidualArg {
        let single = [gate.value.kind, gate.table.kind].contains(&OperandKind::F32);
        let round_each = u32::from(self.exact && !single);
        GatedResidualArg { x, y, gate, sum, round_each, clip: u32::from(self.clip) }
    }
}

/// Computes `sum = x + gate * y` in f32 and rounds the sum to the dtype of `x`.
///
/// `x`, `y` and `sum` have the same shape and dtype. The gate broadcasts to this shape, in this dtype or in
/// f32. The last dimension of the gate may have the size 1. The gate then has one number per row (`[B, S,
/// 1]`), one number per head (`[H, 1]`), or a single number (`[1]`). Such a gate must not have a table (an
/// additional vector that is added to the gate). After the broadcast, `x`, `y`, `sum` and the gate must be
/// viewable as `[n, m, columns]` without a copy, with the same `n` and `m`. If there are no rows, the call
/// does nothing.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `sum` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn gated_residual(
    device: &Device,
    x: View,
    y: View,
    gate: Modulation,
    sum: ViewMut,
    params: GatedResidual,
    stream: Stream,
) -> Result<()> {
    let (sum, target) = (sum.as_view(), Target { op: OP, device, x: &x });
    let (over_rows, per_row) = target.gate_over_rows(&gate)?;
    y.expect_dtype(OP, "y", x.dtype())?;
    sum.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("y", &y), ("out", sum), (GATE[0], &over_rows)];
    let mut layout = RowLayout::of_columns(OP, device, views, [true, true, true, !per_row])?;
    let [x_rows, y_rows, sum_rows, gate_rows] = layout.operands;
    let gate_arg = target.modulation(GATE, &gate, gate_rows, &mut layout.vec4s)?;
    layout.vector &= target.table_is_vector(&gate);
    expect_disjoint(OP, ("out", sum), &[Some(("x", &x)), Some(("y", &y))])?;
    expect_disjoint(OP, ("out", sum), &gate.named(GATE))?;
    let gated = params.arg([x_rows, y_rows, sum_rows], gate_arg);
    let launch = Elementwise::of_rows(OP, layout)?;
    launch.launch(device, if per_row { PER_ROW } else { KERNELS }, THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, extent) }
    })
}
