//! `softmax(scale q kT + mask) v`, the general attention op.
use kernels_gpu::ops::attention::{KERNELS_BY_DIM, Kernel};

use super::attention_hopper::attention_hopper;
use crate::device::launch::args;
use crate::operands::attention::{Attention, AttentionInputs};
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::rows::expect_disjoint;
use crate::plan::attention::{TiledRows, block_shape};
use crate::{Arch, Device, Error, Result, Stream, ViewMut};

const OP: &str = "attention";

/// Computes `out = softmax(scale * q kᵀ + mask) v`, as `torch.nn.functional.scaled_dot_product_attention`
/// does.
///
/// Writes `ln(sum(exp(scores)))` of each query to `lse`: f32, `[B, H, Sq]`, or `[H, Sq]` for packed
/// sequences.
///
/// The tensor cores multiply f16 or bf16 and accumulate in f32. Scores and softmax stay in f32. The attention
/// probabilities are rounded to the element type for the second product, and the result is rounded once.
///
/// A query that sees no key gets zeros in `out` and minus infinity in `lse`. The result of a query does not
/// depend on the other queries' values or on the batch. On Hopper, calls with 64 or more queries may use
/// other kernels, whose last bits differ.
///
/// # Errors
/// Returns an error in these cases: an argument does not have the shape, dtype or device that
/// [`AttentionInputs`] specifies; a head has more than 256 columns; a last dimension is not contiguous; an
/// output overlaps another argument; the GPU is older than sm_80.
pub fn attention(
    device: &Device,
    inputs: AttentionInputs,
    out: ViewMut,
    lse: Option<ViewMut>,
    params: Attention,
    stream: Stream,
) -> Result<()> {
    let (out, lse) = (out.as_view(), lse.as_ref().map(ViewMut::as_view));
    let layout = AttentionLayout::of(OP, device, &inputs, (out, lse), &params)?;
    expect_disjoint(OP, ("out", out), &inputs.operands())?;
    if let Some(lse) = lse {
        expect_disjoint(OP, ("lse", lse), &inputs.operands())?;
        expect_disjoint(OP, ("lse", lse), &[Some(("out", out))])?;
    }
    expect_tensor_cores(OP, device)?;
    let mut skip = device.launch_override().skip;
    if attention_hopper(device, &layout, &mut skip, stream)? {
        return Ok(());
    }
    launch(device, &layout, skip, stream)
}

/// Returns an error for GPUs older than sm_80, whose tensor cores these kernels cannot use.
pub(crate) fn expect_tensor_cores(op: &'static str, device: &Device) -> Result<()> {
    if device.arch() != Some(Arch::Sm75) {
        return Ok(());
    }
    let why = format!(
        "{} runs the PTX for sm_75, and there is some from sm_80 on; torch's F.scaled_dot_product_attention runs here",
        device.name()
    );
    Err(Error::Unsupported { op, why })
}

/// Skips `skip` kernels for this head dimension that support the call, and launches the next one. If none is
/// left, launches the general kernel. Each tile of queries gets one block.
pub(crate) fn launch(device: &Device, a: &AttentionLayout, skip: usize, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let fits = |kernel: &&Kernel| a.is_plain() && kernel.tiling.shared_bytes() <= device.max_shared_bytes();
    // The general kernel has smaller tiles, so it also serves GPUs with too little shared memory for the
    // others.
    let mut able = kernels.plain.iter().filter(fits);
    let Kernel { name, tiling } = able.nth(skip).unwrap_or(&kernels.general);
    let Some((tiles, blocks)) = a.blocks(OP, tiling.rows(), TiledRows::Queries)? else { return Ok(()) };
    let p = a.params(tiles);
    // SAFETY: the caller checked shape, dtype, strides and device of every tensor that `p` points to.
    unsafe {
        device.launch(
            name,
            a.dtype,
            block_shape(blocks, tiling.threads(), tiling.shared_bytes()),
            stream,
            args![p],
        )
    }
}
