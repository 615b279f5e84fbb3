//! `attention` on Hopper: the calls that its own kernels take.
use std::num::NonZero;

use kernels_gpu::attention::hopper::params::{
    D64, D96, D128, D128_EVEN, D256, HopperParams, PART, Tiles, WARP_ROWS,
};
use kernels_gpu::layout::heads::Heads;

use crate::device::cuda::{Cuda, HeadsMap};
use crate::device::launch::{Launch, args};
use crate::operands::attention::MIN_SCALE;
use crate::operands::attention_layout::AttentionLayout;
use crate::{Device, Result, Stream};

/// The kernels of a size.
struct HopperKernels {
    tiles: Tiles,
    /// The time for a key of a tile, in thousandths of that in the other kernels of the size.
    key: u64,
    full: &'static str,
    causal: &'static str,
    /// With a mask of the keys; heads of 256 columns leave no registers for one.
    padded: Option<&'static str>,
}

/// By their most columns. With 128 keys a tile, calls of 128 columns and many keys are up to 4 % slower than with 144, and
/// calls of 512 and 1024 keys, which leave an eighth of tiles of 144 empty, 8 and 11 % faster (attention_hopper_variants.txt).
const KERNELS: [HopperKernels; 5] = [
    HopperKernels {
        tiles: D64,
        key: 1000,
        full: "attention_hopper_d64_smem",
        causal: "attention_hopper_d64_causal_smem",
        padded: Some("attention_hopper_d64_padded_smem"),
    },
    HopperKernels {
        tiles: D96,
        key: 1000,
        full: "attention_hopper_d96_smem",
        causal: "attention_hopper_d96_causal_smem",
        padded: Some("attention_hopper_d96_padded_smem"),
    },
    HopperKernels {
        tiles: D128,
        key: 1000,
        full: "attention_hopper_d128_smem",
        causal: "attention_hopper_d128_causal_smem",
        padded: Some("attention_hopper_d128_padded_smem"),
    },
    HopperKernels {
        tiles: D128_EVEN,
        key: 1030,
        full: "attention_hopper_d128_even_smem",
        causal: "attention_hopper_d128_even_causal_smem",
        padded: Some("attention_hopper_d128_even_padded_smem"),
    },
    HopperKernels {
        tiles: D256,
        key: 1000,
        full: "attention_hopper_d256_smem",
        causal: "attention_hopper_d256_causal_smem",
        padded: None,
    },
];

impl HopperKernels {
    /// The kernel for the call, and its sizes.
    fn of(a: &AttentionLayout) -> Option<(&'static str, Tiles)> {
        let dim = KERNELS.iter().map(|kernels| kernels.tiles.dim).find(|&dim| a.dim <= dim)?;
        let time =
            |kernels: &&HopperKernels| u64::from(a.keys.next_multiple_of(kernels.tiles.keys)) * kernels.key;
        let kernels = KERNELS.iter().filter(|kernels| kernels.tiles.dim == dim).min_by_key(time)?;
        let name = match (&a.mask, a.causal) {
            (None, false) => kernels.full,
            (None, true) => kernels.causal,
            // A mask of the keys alone, as padding has it, is read once for a tile of queries.
            (Some(mask), false) if mask.strides[2] == 0 => kernels.padded?,
            _ => return None,
        };
        Some((name, kernels.tiles))
    }
}

/// Fewer queries leave most rows of a tile empty.
const MIN_QUERIES: u32 = 64;

/// Keys and values of this many bytes stay in L2, of 60 MB, while others come. One head at a time, whatever its size, leaves
/// fewer tiles to share out: 11 % slower with 256 columns.
const SECTION_BYTES: u64 = 24 << 20;

/// Launches the call on the Hopper kernels and returns `true`. Returns `false` without a launch if these
/// kernels do not support the call or if `skip` is not 0. In the second case, `skip` decreases by 1.
///
/// The kernels support full attention, with or without a mask of the keys, and causal attention without a
/// mask. They support no window, softcap or packed sequences. All strides must be multiples of 16 bytes.
pub(crate) fn attention_hopper(
    device: &Device,
    a: &AttentionLayout,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    let Some(cuda) = device.as_cuda().filter(|cuda| cuda.native.is_some() && is_plain(a)) else {
        return Ok(false);
    };
    let Some((kernel, tiles)) = HopperKernels::of(a) else { return Ok(false) };
    let Some(p) = params(a, &tiles) else { return Ok(false) };
    if let Some(fewer) = skip.checked_sub(1) {
        *skip = fewer;
        return Ok(false);
    }
    let map = |heads, rows, tokens, count| cuda.tensor_map(&map(a, heads, [tokens, count], rows));
    let q = map(&a.q, tiles.rows(), a.queries, a.heads)?;
    let (k, v) = (map(&a.k, tiles.keys, a.keys, a.kv_heads)?, map(&a.v, tiles.keys, a.keys, a.kv_heads)?);
    let shape = Launch {
        grid: [blocks(cuda, a, &p), 1, 1],
        block: [tiles.threads(), 1, 1],
        shared_bytes: tiles.shared_bytes(),
        carveout: None,
    };
    // A kernel whose threads store the result asks for no map of it: any will do.
    let out = if tiles.staged { map(&a.out, WARP_ROWS, a.queries, a.heads)? } else { q };
    // SAFETY: the layout was checked; the maps and `p` say the same of it.
    unsafe { device.launch(kernel, a.dtype, shape, stream, args![q, k, v, out, p]) }?;
    Ok(true)
}

