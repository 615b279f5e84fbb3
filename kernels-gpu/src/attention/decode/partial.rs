//! Combines the results of a block's warps in shared memory, and writes the combined result to global memory.
//! In split-KV decoding, each block processes one split of the keys, and each of its four warps processes a
//! quarter of this split. See [`decode`](crate::attention::decode).
use cuda_std::math::lg2;
use cuda_std::mem;
use cuda_std::prelude::*;

use super::combine::weight;
use super::params::{DecodeParams, ROWS};
use crate::attention::mma::output::Accumulator;
use crate::attention::mma::params::WARPS;
use crate::attention::mma::softmax::RowSoftmax;

/// The attention results of the block's warps, in shared memory. These results overwrite the tiles of
/// queries, keys and values, which the block no longer needs.
pub(super) struct Found<const DIM16: usize> {
    /// Normalized results of the warps, with the shape `[WARPS, ROWS, Self::STRIDE]`.
    values: Shared<f32>,
    /// Natural log-sum-exp of each row's scores for the keys of each warp, with the shape `[WARPS, ROWS]`.
    lse: Shared<f32>,
    /// Number of rows of the block's tile that exist.
    rows: u32,
    /// Head dimension.
    dim: u32,
}

impl<const DIM16: usize> Found<DIM16> {
    /// Distance between consecutive rows, in f32 elements. With this distance, four consecutive rows start
    /// eight banks apart, which reduces bank conflicts.
    const STRIDE: u32 = 16 * DIM16 as u32 + 8;

    /// Creates the buffers for `rows` rows of `dim` columns.
    #[inline(always)]
    pub fn of_block(rows: u32, dim: u32) -> Self {
        let mut memory = SharedMemory::of_launch();
        let values = memory.take(WARPS * ROWS * Self::STRIDE);
        Self { values, lse: memory.take(WARPS * ROWS), rows, dim }
    }

    /// Stores the attention result of warp number `warp` in shared memory, where it overwrites other data of
    /// the block.
    ///
    /// # Safety
    /// A barrier separates this call from earlier and later accesses to the same shared memory. The warp is
    /// converged.
    #[inline(always)]
    pub unsafe fn store(&self, warp: u32, softmax: &RowSoftmax<1>, out: &Accumulator<1, DIM16>) {
        let lane = warp::lane();
        for half in 0..2 {
            let [inverse, lse] = softmax.finish(0, half);
            let row = 8 * half as u32 + lane / 4;
            if row >= self.rows {
                continue;
            }
            let line = warp * ROWS + row;
            if lane.is_multiple_of(4) {
                // SAFETY: the store overwrites shared memory that contained other data of the block. The
                // caller guarantees that a barrier followed the last access to these data. Each lane writes
                // its own elements.
                unsafe { self.lse.set(line, lse) };
            }
            for pair in 0..DIM16 {
                for side in 0..2 {
                    let col = 16 * pair as u32 + 8 * side as u32 + lane % 4 * 2;
                    for odd in 0..2 {
                        let value = out[0][pair][side][2 * half + odd] * inverse;
                        // SAFETY: the stores overwrite shared memory that contained other data of the block.
                        // The caller guarantees that a barrier followed the last access to these data. Each
                        // lane writes its own elements.
                        unsafe { self.values.set(line * Self::STRIDE + col + odd as u32, value) };
                    }
                }
            }
        }
    }

    /// Combines the results of all warps of the block, and writes the combined result to entry `split` of the
    /// outputs `partial` and `partial_lse`. These outputs have one entry per split of the keys and per tile
    /// of rows, numbered consecutively. Each thread computes two columns of every row.
    ///
    /// # Safety
    /// All warps have called [`Found::store`], and the block has executed a barrier since then. The outputs
    /// have an entry with number `split`.
    #[inline(always)]
    pub unsafe fn add_up(&self, p: &DecodeParams, split: u32) {
        let col = 2 * thread::index()[0];
        if col >= self.dim {
            return;
        }
        for row in 0..self.rows {
            // SAFETY: all elements were written before the barrier.
            let lse: [f32; WARPS as usize] =
                core::array::from_fn(|warp| unsafe { self.lse.get(warp as u32 * ROWS + row) });
            let max = lse.into_iter().fold(f32::NEG_INFINITY, f32::max);
            // If no warp has a visible key, every log-sum-exp is minus infinity. With the finite reference 0,
            // all warps then have the weight 0 instead of NaN.
            let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
            let (mut total, mut sums) = (0.0, [0.0; 2]);
            for warp in 0..WARPS {
                let weight = weight(lse[warp as usize], shift);
                total += weight;
                for odd in 0..2 {
                    let at = (warp * ROWS + row) * Self::STRIDE + col + odd as u32;
                    // SAFETY: all elements were written before the barrier.
                    sums[odd] = fma(weight, unsafe { self.values.get(at) }, sums[odd]);
                }
            }
            let (inverse, lse) = if total == 0.0 {
                (0.0, f32::NEG_INFINITY)
            } else {
                (1.0 / total, shift + core::f32::consts::LN_2 * lg2(total))
            };
            let line = split as usize * ROWS as usize + row as usize;
            let to = p.partial.wrapping_add(line * self.dim as usize + col as usize);
            let words = sums.map(|sum| (sum * inverse).to_bits());
            // SAFETY: the store writes two columns of entry `split` of `partial`. The caller guarantees that
            // this entry exists. `col` and `dim` are even, so the address is aligned to 8 bytes.
            unsafe { mem::store_u32x2(to.cast(), words, Store::Default) };
            if col == 0 {
                let to = p.partial_lse.wrapping_add(line);
                // SAFETY: the caller guarantees that the output has entry number `split`.
                unsafe { mem::store_u32(to.cast(), lse.to_bits(), Store::Default) };
            }
        }
    }
}
