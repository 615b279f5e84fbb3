//! Second kernel of split-KV decoding ([`decode`](crate::attention::decode)). The first kernel divides the
//! keys into parts, the splits, and computes attention separately for each split. This kernel combines the
//! results of the splits.
use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{DecodeParams, ROWS};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::divide;

/// Warps per block. A block combines the results of all splits of the keys for one query of one head. Warp
/// `w` adds the results of splits `w`, `w + COMBINERS` and so on. A block has several warps so that more
/// loads are in flight at the same time.
pub const COMBINERS: u32 = 16;
/// Largest head dimension that the kernel supports. A warp processes one row in [`STEPS`] steps, and in each
/// step every lane processes four columns.
const COLS: u32 = 256;
const STEPS: usize = (COLS / (4 * warp::SIZE)) as usize;
/// Number of splits of the keys whose results a warp loads before it uses the first of them. These loads are
/// then in flight at the same time.
const IN_FLIGHT: usize = 4;

/// Bytes of shared memory per block. Each warp has one row of `COLS` f32 values.
pub const SHARED_BYTES: u32 = COMBINERS * COLS * size_of::<f32>() as u32;

/// Access to the results of all splits of the keys for one row. A row is one query of one query head.
struct Splits<'a> {
    p: &'a DecodeParams,
    /// Index of the first split of the keys for the row's tile. The splits of all row tiles are numbered
    /// consecutively.
    first: u32,
    /// Number of splits.
    count: u32,
    /// Index of the row in its row tile.
    line: u32,
}

