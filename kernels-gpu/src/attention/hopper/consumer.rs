//! The warp groups that compute, 64 queries each.
//!
//! What keeps the tensor cores busy while weights are worked out, which takes the other units about as long
//! as the products take them:
//! - a warp group begins the scores of a tile and the result of the tile before it together;
//! - the products of one warp group run while the others work on their weights. Three groups take turns in
//!   beginning products (8 to 10 % faster than without), two alternate by themselves (turns are up to 7 %
//!   slower).
use cuda_std::hopper::barrier::{Barrier, Named};
use cuda_std::hopper::tensor_map::Map;
use cuda_std::hopper::wgmma::{self, Accumulator};
use cuda_std::warp;

use super::layout::{Layout, PART_ROW, Slot};
use super::matmul::{begin_result, begin_scores};
use super::own_thread::own_thread;
use super::params::{GROUP_ROWS, HopperParams};
use super::schedule::{QueryTile, numbers};
use super::shape::Shape;
use super::softmax::{OnlineSoftmax, rescale, round};
use super::{mask, output};

/// A warp group at work on its 64 rows of a tile.
struct Consumer<'a, K: Shape> {
    layout: Layout<K>,
    p: &'a HopperParams,
    /// The number of the group.
    group: u32,
    slot: Slot,
    query_parity: u32,
    scores: K::Scores,
    weights: K::Weights,
    result: K::Result,
    softmax: OnlineSoftmax,
}

/// Says, for a warp, that it is done with a buffer.
///
/// # Safety
/// The barrier is made; the whole warp is here.
#[inline(always)]
unsafe fn release(empty: Barrier) {
    if warp::lane() == 0 {
        // SAFETY: as the caller promises.
        unsafe { empty.arrive() }
    }
}

/// Where a warp group waits until another one hands over to it: two groups meet.
#[inline(always)]
fn ping_pong(group: u32) -> Named<256> {
    Named(1 + group)
}

