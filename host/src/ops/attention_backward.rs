//! Gradients of attention with respect to `q`, `k` and `v`. The kernels recompute the attention probabilities
//! from `lse`, the log-sum-exp of the scores in the forward pass.
use kernels_gpu::attention::backward::params::{BackwardParams, DELTA_ROWS, DELTA_THREADS, shared_bytes};
use kernels_gpu::attention::mma::tiling::Tiling;
use kernels_gpu::ops::attention_backward::{launch, tiles};

use super::attention::expect_tensor_cores;
use crate::arguments::arguments;
use crate::library::LaunchSite;
use crate::operands::attention::{Attention, AttentionInputs};
use crate::operands::attention_checks;
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::overlap::expect_disjoint;
use crate::plan::attention::{TiledRows, block_shape};
use crate::{Device, Dtype, Result, Stream, View, ViewMut};

const OP: &str = "attention_backward";

/// A function that launches a kernel.
type BackwardLaunch = unsafe fn(LaunchSite, BackwardParams) -> Result<()>;
/// A kernel and its tile sizes.
type BackwardKernel = (BackwardLaunch, Tiling);

/// The kernels for head dimensions (columns per head) up to `dim`. In each array, the first entry is for
/// calls without a mask and a softcap. The second entry also supports these two.
struct BackwardKernels {
    /// Largest head dimension.
    dim: u32,
    /// Kernels for `dq`.
    query: [BackwardKernel; 2],
    /// The kernels for `dk` and `dv`. Each entry is a list: either one kernel that computes both gradients,
    /// or two kernels, one per gradient.
    key: [&'static [BackwardKernel]; 2],
}

/// All kernels, in ascending order of the head dimension.
const KERNELS_BY_DIM: [BackwardKernels; 3] = [
    BackwardKernels {
        dim: 64,
        query: [
            (launch::attention_backward_query_d64_smem, tiles::Q64),
            (launch::attention_backward_query_d64_general_smem, tiles::G64),
        ],
        key: [
            &[(launch::attention_backward_key_d64_smem, tiles::K64)],
            &[(launch::attention_backward_key_d64_general_smem, tiles::G64)],
        ],
    },
    BackwardKernels {
        dim: 128,
        query: [
            (launch::attention_backward_query_d128_smem, tiles::Q128),
            (launch::attention_backward_query_d128_general_smem, tiles::G128),
        ],
        key: [
            &[(launch::attention_backward_key_d128_smem, tiles::K128)],
            &[(launch::attention_backward_key_d128_general_smem, tiles::G128)],
        ],
    },
    BackwardKernels {
        dim: 256,
        query: [
            (launch::attention_backward_query_d256_smem, tiles::D256),
            (launch::attention_backward_query_d256_general_smem, tiles::G256),
        ],
        key: [
            &[
                (launch::attention_backward_key_d256_smem, tiles::D256),
                (launch::attention_backward_value_d256_smem, tiles::D256),
            ],
            &[
                (launch::attention_backward_key_d256_general_smem, tiles::G256),
                (launch::attention_backward_value_d256_general_smem, tiles::G256),
            ],
        ],
    },
];

arguments! {
    /// The results of the attention forward pass, and the incoming gradient.
    #[derive(Clone, Copy, Debug)]
    pub struct AttentionResult<'a> {
        /// Output of the forward pass, with the shape and dtype of `q`.
        pub out: View<'a>,
        /// Log-sum-exp of the forward pass, in f32. The shape is `[B, H, Sq]`, or `[H, Sq]` for packed
        /// sequences (several sequences in one tensor).
        pub lse: View<'a>,
        /// Incoming gradient of the output, with the shape and dtype of `q`.
        pub dout: View<'a>,
    }
}

arguments! {
    /// Outputs and scratch memory of [`attention_backward`].
    #[derive(Debug)]
    pub struct AttentionGradients<'a> {
        /// Gradient of `q`, with the shape and dtype of `q`.
        pub dq: ViewMut<'a>,
        /// Gradient of `k`, with the shape and dtype of `k`.
        pub dk: ViewMut<'a>,
        /// Gradient of `v`, with the shape and dtype of `v`.
        pub dv: ViewMut<'a>,
        /// Scratch memory for the kernels, contiguous in f32, with the shape of `lse`.
        pub workspace: ViewMut<'a>,
    }
}

