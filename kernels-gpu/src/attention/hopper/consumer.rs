//! The consumer warpgroups of the Hopper attention kernels. Each consumer warpgroup computes attention for 64
//! rows of each query tile, while one producer warpgroup loads tiles.
//!
//! For a key tile, the exponentials of the softmax take about as long as the matrix multiplications. Two
//! techniques keep the tensor cores busy during the exponentials:
//! - A warpgroup starts QKᵀ of one key tile together with PV of the previous key tile.
//! - While one consumer warpgroup computes exponentials, the matrix multiplications of another one run.
//!
//! Kernels with three consumer warpgroups use named barriers (PTX `barrier` with an index). The barriers make
//! the warpgroups start their matrix multiplications one after the other (ping-pong), which is faster than an
//! arbitrary order. Kernels with two consumer warpgroups are faster without these barriers.
use cuda_std::hopper::barrier::{Barrier, Named};
use cuda_std::hopper::tensor_map::Map;
use cuda_std::hopper::wgmma::{self, Accumulator};
use cuda_std::warp;

use super::layout::{Layout, PART_ROW, Slot};
use super::matmul::{begin_result, begin_scores};
use super::params::{GROUP_ROWS, HopperParams};
use super::schedule::{QueryTile, numbers};
use super::shape::Shape;
use super::softmax::{OnlineSoftmax, rescale, round};
use super::{mask, output};
use crate::layout::own_thread::own_thread;

/// The state of one thread of a consumer warpgroup. A consumer warpgroup computes 64 rows of each query tile.
struct Consumer<'a, K: Shape> {
    layout: Layout<K>,
    p: &'a HopperParams,
    /// Index of this warpgroup among the consumer warpgroups.
    group: u32,
    /// Pipeline position (buffer and mbarrier phase) of the current key tile.
    slot: Slot,
    /// Parity (0 or 1) of the mbarrier phase that completes when the next query tile has arrived in shared
    /// memory.
    query_parity: u32,
    /// Scores of the current key tile. The softmax replaces them by unnormalized probabilities.
    scores: K::Scores,
    /// Unnormalized probabilities of the current key tile, rounded to the element type.
    weights: K::Weights,
    /// Accumulator of the result.
    result: K::Result,
    /// Row maxima and row sums.
    softmax: OnlineSoftmax,
}

/// Signals that the calling warp has finished reading a buffer, by one arrival on the buffer's mbarrier
/// `empty`.
///
/// # Safety
/// The mbarrier is initialized. The whole warp calls this function.
#[inline(always)]
unsafe fn release(empty: Barrier) {
    if warp::lane() == 0 {
        // SAFETY: the caller guarantees an initialized mbarrier.
        unsafe { empty.arrive() }
    }
}

/// Returns the named barrier at which consumer warpgroup `group` waits until it may start its matrix
/// multiplications. The barrier counts 256 threads: the 128 threads of this warpgroup, and the 128 threads of
/// the warpgroup that precedes it in the ping-pong order.
#[inline(always)]
fn ping_pong(group: u32) -> Named<256> {
    Named(1 + group)
}