impl<K: Shape> Consumer<'_, K> {
    /// Where its queries lie.
    #[inline(always)]
    fn queries(&self) -> u32 {
        self.layout.queries().data + self.group * GROUP_ROWS * PART_ROW
    }

    /// The thread's first row; its second is 8 below.
    #[inline(always)]
    fn row(&self, tile: QueryTile) -> u32 {
        let thread = own_thread() % 128;
        tile.row + self.group * GROUP_ROWS + thread / 32 * 16 + thread % 32 / 4
    }

    /// The weights of the scores of tile `number`.
    #[inline(always)]
    fn weigh(&mut self, tile: QueryTile, number: u32, masked: bool) -> [f32; 2] {
        let first = number * K::KEYS;
        if K::PADDED {
            let buffer = self.layout.masks(self.slot);
            // SAFETY: the wait says that the mask is there; the whole warp is here.
            unsafe {
                buffer.full.wait(self.slot.parity);
                mask::add(self.scores.as_mut(), buffer.data);
                // Each lane speaks for itself: racecheck sees no order in one that speaks for those it has
                // met with.
                buffer.empty.arrive();
            }
        }
        if masked {
            let ends = tile.ends::<K>(self.row(tile), first, self.p);
            mask::hide(self.scores.as_mut(), ends);
        }
        self.softmax.step(self.scores.as_mut(), K::PADDED)
    }

    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn first(&mut self, tile: QueryTile) {
        let number = tile.key_tiles - 1;
        // SAFETY: the waits say that the tiles are there.
        unsafe {
            self.layout.queries().full.wait(self.query_parity);
            self.query_parity ^= 1;
            let keys = self.layout.keys(self.slot);
            keys.full.wait(self.slot.parity);
            wgmma::fence();
            let queries = self.queries();
            begin_scores::<K>(&mut self.scores, queries, keys.data);
            wgmma::wait::<0>();
            wgmma::settle(&mut self.scores);
            self.release_keys(keys.empty, number);
        }
        self.weigh(tile, number, number >= tile.clear_tiles::<K>(self.p));
        round::<K::Elem>(self.scores.as_ref(), self.weights.as_mut());
    }

    /// The scores of tile `number`, and the result of the tile before it.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn step(&mut self, tile: QueryTile, number: u32, masked: bool) {
        let before = self.slot;
        self.slot = before.next::<K>();
        let (keys, values) = (self.layout.keys(self.slot), self.layout.values(before));
        // SAFETY: the waits say that the tiles are there.
        unsafe {
            keys.full.wait(self.slot.parity);
            if K::PING_PONG {
                ping_pong(self.group).sync();
            }
            wgmma::fence();
            let queries = self.queries();
            begin_scores::<K>(&mut self.scores, queries, keys.data);
            values.full.wait(before.parity);
            wgmma::fence();
            begin_result::<K>(&mut self.result, &self.weights, values.data);
            if K::PING_PONG {
                self.hand_over();
            }
            wgmma::wait::<1>();
            wgmma::settle(&mut self.scores);
            self.release_keys(keys.empty, number);
            let by = self.weigh(tile, number, masked);
            wgmma::wait::<0>();
            wgmma::settle(&mut self.result);
            release(values.empty);
            round::<K::Elem>(self.scores.as_ref(), self.weights.as_mut());
            rescale(self.result.as_mut(), by);
        }
    }

    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn last(&mut self) {
        let values = self.layout.values(self.slot);
        // SAFETY: the wait says that the tile is there.
        unsafe {
            values.full.wait(self.slot.parity);
            wgmma::fence();
            begin_result::<K>(&mut self.result, &self.weights, values.data);
            wgmma::wait::<0>();
            wgmma::settle(&mut self.result);
            release(values.empty);
        }
        self.slot = self.slot.next::<K>();
    }

    /// Done with the keys of tile `number` and, as 0 is the last, with the queries.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn release_keys(&self, empty: Barrier, number: u32) {
        // SAFETY: as the caller promises.
        unsafe {
            release(empty);
            if number == 0 {
                release(self.layout.queries().empty);
            }
        }
    }

    /// The next warp group may begin its products.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn hand_over(&self) {
        let next = if self.group + 1 == K::GROUPS { 0 } else { self.group + 1 };
        // SAFETY: it waits there, or will.
        unsafe { ping_pong(next).arrive() }
    }
}

/// # Safety
/// `p` and the map of the result are those of the launch, the barriers are made, the whole warp group `group`
/// of those that compute is here.
#[inline(always)]
pub(crate) unsafe fn consume<K: Shape>(layout: Layout<K>, group: u32, out: Map, p: &HopperParams) {
    let mut consumer = Consumer {
        layout,
        p,
        group,
        slot: Slot::FIRST,
        query_parity: 0,
        scores: K::Scores::ZERO,
        weights: K::NO_WEIGHTS,
        result: K::Result::ZERO,
        softmax: OnlineSoftmax::new(p.scale),
    };
    // SAFETY: as the caller promises.
    unsafe {
        if K::PING_PONG && group + 1 == K::GROUPS {
            consumer.hand_over();
        }
        for number in numbers(p) {
            let tile = QueryTile::of::<K>(number, p);
            consumer.softmax = OnlineSoftmax::new(p.scale);
            consumer.result = K::Result::ZERO;
            if tile.key_tiles > 0 {
                consumer.first(tile);
                let (mut left, clear) = (tile.key_tiles - 1, tile.clear_tiles::<K>(p));
                if K::CAUSAL {
                    while left > clear {
                        left -= 1;
                        consumer.step(tile, left, true);
                    }
                }
                while left > 0 {
                    left -= 1;
                    consumer.step(tile, left, false);
                }
                consumer.last();
            }
            let (result, softmax) = (consumer.result.as_ref(), &consumer.softmax);
            let rows = (tile, consumer.group, consumer.row(tile));
            output::store::<K>(result, softmax, rows, consumer.layout, out, consumer.p);
        }
        if K::STAGED {
            output::wait_for_place();
        }
    }
}