/// Computes the gradients of [`attention`](super::attention::attention) with respect to `q`, `k` and `v`.
/// `inputs` and `params` are the arguments of the forward pass.
///
/// The tensor cores multiply f16 or bf16 and accumulate in f32. Attention probabilities and their gradients
/// are computed in f32. They are rounded to the dtype of `q` before a matrix multiplication. The results
/// `dq`, `dk` and `dv` are rounded once. A repeated call gives the same bits.
///
/// # Errors
/// Returns the errors of [`attention`](super::attention::attention).
pub fn attention_backward(
    device: &Device,
    inputs: AttentionInputs,
    result: AttentionResult,
    gradients: AttentionGradients,
    params: Attention,
    stream: Stream,
) -> Result<()> {
    let AttentionResult { out, lse, dout } = &result;
    let layout = AttentionLayout::of(OP, device, &inputs, (out, Some(lse)), &params)?;
    let AttentionGradients { dq, dk, dv, workspace } = &gradients;
    let (packed, q) = (inputs.cu_seqlens.is_some(), &inputs.q);
    let workspace = workspace.as_view();
    attention_checks::contiguous(OP, device, ("workspace", workspace), Dtype::F32, lse.shape())?;
    let heads = |arg, view: &View, like: &View| {
        view.expect_shape(OP, arg, like.shape())?;
        attention_checks::heads(OP, device, (arg, view), q.dtype(), params.order, packed)
            .map(|(_, heads)| heads)
    };
    let dout_heads = heads("dout", dout, q)?;
    let outputs = [("dq", dq.as_view(), q), ("dk", dk.as_view(), &inputs.k), ("dv", dv.as_view(), &inputs.v)];
    let mut places = [dout_heads; 3];
    let others =
        [Some(("out", out)), Some(("lse", lse)), Some(("dout", dout)), Some(("workspace", workspace))];
    expect_disjoint(OP, ("workspace", workspace), &inputs.operands())?;
    expect_disjoint(OP, ("workspace", workspace), &others[..3])?;
    for (at, (arg, view, like)) in outputs.into_iter().enumerate() {
        places[at] = heads(arg, view, like)?;
        expect_disjoint(OP, (arg, view), &inputs.operands())?;
        expect_disjoint(OP, (arg, view), &others)?;
        for (other, view_of_other, _) in &outputs[..at] {
            expect_disjoint(OP, (arg, view), &[Some((other, view_of_other))])?;
        }
    }
    expect_tensor_cores(OP, device)?;
    let [dq, dk, dv] = places;
    let aligned = [dout_heads, dq, dk, dv].iter().all(|heads| heads.is_vec8s(2));
    let p = BackwardParams {
        forward: layout.params(0),
        dout: dout_heads,
        dq,
        dk,
        dv,
        delta: workspace.ptr().cast_mut().cast(),
        vector: u32::from(layout.vector && aligned),
    };
    run(device, &layout, p, stream)
}

/// Launches three or four kernels. The first kernel computes `delta = sum(dout * out)` for each query. The
/// second kernel computes `dq`. The one or two last kernels compute `dk` and `dv`.
fn run(device: &Device, a: &AttentionLayout, mut p: BackwardParams, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let plain = a.is_plain() && p.vector != 0;
    // The general kernels have smaller tiles than the specialized kernels. The general kernels therefore also
    // run on GPUs whose shared memory is too small for the specialized kernels.
    let fits = |(_, tiling): &BackwardKernel| shared_bytes(tiling) <= device.max_shared_bytes();
    let general = usize::from(!plain || !fits(&kernels.query[0]) || !kernels.key[0].iter().all(fits));
    let mut launch = |kernel: BackwardLaunch, side, rows, threads| {
        let Some((tiles, blocks)) = a.blocks(OP, rows, side)? else { return Ok(()) };
        p.forward.tiles = tiles;
        let site = LaunchSite::new(device, a.dtype, block_shape(blocks, threads), stream)?;
        // SAFETY: the kernel accesses only the tensors that `p` points to. The caller has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, p) }
    };
    launch(launch::attention_backward_delta_warp, TiledRows::Queries, DELTA_ROWS, DELTA_THREADS)?;
    let mut gradients =
        |(kernel, tiling): &BackwardKernel, side| launch(*kernel, side, tiling.rows(), tiling.threads());
    gradients(&kernels.query[general], TiledRows::Queries)?;
    kernels.key[general].iter().try_for_each(|kernel| gradients(kernel, TiledRows::Keys))
}