impl Splits<'_> {
    /// Returns the index of the element of `partial_lse` that belongs to this row and to split number
    /// `split`.
    fn at(&self, split: u32) -> usize {
        (self.first + split) as usize * ROWS as usize + self.line as usize
    }

    /// Reads the natural log-sum-exp of this row's scores for the keys of split number `split`.
    ///
    /// # Safety
    /// The first kernel, [`decode`](super::split::decode), has finished, and `split` is less than `count`.
    #[inline(always)]
    unsafe fn lse(&self, split: u32) -> f32 {
        let from = self.p.partial_lse.wrapping_add(self.at(split));
        // SAFETY: the load reads this row's element for split `split`. The element exists, because the kernel
        // `decode` wrote one element per split and row, and `split` is less than `count`.
        f32::from_bits(unsafe { mem::load_u32(from.cast_const().cast(), Load::ReadOnly) })
    }

    /// Reads four columns of this row in the result of split number `split`, from column `col` on.
    ///
    /// # Safety
    /// The first kernel, [`decode`](super::split::decode), has finished, and `split` is less than `count`.
    /// `col` is a multiple of 4 and less than the head dimension.
    #[inline(always)]
    unsafe fn columns(&self, split: u32, col: u32) -> [f32; 4] {
        let from = self.p.partial.wrapping_add(self.at(split) * self.p.forward.dim as usize + col as usize);
        // SAFETY: the load reads four columns that the kernel `decode` wrote. Their address is aligned to 16
        // bytes, because `dim` and `col` are multiples of 4, and the host checked the base address.
        unsafe { mem::load_u32x4(from.cast_const().cast(), Load::ReadOnly) }.map(f32::from_bits)
    }

    /// Returns `[reference, total]`, from which the weights of the splits of the keys follow. The combined
    /// result is the weighted mean of the results of the splits. A split with the log-sum-exp `lse` has the
    /// weight `exp(lse - reference)`, and `total` is the sum of these weights. `reference` is the largest
    /// log-sum-exp of the splits, or 0 if no split has a visible key. Every warp of the block computes the
    /// same two values.
    ///
    /// # Safety
    /// The first kernel, [`decode`](super::split::decode), has finished, and the warp is converged.
    #[inline(always)]
    unsafe fn weights(&self) -> [f32; 2] {
        let (mut max, mut total) = (f32::NEG_INFINITY, 0.0);
        let mut split = warp::lane();
        while split < self.count {
            // SAFETY: the method `lse` requires that the kernel `decode` has finished, which the caller
            // guarantees. It also requires that `split` is below `count`, which the loop bound ensures.
            max = max.max(unsafe { self.lse(split) });
            split += warp::SIZE;
        }
        let max = warp::max(max, warp::SIZE);
        // If no split has a visible key, every log-sum-exp is minus infinity. With the finite reference 0,
        // all splits then have the weight 0 instead of NaN.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut split = warp::lane();
        while split < self.count {
            // SAFETY: the method `lse` requires that the kernel `decode` has finished, which the caller
            // guarantees. It also requires that `split` is below `count`, which the loop bound ensures.
            total += weight(unsafe { self.lse(split) }, shift);
            split += warp::SIZE;
        }
        [shift, warp::sum(total, warp::SIZE)]
    }

    /// Returns the weighted sum of the results of the splits `warp`, `warp + COMBINERS` and so on. A split
    /// with the log-sum-exp `lse` has the weight `exp(lse - shift)`. Each lane computes the sum for its own
    /// columns.
    ///
    /// # Safety
    /// The kernel [`decode`](super::split::decode) has finished.
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
                    // SAFETY: the method `lse` requires that the kernel `decode` has finished, which the
                    // caller guarantees. It also requires that `split` is less than `count`, which the
                    // condition above checked.
                    weights[slot] = unsafe { self.lse(split) };
                    for step in 0..STEPS {
                        if column(step) < self.p.forward.dim {
                            // SAFETY: the method `columns` requires that the kernel `decode` has finished,
                            // which the caller guarantees. The conditions above checked that `split` is less
                            // than `count`, and that `column(step)` is less than the head dimension.
                            // `column(step)` is a multiple of 4.
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

/// Returns the weight of a split with the log-sum-exp `lse`: `exp(lse - shift)`.
#[inline(always)]
pub(super) fn weight(lse: f32, shift: f32) -> f32 {
    ex2_ftz((lse - shift) * core::f32::consts::LOG2_E)
}

/// Returns the first of the four columns that this lane processes in step number `step`. In each step, a warp
/// processes 128 columns.
fn column(step: usize) -> u32 {
    4 * (step as u32 * warp::SIZE + warp::lane())
}

/// Combines the results of all splits of the keys for one query of one head, and writes the output row of
/// this query.
///
/// # Safety
/// The first kernel, [`decode`](super::split::decode), was launched with the same argument `p` and has
/// finished. A block of this launch has [`COMBINERS`] warps.
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
    // SAFETY: `weights` and `sum` read the results of the first kernel, `decode`, which has finished. Each
    // lane writes its own elements of shared memory.
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
                // SAFETY: all elements were written before the barrier.
                pair[odd as usize] += unsafe { shared.get(warp * COLS + col + odd) };
            }
        }
        let to = coords.query::<T>(&f.out).wrapping_offset((i64::from(query) * f.out.token_stride) as isize);
        let word = T::pair(pair[0] * inverse, pair[1] * inverse);
        // SAFETY: the store writes the columns `col` and `col + 1` of the output row. Both columns exist,
        // because `col` and `dim` are even. The host checked that the output permits 4-byte stores of two
        // adjacent columns.
        unsafe { mem::store_u32(to.wrapping_add(col as usize).cast(), word, Store::Default) };
    }
    if thread == 0 && !f.lse.is_null() {
        let lse = if total == 0.0 { f32::NEG_INFINITY } else { shift + core::f32::consts::LN_2 * lg2(total) };
        let to = f.lse.wrapping_add(coords.number(f, query));
        // SAFETY: the store writes this query's element of `lse`. The element exists, because the host
        // checked that `lse` has one element per head and query.
        unsafe { mem::store_u32(to.cast(), lse.to_bits(), Store::Default) };
    }
}