impl<K: Shape> Consumer<'_, K> {
    /// Returns the address of the warpgroup's queries in shared memory.
    #[inline(always)]
    fn queries(&self) -> u32 {
        self.layout.queries().data + self.group * GROUP_ROWS * PART_ROW
    }

    /// Returns the index of the query for the first of this thread's two accumulator rows. The query of the
    /// second row has an index that is larger by 8.
    #[inline(always)]
    fn row(&self, tile: QueryTile) -> u32 {
        let thread = own_thread() % 128;
        tile.row + self.group * GROUP_ROWS + thread / 32 * 16 + thread % 32 / 4
    }

    /// Adds the mask (if there is one) to the scores of key tile number `number`, and replaces the scores by
    /// unnormalized probabilities. Returns one factor per row, by which the caller must multiply the
    /// accumulator of the result. If `masked` is true, the function also sets the scores of invisible keys to
    /// minus infinity.
    #[inline(always)]
    fn weigh(&mut self, tile: QueryTile, number: u32, masked: bool) -> [f32; 2] {
        let first = number * K::KEYS;
        if K::PADDED {
            let buffer = self.layout.masks(self.slot);
            // SAFETY: `mask::add` reads the mask in shared memory. The wait on the mbarrier `full` guarantees
            // that the mask has been written. All lanes of the warp execute this code, because the mbarrier
            // `empty` of the mask buffer counts one arrival per lane.
            unsafe {
                buffer.full.wait(self.slot.parity);
                mask::add(self.scores.as_mut(), buffer.data);
                // Every lane arrives on the mbarrier. PTX would permit that one lane arrives for the whole
                // warp after a warp barrier, but `racecheck` of compute-sanitizer reports a race in this
                // case.
                buffer.empty.arrive();
            }
        }
        if masked {
            let ends = tile.ends::<K>(self.row(tile), first, self.p);
            mask::hide(self.scores.as_mut(), ends);
        }
        self.softmax.step(self.scores.as_mut(), K::PADDED)
    }

    /// Computes scores and probabilities of the first key tile that the kernel processes. The kernel
    /// processes key tiles in descending order, so this tile contains the last keys that the queries attend
    /// to.
    ///
    /// # Safety
    /// The mbarriers are initialized. The whole consumer warpgroup calls this function.
    #[inline(always)]
    unsafe fn first(&mut self, tile: QueryTile) {
        let number = tile.key_tiles - 1;
        // SAFETY: the matrix multiplication reads queries and keys in shared memory. The waits on the
        // mbarriers `full` guarantee that both have arrived. The whole warpgroup executes this code.
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

    /// Computes scores and probabilities of key tile number `number`. At the same time, the tensor cores
    /// multiply the probabilities of the previous key tile by its values, and add the product to the result.
    ///
    /// # Safety
    /// The mbarriers are initialized. The whole consumer warpgroup calls this function.
    #[inline(always)]
    unsafe fn step(&mut self, tile: QueryTile, number: u32, masked: bool) {
        let before = self.slot;
        self.slot = before.next::<K>();
        let (keys, values) = (self.layout.keys(self.slot), self.layout.values(before));
        // SAFETY: the matrix multiplications read keys and values in shared memory. The waits on the
        // mbarriers `full` guarantee that both have arrived. The whole warpgroup executes this code.
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

    /// Adds the product PV of key tile 0 to the result. The kernel processes key tiles in descending order,
    /// so key tile 0 is the last one.
    ///
    /// # Safety
    /// The mbarriers are initialized. The whole consumer warpgroup calls this function.
    #[inline(always)]
    unsafe fn last(&mut self) {
        let values = self.layout.values(self.slot);
        // SAFETY: the matrix multiplication reads the values in shared memory. The wait on the mbarrier
        // `full` guarantees that they have arrived. The whole warpgroup executes this code.
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

    /// Releases the buffer of key tile number `number`, so that the producer warpgroup can overwrite it. If
    /// `number` is 0, the function also releases the buffer of the query tile. The kernel processes key tiles
    /// in descending order, so it needs the queries no more after the scores of key tile 0.
    ///
    /// # Safety
    /// The mbarriers are initialized. The whole consumer warpgroup calls this function.
    #[inline(always)]
    unsafe fn release_keys(&self, empty: Barrier, number: u32) {
        // SAFETY: `release` requires initialized mbarriers, and a call by the whole warp. The caller
        // guarantees both.
        unsafe {
            release(empty);
            if number == 0 {
                release(self.layout.queries().empty);
            }
        }
    }

    /// Lets the next consumer warpgroup in the ping-pong order start its matrix multiplications.
    ///
    /// # Safety
    /// The mbarriers are initialized. The whole consumer warpgroup calls this function.
    #[inline(always)]
    unsafe fn hand_over(&self) {
        let next = if self.group + 1 == K::GROUPS { 0 } else { self.group + 1 };
        // SAFETY: a named barrier (PTX `barrier` with an index) requires that whole warps arrive. The whole
        // warp executes this code. The next warpgroup waits at this barrier exactly once per arrival.
        unsafe { ping_pong(next).arrive() }
    }
}

/// Computes all query tiles of the block. Consumer warpgroup `group` computes its 64 rows of each query tile.
///
/// # Safety
/// `p` and the tensor map of the result were created for this launch. The mbarriers are initialized. The
/// whole consumer warpgroup `group` calls this function.
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
    // SAFETY: the methods read tiles in shared memory and store the attention result in global memory. The
    // caller guarantees that `p` and the tensor map belong to this launch, and that the mbarriers are
    // initialized. The whole warpgroup executes this code.
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