fn is_plain(a: &AttentionLayout) -> bool {
    // A map's strides are multiples of 16 bytes and not 0, but of a dimension of size 1 whatever is convenient.
    let walkable = |heads: &Heads, sizes: [u32; 3]| {
        let strides = [heads.batch_stride, heads.token_stride, heads.head_stride];
        strides.iter().zip(sizes).all(|(&stride, size)| size == 1 || stride > 0 && stride < 1 << 38)
    };
    let (q, k) = ([a.batches, a.queries, a.heads], [a.batches, a.keys, a.kv_heads]);
    a.cu_seqlens.is_none()
        && a.window == [None; 2]
        && a.softcap == 0.0
        && a.scale >= MIN_SCALE
        && a.vector
        && a.queries >= MIN_QUERIES
        && [a.batches, a.heads, a.keys].iter().all(|size| *size > 0)
        && walkable(&a.q, q)
        && walkable(&a.k, k)
        && walkable(&a.v, k)
        && walkable(&a.out, q)
}

/// The kernel's argument; `None` where there are more tiles than it counts.
fn params(a: &AttentionLayout, tiles: &Tiles) -> Option<HopperParams> {
    let query_tiles = a.queries.div_ceil(tiles.rows());
    let heads = a.batches.checked_mul(a.heads)?;
    let all = query_tiles.checked_mul(heads).filter(|&all| all <= i32::MAX as u32)?;
    let section = section(a, heads);
    let bytes = |stride: i64| 2 * stride;
    Some(HopperParams {
        out: a.out.base,
        lse: a.lse,
        out_strides: [bytes(a.out.batch_stride), bytes(a.out.token_stride), bytes(a.out.head_stride)],
        queries: a.queries,
        keys: a.keys,
        heads: NonZero::new(a.heads)?,
        shared_by: NonZero::new(a.heads / a.kv_heads)?,
        query_tiles: NonZero::new(query_tiles)?,
        tiles: all,
        section: NonZero::new(section)?,
        section_tiles: NonZero::new(section * query_tiles)?,
        dim: a.dim,
        diagonal: a.keys as i32 - a.queries as i32,
        scale: a.scale * std::f32::consts::LOG2_E,
        unscale: 1.0 / a.scale,
        mask: a.mask_arg(),
    })
}

/// The heads whose tiles are worked on together: their keys and values fit into L2.
fn section(a: &AttentionLayout, heads: u32) -> u32 {
    let bytes = 4 * u64::from(a.keys) * u64::from(a.dim);
    let max = (SECTION_BYTES / bytes).max(1) * u64::from(a.heads / a.kv_heads);
    let max = max.min(u64::from(heads)) as u32;
    (1..=max).rev().find(|&section| heads.is_multiple_of(section)).unwrap_or(1)
}

/// Full: a block stays on its multiprocessor, and what it loads for the next tile comes while it ends one. Causal: tiles are
/// of all lengths, and a block for each, longest first, shares them out better than a fixed turn (623 against 492 TFLOP/s at
/// 16384 keys).
fn blocks(cuda: &Cuda, a: &AttentionLayout, p: &HopperParams) -> u32 {
    if a.causal { p.tiles } else { p.tiles.min(cuda.multiprocessors) }
}

/// The map of a tensor of heads that comes `rows` tokens at a time.
fn map(a: &AttentionLayout, heads: &Heads, [tokens, count]: [u32; 2], rows: u32) -> HeadsMap {
    // 0 where there is one only: any stride will do, and the driver takes none of 0.
    let stride = |stride: i64| if stride == 0 { 16 } else { 2 * stride.unsigned_abs() };
    HeadsMap {
        base: heads.base.cast_const().cast(),
        dtype: a.dtype,
        sizes: [a.dim, tokens, count, a.batches].map(u64::from),
        strides: [heads.token_stride, heads.head_stride, heads.batch_stride].map(stride),
        part: [PART, rows],
    }
}
