//! Adding up what the blocks of [`decode`](crate::attention::decode) found.
use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{DecodeParams, ROWS};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::divide;

/// Warps of a block, which is for one query of one head. Each adds up every `COMBINERS`th part: one warp
/// alone waits for memory as often as there are parts.
pub const COMBINERS: u32 = 16;
/// Columns of the widest head, a lane has 4 at a time, [`STEPS`] times.
const COLS: u32 = 256;
const STEPS: usize = (COLS / (4 * warp::SIZE)) as usize;
/// Parts whose loads are in flight together.
const IN_FLIGHT: usize = 4;

/// Shared memory of a block, in bytes: a row of sums for each warp.
pub const SHARED_BYTES: u32 = COMBINERS * COLS * size_of::<f32>() as u32;

/// The parts of one row.
struct Splits<'a> {
    p: &'a DecodeParams,
    first: u32,
    count: u32,
    /// The row's number in each.
    line: u32,
}

impl Splits<'_> {
    fn at(&self, split: u32) -> usize {
        (self.first + split) as usize * ROWS as usize + self.line as usize
    }

    /// The logarithm of a part's sum of exponentials.
    ///
    /// # Safety
    /// `decode` has run, and there is such a part.
    #[inline(always)]
    unsafe fn lse(&self, split: u32) -> f32 {
        let from = self.p.partial_lse.wrapping_add(self.at(split));
        // SAFETY: as the caller promises.
        f32::from_bits(unsafe { mem::load_u32(from.cast_const().cast(), Load::ReadOnly) })
    }

    /// Four columns of a part's result.
    ///
    /// # Safety
    /// As for [`Splits::lse`]; the columns are there, `col` is a multiple of 4.
    #[inline(always)]
    unsafe fn columns(&self, split: u32, col: u32) -> [f32; 4] {
        let from = self.p.partial.wrapping_add(self.at(split) * self.p.forward.dim as usize + col as usize);
        // SAFETY: as the caller promises; rows have a multiple of 8 columns, and the host checked the base.
        unsafe { mem::load_u32x4(from.cast_const().cast(), Load::ReadOnly) }.map(f32::from_bits)
    }

    /// The maximum that weights are taken against, and their sum; all warps have the same.
    ///
    /// # Safety
    /// As for [`Splits::lse`]; the warp is converged.
    #[inline(always)]
    unsafe fn weights(&self) -> [f32; 2] {
        let (mut max, mut total) = (f32::NEG_INFINITY, 0.0);
        let mut split = warp::lane();
        while split < self.count {
            // SAFETY: as the caller promises.
            max = max.max(unsafe { self.lse(split) });
            split += warp::SIZE;
        }
        let max = warp::max(max, warp::SIZE);
        // Where no part saw a key, all weights are to be 0.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut split = warp::lane();
        while split < self.count {
            // SAFETY: as the caller promises.
            total += weight(unsafe { self.lse(split) }, shift);
            split += warp::SIZE;
        }
        [shift, warp::sum(total, warp::SIZE)]
    }

    /// The lane's columns of the weighted parts from `warp` on, every [`COMBINERS`]th.
    ///
    /// # Safety
    /// As for [`Splits::lse`].
    #[inline(always)]
    unsafe fn sum(&self, warp: u32, shift: f32) -> [[f32; 4]; STEPS] {
        let mut sums = [[0.0; 4]; STEPS];
        let mut split = warp;
        while split < self.count {
            let mut weights = [0.0; IN_FLIGHT];
            let mut values = [[[0.0; 4]; STEPS]; IN_FLIGHT];
            for slot in 0..IN_FLIGHT {
                let split = split + slot as u32 * COMBINERS;
                if split < self.count {
                    // SAFETY: as the caller promises.
                    weights[slot] = unsafe { self.lse(split) };
                    for step in 0..STEPS {
                        if column(step) < self.p.forward.dim {
                            // SAFETY: as the caller promises.
                            values[slot][step] = unsafe { self.columns(split, column(step)) };
                        }
                    }
                } else {
                    weights[slot] = f32::NEG_INFINITY;
                }
            }
            for slot in 0..IN_FLIGHT {
                let weight = weight(weights[slot], shift);
                for step in 0..STEPS {
                    for i in 0..4 {
                        sums[step][i] = fma(weight, values[slot][step][i], sums[step][i]);
                    }
                }
            }
            split += IN_FLIGHT as u32 * COMBINERS;
        }
        sums
    }
}

/// What a part counts beside one whose logarithm is `shift`.
#[inline(always)]
pub(super) fn weight(lse: f32, shift: f32) -> f32 {
    ex2_ftz((lse - shift) * core::f32::consts::LOG2_E)
}

/// The first of a lane's four columns.
fn column(step: usize) -> u32 {
    4 * (step as u32 * warp::SIZE + warp::lane())
}

/// Adds up the parts of a query of a head.
///
/// # Safety
/// As [`decode`](super::decode), after which it runs, with blocks of [`COMBINERS`] warps.
#[inline(always)]
pub(crate) unsafe fn combine<T: MatrixElem>(p: DecodeParams) {
    let f = &p.forward;
    let (above, query) = divide(thread::block_index()[0], f.queries);
    let (batch, head) = divide(above, f.heads);
    let (kv_head, member) = divide(head, f.group);
    let (tile, line) = divide(member * f.queries + query, ROWS);
    let heads = batch * divide(f.heads, f.group).0 + kv_head;
    let count = p.splits;
    let splits = Splits { p: &p, first: (heads * f.tiles + tile) * count, count, line };

    let thread = thread::index()[0];
    let warp = thread / warp::SIZE;
    let shared = SharedMemory::of_launch().take::<f32>(COMBINERS * COLS);
    // SAFETY: as the caller promises; each lane writes elements of its own.
    let [shift, total] = unsafe {
        let [shift, total] = splits.weights();
        let sums = splits.sum(warp, shift);
        for step in 0..STEPS {
            for i in 0..4 {
                shared.set(warp * COLS + column(step) + i as u32, sums[step][i]);
            }
        }
        [shift, total]
    };
    block::sync();

    let coords = TileCoords::whole(f, batch, head);
    let col = 2 * thread;
    if col < f.dim {
        let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
        let mut pair = [0.0; 2];
        for warp in 0..COMBINERS {
            for odd in 0..2 {
                // SAFETY: all was written before the barrier.
                pair[odd as usize] += unsafe { shared.get(warp * COLS + col + odd) };
            }
        }
        let to = coords.query::<T>(&f.out).wrapping_offset((i64::from(query) * f.out.token_stride) as isize);
        let word = T::pair(pair[0] * inverse, pair[1] * inverse);
        // SAFETY: the output is writable, in pairs of columns.
        unsafe { mem::store_u32(to.wrapping_add(col as usize).cast(), word, Store::Default) };
    }
    if thread == 0 && !f.lse.is_null() {
        let lse = if total == 0.0 { f32::NEG_INFINITY } else { shift + core::f32::consts::LN_2 * lg2(total) };
        let to = f.lse.wrapping_add(coords.number(f, query));
        // SAFETY: the host checked that there is one for each query.
        unsafe { mem::store_u32(to.cast(), lse.to_bits(), Store::Default) };
    }
}
