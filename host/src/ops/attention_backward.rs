//! The gradients of attention.
use kernels_gpu::attention::backward::params::{BackwardParams, DELTA_ROWS, DELTA_THREADS, shared_bytes};
use kernels_gpu::ops::attention_backward::{BackwardKernel, KERNELS_BY_DIM};

use super::attention::expect_tensor_cores;
use crate::arguments::arguments;
use crate::device::launch::args;
use crate::operands::attention::{Attention, AttentionInputs};
use crate::operands::attention_checks;
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::rows::expect_disjoint;
use crate::plan::attention::{TiledRows, block_shape};
use crate::{Device, Dtype, Result, Stream, View, ViewMut};

const OP: &str = "attention_backward";

arguments! {
    /// What attention gave, and the gradient of it.
    #[derive(Clone, Copy, Debug)]
    pub struct AttentionResult<'a> {
        /// As `q`.
        pub out: View<'a>,
        /// f32, `[B, H, Sq]`, or `[H, Sq]` for packed sequences.
        pub lse: View<'a>,
        /// As `q`.
        pub dout: View<'a>,
    }
}

arguments! {
    /// Where the gradients go.
    #[derive(Debug)]
    pub struct AttentionGradients<'a> {
        /// As `q`.
        pub dq: ViewMut<'a>,
        /// As `k`.
        pub dk: ViewMut<'a>,
        /// As `v`.
        pub dv: ViewMut<'a>,
        /// Memory that the kernels use in between, as `lse`.
        pub workspace: ViewMut<'a>,
    }
}

/// The gradients of [`attention`](super::attention::attention) for queries, keys and values, with its inputs and parameters.
///
/// Products are of the element type with f32 sums; weights and their gradients are f32 and rounded for the next product; each
/// gradient is rounded once. The same bits every time.
///
/// # Errors
/// As for `attention`.
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
    launch(device, &layout, p, stream)
}

/// Launches the kernel of the sums that both sides need, then one for queries, and one or two for keys and values.
fn launch(device: &Device, a: &AttentionLayout, mut p: BackwardParams, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let plain = a.is_plain() && p.vector != 0;
    // The general kernels' tiles are smaller: they are also for GPUs that have not enough shared memory.
    let fits = |kernel: &BackwardKernel| shared_bytes(&kernel.tiling) <= device.max_shared_bytes();
    let general = usize::from(!plain || !fits(&kernels.query[0]) || !kernels.key[0].iter().all(fits));
    let mut run = |name, side, rows, threads, shared_bytes| {
        let Some((tiles, blocks)) = a.blocks(OP, rows, side)? else { return Ok(()) };
        p.forward.tiles = tiles;
        // SAFETY: the views were checked to be what the kernel's arguments mean.
        unsafe { device.launch(name, a.dtype, block_shape(blocks, threads, shared_bytes), stream, args![p]) }
    };
    run("attention_backward_delta_warp", TiledRows::Queries, DELTA_ROWS, DELTA_THREADS, 0)?;
    let mut gradients = |BackwardKernel { name, tiling }: &BackwardKernel, side| {
        run(name, side, tiling.rows(), tiling.threads(), shared_bytes(tiling))
    };
    gradients(&kernels.query[general], TiledRows::Queries)?;
    kernels.key[general].iter().try_for_each(|kernel| gradients(kernel, TiledRows::Keys))
}
