//! `softmax(scale q kT + mask) v`.
use kernels_gpu::attention::mma::{Mask, Params, UNLIMITED};
use kernels_gpu::ops::attention::{KERNELS_BY_DIM, Kernel};

use crate::device::launch::{Launch, args};
use crate::operands::attention::{Attention, AttentionInputs, AttentionLayout, LEAST_SCALE, MaskLayout};
use crate::operands::rows::expect_disjoint;
use crate::ops::attention_hopper::attention_hopper;
use crate::{Arch, Device, Dtype, Error, Result, Stream, ViewMut};

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
    let mut passed_over = device.choice().passed_over;
    if attention_hopper(device, &layout, &mut passed_over, stream)? {
        return Ok(());
    }
    launch(device, &layout, passed_over, stream)
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
pub(crate) fn launch(device: &Device, a: &AttentionLayout, passed_over: usize, stream: Stream) -> Result<()> {
    let kernels = KERNELS_BY_DIM.iter().find(|kernels| a.dim <= kernels.dim);
    let kernels = kernels.expect("heads were checked to have at most 256 columns");
    let fits = |kernel: &&Kernel| a.is_plain() && kernel.tiling.shared_bytes() <= device.max_shared_bytes();
    // The general kernel's tiles are smaller: it is also for GPUs that have not enough shared memory.
    let mut able = kernels.plain.iter().filter(fits);
    let Kernel { name, tiling } = able.nth(passed_over).unwrap_or(&kernels.general);
    let Some((tiles, blocks)) = a.blocks(OP, tiling.rows(), Side::Queries)? else { return Ok(()) };
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

/// So many blocks of so many threads.
pub(crate) fn block_shape(blocks: u32, threads: u32, shared_bytes: u32) -> Launch {
    Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes, carveout: None }
}

/// The side of which a block has a tile.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    Queries,
    Keys,
}

impl AttentionLayout {
    /// Has it nothing that only the general kernels have?
    pub(crate) fn is_plain(&self) -> bool {
        self.mask.is_none() && self.softcap == 0.0 && self.vector && self.scale >= LEAST_SCALE
    }

    /// Tiles of `rows` rows that a head has, and blocks of all heads; `None`: there is no row.
    pub(crate) fn blocks(&self, op: &'static str, rows: u32, side: Side) -> Result<Option<(u32, u32)>> {
        let (there, heads) = match side {
            Side::Queries => (self.queries, self.heads),
            Side::Keys => (self.keys, self.kv_heads),
        };
        // Each packed sequence may end within a tile, and so may what is behind the last.
        let (tiles, batches) = match self.cu_seqlens {
            Some(_) => (there / rows + self.batches + 1, 1),
            None => (there.div_ceil(rows), self.batches),
        };
        let blocks = u64::from(tiles) * u64::from(heads) * u64::from(batches);
        match i32::try_from(blocks) {
            _ if there == 0 || blocks == 0 => Ok(None),
            Ok(blocks) => Ok(Some((tiles, blocks as u32))),
            Err(_) => {
                let expected = "at most 2^31 - 1 tiles of rows";
                Err(Error::Value { op, arg: "q", got: blocks as f64, expected })
            }
        }
    }

    /// The mask as a kernel's argument.
    pub(crate) fn mask_arg(&self) -> Mask {
        self.mask.map_or(Mask::ABSENT, |mask| mask.arg())
    }

    /// The kernel's argument.
    pub(crate) fn params(&self, tiles: u32) -> Params {
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
