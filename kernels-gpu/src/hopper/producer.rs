//! The warp group that loads: two threads of it, one for keys and one for values, tell the copy engine what to bring, as soon as there is room.
use cuda_std::hopper::tensor_map::Map;
use cuda_std::thread;

use super::layout::{Buffer, Layout, Slot};
use super::schedule::{Tile, numbers};
use super::shape::Shape;
use super::{PART, Params};

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
pub(crate) unsafe fn produce_keys<K: Shape>(layout: Layout<K>, maps: Maps, p: &Params) {
    let mut query_parity = 0;
    // SAFETY: as the caller promises.
    unsafe {
        each_tile::<K>(
            p,
            |tile| {
                let at = [tile.row, tile.head, tile.batch];
                fill::<K>(layout.queries(), query_parity, Layout::<K>::QUERY_PART, maps.q, at);
                query_parity ^= 1;
            },
            |slot, at| fill::<K>(layout.keys(slot), slot.parity, Layout::<K>::KEY_PART, maps.k, at),
        );
    }
}

/// Brings the values, in the order of the keys.
///
/// # Safety
/// As [`produce_keys`].
#[inline(always)]
pub(crate) unsafe fn produce_values<K: Shape>(layout: Layout<K>, maps: Maps, p: &Params) {
    // SAFETY: as the caller promises.
    unsafe {
        each_tile::<K>(
            p,
            |_| (),
            |slot, at| {
                fill::<K>(layout.values(slot), slot.parity, Layout::<K>::KEY_PART, maps.v, at);
            },
        );
    }
}

/// Calls `first` for each tile of queries, then `then` for its tiles of keys, with their slot and place.
#[inline(always)]
fn each_tile<K: Shape>(p: &Params, mut first: impl FnMut(Tile), then: impl Fn(Slot, [u32; 3])) {
    let mut slot = Slot::FIRST;
    for number in numbers(p) {
        let tile = Tile::of::<K>(number, p);
        if tile.key_tiles > 0 {
            first(tile);
        }
        let head = tile.head / p.shared_by;
        let mut left = tile.key_tiles;
        while left > 0 {
            // Nothing to unroll: registers are few here.
            left = thread::forget([left - 1, 0])[0];
            then(slot, [left * K::KEYS, head, tile.batch]);
            slot = slot.next::<K>();
        }
    }
}
