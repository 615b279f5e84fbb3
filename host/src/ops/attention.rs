//! `softmax(scale q kT + mask) v`.
use kernels_gpu::ops::attention::{KERNELS_BY_DIM, Kernel};

use super::attention_hopper::attention_hopper;
use crate::device::launch::args;
use crate::operands::attention::{Attention, AttentionInputs};
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::rows::expect_disjoint;
use crate::plan::attention::{TiledRows, block_shape};
use crate::{Arch, Device, Error, Result, Stream, ViewMut};

const OP: &str = "attention";

/// `out = softmax(scale q kT + mask) v`, and in `lse` the logarithm of each row's sum of exponentials: f32, `[B, H, Sq]`, or
/// `[H, Sq]` for packed sequences.
///
/// Products are of the element type with f32 sums; the scores, their softmax and the sums stay in f32, weights are rounded
/// to the element type for the second product, and the result is rounded once. A query that sees no key gets zeros, and
/// minus infinity in `lse`. A query's result depends neither on the other queries' values nor on the batch;
/// calls of 64 queries or more have kernels of their own on Hopper, with other last bits.
///
/// # Errors
/// An argument of another shape, dtype or device than [`AttentionInputs`] says; heads of more than 256 columns; a last
/// dimension that is not contiguous; an output that overlaps anything; a GPU older than sm_80.
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

/// Refuses GPUs whose tensor cores these kernels cannot use.
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

/// Launches the first kernel of the head's size that takes the call, but for so many that are passed over; a block for each
/// tile of queries.
pub(crate) fn launch(device: &Device, a: &AttentionLayout, skip: usize, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let fits = |kernel: &&Kernel| a.is_plain() && kernel.tiling.shared_bytes() <= device.max_shared_bytes();
    // The general kernel's tiles are smaller: it is also for GPUs that have not enough shared memory.
    let mut able = kernels.plain.iter().filter(fits);
    let Kernel { name, tiling } = able.nth(skip).unwrap_or(&kernels.general);
    let Some((tiles, blocks)) = a.blocks(OP, tiling.rows(), TiledRows::Queries)? else { return Ok(()) };
    let p = a.params(tiles);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
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
