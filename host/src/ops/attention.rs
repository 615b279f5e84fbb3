//! `softmax(scale q kT + mask) v`.
use kernels_gpu::attention::{Mask, Params, UNLIMITED};
use kernels_gpu::ops::attention::KERNELS_BY_DIM;

use crate::attention::{Attention, AttentionInputs, AttentionLayout, MaskLayout};
use crate::launch::{Launch, args};
use crate::ops::attention_hopper::attention_hopper;
use crate::{Arch, Device, Dtype, Error, Result, Stream, ViewMut};

const OP: &str = "attention";

/// `out = softmax(scale q kT + mask) v`, and in `lse` the logarithm of each row's sum of exponentials: f32, `[B, H, Sq]`, or
/// `[H, Sq]` for packed sequences.
///
/// Products are of the element type with f32 sums; the scores, their softmax and the sums stay in f32, weights are rounded
/// to the element type for the second product, and the result is rounded once. A query that sees no key gets zeros, and
/// minus infinity in `lse`. A query's result depends neither on the other queries nor on the batch.
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
    let layout = AttentionLayout::of(OP, device, &inputs, &out, lse.as_ref(), &params)?;
    expect_tensor_cores(device)?;
    if attention_hopper(device, &layout, stream)? {
        return Ok(());
    }
    launch(device, &layout, stream)
}

/// Refuses GPUs whose tensor cores these kernels cannot use.
pub(crate) fn expect_tensor_cores(device: &Device) -> Result<()> {
    if device.arch() != Some(Arch::Sm75) {
        return Ok(());
    }
    Err(Error::Capability {
        device: device.name().into(),
        capability: Arch::Sm75.capability(),
        available: "attention from sm_80 on; torch's F.scaled_dot_product_attention runs here".into(),
    })
}

/// Launches the kernel of the head's size, a block for each tile of queries.
fn launch(device: &Device, a: &AttentionLayout, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let plain = a.mask.is_none() && a.softcap == 0.0 && a.vector && a.scale > 0.0;
    let (kernel, tiling) = (kernels.names[usize::from(!plain)], kernels.tilings[usize::from(!plain)]);
    let rows = tiling.rows();
    // Each packed sequence may end within a tile.
    let tiles = if a.cu_seqlens.is_some() { a.queries / rows + a.batches } else { a.queries.div_ceil(rows) };
    let heads = if a.cu_seqlens.is_some() { a.heads } else { a.batches * a.heads };
    let blocks = u64::from(tiles) * u64::from(heads);
    let Ok(blocks) = i32::try_from(blocks) else {
        let expected = "at most 2^31 - 1 tiles of queries";
        return Err(Error::Value { op: OP, arg: "q", got: blocks as f64, expected });
    };
    if blocks == 0 || a.queries == 0 {
        return Ok(());
    }
    let shape = Launch {
        grid: [blocks as u32, 1, 1],
        block: [kernels_gpu::attention::WARPS * 32, 1, 1],
        shared_bytes: tiling.shared_bytes(),
        carveout: None,
    };
    let p = a.params(tiles);
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { device.launch(kernel, a.dtype, shape, stream, args![p]) }
}

impl AttentionLayout {
    /// The mask as a kernel's argument.
    pub(crate) fn mask_arg(&self) -> Mask {
        self.mask.map_or(Mask::ABSENT, |mask| mask.arg())
    }

    /// The kernel's argument.
    fn params(&self, tiles: u32) -> Params {
        let limit =
            |side: usize| self.window[side].map_or(UNLIMITED, |keys| keys.min(UNLIMITED as u32) as i32);
        let [query_starts, key_starts] = self.cu_seqlens.unwrap_or([std::ptr::null(); 2]);
        Params {
            q: self.q,
            k: self.k,
            v: self.v,
            out: self.out,
            lse: self.lse,
            query_starts,
            key_starts,
            mask: self.mask_arg(),
            batches: self.batches,
            queries: self.queries,
            keys: self.keys,
            heads: self.heads,
            group: self.heads / self.kv_heads.max(1),
            dim: self.dim,
            tiles,
            vector: u32::from(self.vector),
            backwards: u32::from(self.causal),
            before: limit(0),
            after: if self.causal { 0 } else { limit(1) },
            scale: self.scale,
            softcap: self.softcap,
        }
    }
}

impl MaskLayout {
    fn arg(&self) -> Mask {
        let kind = match self.dtype {
            Dtype::Bool => Mask::BOOL,
            Dtype::F32 => Mask::F32,
            _ => Mask::SAME,
        };
        Mask { base: self.base.cast(), strides: self.strides, kind }
    }
}
