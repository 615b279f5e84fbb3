//! The producer warpgroup of the Hopper attention kernels, which loads tiles into shared memory.
//!
//! One thread issues the TMA copies of queries and keys, and a second thread issues the TMA copies of values.
//! Each copy starts as soon as the consumer warpgroups have released its destination buffer. If there is a
//! mask, one warp of the producer warpgroup loads it.
use cuda_std::hopper::tensor_map::Map;
use cuda_std::thread;

use super::layout::{Buffer, Layout, Slot};
use super::mask;
use super::params::{HopperParams, PART};
use super::schedule::{QueryTile, numbers};
use super::shape::Shape;

/// Tensor maps of queries, keys and values, with the dimensions column, row, head and batch. A TMA box (the
/// part of a tensor that one TMA copy transfers) is one column slice (64 columns) of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub q: Map,
    pub k: Map,
    pub v: Map,
}

/// Waits until the consumer warps have released `buffer`, and then starts TMA copies of a tile to `buffer`.
/// The tile starts at row `row` of the head `head` of the batch `batch`. There is one copy per column slice
/// (64 columns) of the tile, and a slice has `bytes` bytes.
///
/// # Safety
/// `map` is a tensor map of this launch, whose TMA box is one column slice. The mbarriers of `buffer` are
/// initialized, and no other thread fills this buffer.
#[inline(always)]
unsafe fn fill<K: Shape>(buffer: Buffer, parity: u32, bytes: u32, map: Map, [row, head, batch]: [u32; 3]) {
    let parts = Layout::<K>::PARTS;
    // SAFETY: the TMA copies read the tensor of `map` and write the buffer. The tensor map belongs to this
    // launch. The wait guarantees that no consumer reads the buffer.
    unsafe {
        buffer.empty.wait(parity ^ 1);
        buffer.full.expect(parts * bytes);
        for part in 0..parts {
            map.copy(buffer.data + part * bytes, [part * PART, row, head, batch], buffer.full);
        }
    }
}

/// For each query tile of the block, loads the query tile, and then the key tiles that its queries attend to,
/// from last to first.
///
/// # Safety
/// The tensor maps and the kernel argument `p` belong to this launch. The mbarriers are initialized. Only one
/// thread of the block calls this function.
#[inline(always)]
pub(crate) unsafe fn produce_keys<K: Shape>(layout: Layout<K>, maps: Maps, p: &HopperParams) {
    let mut query_parity = 0;
    let first = |tile: QueryTile| {
        let at = [tile.row, tile.head, tile.batch];
        // SAFETY: `fill`, which starts the TMA copies to a buffer, requires tensor maps of this launch, and
        // that no other thread fills the buffer. The caller guarantees both.
        unsafe { fill::<K>(layout.queries(), query_parity, Layout::<K>::QUERY_PART, maps.q, at) };
        query_parity ^= 1;
    };
    each_tile::<K>(p, first, |tile, slot, key| {
        // SAFETY: `fill`, which starts the TMA copies to a buffer, requires tensor maps of this launch, and
        // that no other thread fills the buffer. The caller guarantees both.
        unsafe {
            fill::<K>(layout.keys(slot), slot.parity, Layout::<K>::KEY_PART, maps.k, tile.keys_at(key, p))
        };
    });
}

/// For each query tile of the block, loads the value tiles that its queries attend to, from last to first.
/// The function [`produce_keys`] loads the key tiles in the same order.
///
/// # Safety
/// The tensor maps and the kernel argument `p` belong to this launch. The mbarriers are initialized. Only one
/// thread of the block calls this function.
#[inline(always)]
pub(crate) unsafe fn produce_values<K: Shape>(layout: Layout<K>, maps: Maps, p: &HopperParams) {
    each_tile::<K>(
        p,
        |_| (),
        |tile, slot, key| {
            let at = tile.keys_at(key, p);
            // SAFETY: `fill`, which starts the TMA copies to a buffer, requires tensor maps of this launch,
            // and that no other thread fills the buffer. The caller guarantees both.
            unsafe { fill::<K>(layout.values(slot), slot.parity, Layout::<K>::KEY_PART, maps.v, at) };
        },
    );
}

/// Writes mask values to shared memory. For each query tile of the block, it writes the values of one key
/// tile after the other, from the last key tile to the first. The function [`produce_keys`] loads the key
/// tiles in the same order.
///
/// # Safety
/// The kernel argument `p` belongs to this launch. The mbarriers are initialized. Exactly one warp of the
/// block calls this function, with all its lanes.
#[inline(always)]
pub(crate) unsafe fn produce_masks<K: Shape>(layout: Layout<K>, p: &HopperParams) {
    each_tile::<K>(
        p,
        |_| (),
        |tile, slot, key| {
            let buffer = layout.masks(slot);
            // SAFETY: `prefetch` reads the mask, which the host checked to be readable, and writes the
            // buffer. The wait guarantees that no consumer warp still reads this buffer.
            unsafe {
                buffer.empty.wait(slot.parity ^ 1);
                mask::prefetch::<K::Elem>(buffer.data, K::KEYS, [key, tile.head, tile.batch], p);
                buffer.full.arrive();
            }
        },
    );
}

/// Iterates over the query tiles of the block. For each query tile with visible keys, calls `first` with the
/// query tile. Then calls `then` once for each key tile that the queries attend to, from the last key tile to
/// the first. The arguments of `then` are the query tile, the pipeline buffer of the key tile, and the index
/// of the key tile's first key.
#[inline(always)]
fn each_tile<K: Shape>(
    p: &HopperParams,
    mut first: impl FnMut(QueryTile),
    then: impl Fn(QueryTile, Slot, u32),
) {
    let mut slot = Slot::FIRST;
    for number in numbers(p) {
        let tile = QueryTile::of::<K>(number, p);
        if tile.key_tiles > 0 {
            first(tile);
        }
        let mut left = tile.key_tiles;
        while left > 0 {
            // The optimization barrier `opaque` prevents loop unrolling. An unrolled loop would need more
            // registers than the producer has.
            left = thread::opaque([left - 1, 0])[0];
            then(tile, slot, left * K::KEYS);
            slot = slot.next::<K>();
        }
    }
}
