//! Attention kernels for Hopper, with the formula `softmax(scale q kT + mask) v`. These kernels support only
//! some calls of the op `attention`. For example, no Hopper kernel supports a sliding window.
use std::num::NonZero;

use cuda_std::tensor_map::TensorMap;
use kernels_gpu::attention::hopper::params::{
    D64, D96, D128, D128_EVEN, D256, HopperParams, PART, Tiles, WARP_ROWS,
};
use kernels_gpu::layout::heads::Heads;
use kernels_gpu::ops::attention_hopper::launch;

use crate::library::{LaunchSite, library};
use crate::operands::attention::MIN_SCALE;
use crate::operands::attention_layout::AttentionLayout;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, HeadsMap, Result, Stream};

/// A function that launches a kernel.
type HopperKernel =
    unsafe fn(LaunchSite, TensorMap, TensorMap, TensorMap, TensorMap, HopperParams) -> Result<()>;

/// The Hopper attention kernels with the same tile sizes.
struct HopperKernels {
    tiles: Tiles,
    /// Time per key, relative to the fastest Hopper kernel for the same head dimension, which has the value
    /// 1000. For example, a kernel with the value 1030 takes 3 % more time per key.
    key: u64,
    full: HopperKernel,
    causal: HopperKernel,
    /// The kernel with a mask over keys. It is `None` for head dimension 256, because a kernel for this
    /// dimension has no registers left for the mask.
    padded: Option<HopperKernel>,
}

/// The Hopper kernels, in the order of their maximum head dimension.
///
/// For head dimension 128, there are two kernels, with tiles of 144 keys and of 128 keys. The kernel with
/// tiles of 144 keys takes less time per key. However, both kernels also spend time on the empty rows of the
/// last tile, if it is only partly filled. With 512 or 1024 keys, all tiles of 128 keys are full, so the
/// kernel with these tiles is faster (benches/results/decisions/attention_hopper.txt).
const KERNELS: [HopperKernels; 5] = [
    HopperKernels {
        tiles: D64,
        key: 1000,
        full: launch::attention_hopper_d64_smem,
        causal: launch::attention_hopper_d64_causal_smem,
        padded: Some(launch::attention_hopper_d64_padded_smem),
    },
    HopperKernels {
        tiles: D96,
        key: 1000,
        full: launch::attention_hopper_d96_smem,
        causal: launch::attention_hopper_d96_causal_smem,
        padded: Some(launch::attention_hopper_d96_padded_smem),
    },
    HopperKernels {
        tiles: D128,
        key: 1000,
        full: launch::attention_hopper_d128_smem,
        causal: launch::attention_hopper_d128_causal_smem,
        padded: Some(launch::attention_hopper_d128_padded_smem),
    },
    HopperKernels {
        tiles: D128_EVEN,
        key: 1030,
        full: launch::attention_hopper_d128_even_smem,
        causal: launch::attention_hopper_d128_even_causal_smem,
        padded: Some(launch::attention_hopper_d128_even_padded_smem),
    },
    HopperKernels {
        tiles: D256,
        key: 1000,
        full: launch::attention_hopper_d256_smem,
        causal: launch::attention_hopper_d256_causal_smem,
        padded: None,
    },
];

impl HopperKernels {
    /// Returns the kernel for the call, and the tile sizes of this kernel. Returns `None` if no kernel
    /// supports the call.
    fn of(a: &AttentionLayout) -> Option<(HopperKernel, Tiles)> {
        let dim = KERNELS.iter().map(|kernels| kernels.tiles.dim).find(|&dim| a.dim <= dim)?;
        let time =
            |kernels: &&HopperKernels| u64::from(a.keys.next_multiple_of(kernels.tiles.keys)) * kernels.key;
        let kernels = KERNELS.iter().filter(|kernels| kernels.tiles.dim == dim).min_by_key(time)?;
        let name = match (&a.mask, a.causal) {
            (None, false) => kernels.full,
            (None, true) => kernels.causal,
            // The Hopper kernels support only a mask that is equal for all queries, for example a padding
            // mask. They read such a mask once per tile of queries.
            (Some(mask), false) if mask.strides[2] == 0 => kernels.padded?,
            _ => return None,
        };
        Some((name, kernels.tiles))
    }
}

/// Minimum number of queries for the Hopper kernels. With fewer queries, most rows of a query tile would be
/// empty.
const MIN_QUERIES: u32 = 64;

/// Maximum bytes of keys and values that all blocks process at the same time. The L2 of an H200 has 60 MB,
/// enough for these keys and values and for those that the blocks process next. Several heads are processed
/// at the same time, because one head often has fewer tiles than the GPU has SMs.
const SECTION_BYTES: u64 = 24 << 20;

