//! The warp group that loads: two threads of it, one for keys and one for values, tell the copy engine what
//! to bring, as soon as there is room.
use cuda_std::hopper::tensor_map::Map;
use cuda_std::thread;

use super::layout::{Buffer, Layout, Slot};
use super::mask;
use super::params::{HopperParams, PART};
use super::schedule::{QueryTile, numbers};
use super::shape::Shape;

/// The tensors: columns, rows, heads, batches, in boxes of a part of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub q: Map,
    pub k: Map,
    pub v: Map,
}

/// Brings a tile, the rows of a head from `row` on in parts of `bytes`, once the buffer is empty.
///
/// # Safety
/// The map is that of a tensor, its box of the part's size.
#[inline(always)]
unsafe fn fill<K: Shape>(buffer: Buffer, parity: u32, bytes: u32, map: Map, [row, head, batch]: [u32; 3]) {
    let parts = Layout::<K>::PARTS;
    // SAFETY: as the caller promises.
    unsafe {
        buffer.empty.wait(parity ^ 1);
        buffer.full.expect(parts * bytes);
        for part in 0..parts {
            map.copy(buffer.data + part * bytes, [part * PART, row, head, batch], buffer.full);
        }
    }
}

/// Brings the queries and the keys of each tile, the last keys first.
///
/// # Safety
/// The maps and `p` are those of the launch, the barriers are made, one thread does this.
#[inline(always)]
pub(crate) unsafe fn produce_keys<K: Shape>(layout: Layout<K>, maps: Maps, p: &HopperParams) {
    let mut query_parity = 0;
    let first = |tile: QueryTile| {
        let at = [tile.row, tile.head, tile.batch];
        // SAFETY: as the caller promises.
        unsafe { fill::<K>(layout.queries(), query_parity, Layout::<K>::QUERY_PART, maps.q, at) };
        query_parity ^= 1;
    };
    each_tile::<K>(p, first, |tile, slot, key| {
        // SAFETY: as above.
        unsafe {
            fill::<K>(layout.keys(slot), slot.parity, Layout::<K>::KEY_PART, maps.k, tile.keys_at(key, p))
        };
    });
}

/// Brings the values, in the order of the keys.
///
/// # Safety
/// As [`produce_keys`].
#[inline(always)]
pub(crate) unsafe fn produce_values<K: Shape>(layout: Layout<K>, maps: Maps, p: &HopperParams) {
    each_tile::<K>(
        p,
        |_| (),
        |tile, slot, key| {
            let at = tile.keys_at(key, p);
            // SAFETY: as the caller promises.
            unsafe { fill::<K>(layout.values(slot), slot.parity, Layout::<K>::KEY_PART, maps.v, at) };
        },
    );
}

/// Brings the masks, in the order of the keys.
///
/// # Safety
/// As [`produce_keys`], but a whole warp does this.
#[inline(always)]
pub(crate) unsafe fn produce_masks<K: Shape>(layout: Layout<K>, p: &HopperParams) {
    each_tile::<K>(
        p,
        |_| (),
        |tile, slot, key| {
            let buffer = layout.masks(slot);
            // SAFETY: as the caller promises; the buffer is empty after the wait.
            unsafe {
                buffer.empty.wait(slot.parity ^ 1);
                mask::prefetch::<K::Elem>(buffer.data, K::KEYS, [key, tile.head, tile.batch], p);
                buffer.full.arrive();
            }
        },
    );
}

/// Calls `first` for each tile of queries, then `then` for its tiles of keys, with their slot and first key.
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
            // Nothing to unroll: registers are few here.
            left = thread::opaque([left - 1, 0])[0];
            then(tile, slot, left * K::KEYS);
            slot = slot.next::<K>();
        }
    }
}