/// Launches a Hopper kernel and returns `true`. If no Hopper kernel supports the call, returns `false`
/// without a launch. `skip` is the number of kernels to skip. If a Hopper kernel supports the call and `skip`
/// is not 0, the function decreases `skip` by 1 and returns `false` without a launch.
///
/// The Hopper kernels support full attention, with or without a mask over keys. They also support causal
/// attention without a mask. They do not support windows, softcaps or packed sequences (several sequences in
/// one tensor). All strides must be multiples of 16 bytes.
pub(crate) fn attention_hopper(
    device: &Device,
    a: &AttentionLayout,
    skip: &mut usize,
    stream: Stream,
) -> Result<bool> {
    if !library(device)?.has(Arch::Sm90a) || !is_plain(a) {
        return Ok(false);
    }
    let Some((kernel, tiles)) = HopperKernels::of(a) else { return Ok(false) };
    let Some(p) = params(a, &tiles) else { return Ok(false) };
    if let Some(fewer) = skip.checked_sub(1) {
        *skip = fewer;
        return Ok(false);
    }
    let map = |heads, rows, tokens, count| device.tensor_map(&map(a, heads, [tokens, count], rows));
    let q = map(&a.q, tiles.rows(), a.queries, a.heads)?;
    let (k, v) = (map(&a.k, tiles.keys, a.keys, a.kv_heads)?, map(&a.v, tiles.keys, a.keys, a.kv_heads)?);
    let site = LaunchSite::new(device, a.dtype, block_shape(blocks(device, a, &p), tiles.threads()), stream)?;
    // Only kernels that stage their output in shared memory read the tensor map of the output. For all other
    // kernels, pass the tensor map of the queries as a placeholder.
    let out = if tiles.staged { map(&a.out, WARP_ROWS, a.queries, a.heads)? } else { q };
    // SAFETY: the kernel accesses only the tensors that the tensor maps and `p` describe.
    // `AttentionLayout::of` has checked these tensors.
    unsafe { kernel(site, q, k, v, out, p) }?;
    Ok(true)
}

fn is_plain(a: &AttentionLayout) -> bool {
    // In a tensor map (descriptor for a TMA copy), each stride must be a positive multiple of 16 bytes. The
    // stride of a dimension of size 1 needs no check, because the function `map` replaces it.
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

/// Returns the parameters for the kernel, or `None` if the call has more tiles than the kernel parameters can
/// represent.
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

/// Returns the number of heads that all blocks process at the same time. The keys and values of these heads
/// together have at most `SECTION_BYTES` bytes, so that they fit in L2. If a single key head already has more
/// bytes, the result is at most the number of query heads that use this key head. The result divides `heads`
/// without remainder.
fn section(a: &AttentionLayout, heads: u32) -> u32 {
    let bytes = 4 * u64::from(a.keys) * u64::from(a.dim);
    let max = (SECTION_BYTES / bytes).max(1) * u64::from(a.heads / a.kv_heads);
    let max = max.min(u64::from(heads)) as u32;
    (1..=max).rev().find(|&section| heads.is_multiple_of(section)).unwrap_or(1)
}

/// Returns the number of blocks of a launch.
///
/// Full attention uses persistent blocks, one per SM. A block loads data for its next tile while it finishes
/// the current tile. Causal attention uses one block per tile, in an order that starts with the tiles that
/// have the most keys. The hardware gives each free SM the next block. This order balances the load better
/// than a fixed assignment of tiles to SMs.
fn blocks(device: &Device, a: &AttentionLayout, p: &HopperParams) -> u32 {
    if a.causal { p.tiles } else { p.tiles.min(device.multiprocessors().unwrap_or(1)) }
}

/// Returns the description of a query, key, value or output tensor from which the driver makes a tensor map.
/// One TMA copy moves `rows` tokens.
fn map(a: &AttentionLayout, heads: &Heads, [tokens, count]: [u32; 2], rows: u32) -> HeadsMap {
    // `AttentionLayout` sets the stride of a dimension of size 1 to 0. The driver rejects the stride 0 in a
    // tensor map. Use a stride of 16 bytes instead, which is harmless, because the stride of a dimension of
    // size 1 has no effect on addresses.
    let stride = |stride: i64| if stride == 0 { 16 } else { 2 * stride.unsigned_abs() };
    HeadsMap {
        base: heads.base.cast_const().cast(),
        dtype: a.dtype,
        sizes: [a.dim, tokens, count, a.batches].map(u64::from),
        strides: [heads.token_stride, heads.head_stride, heads.batch_stride].map(stride),
        part: [PART, rows],
    }
}
