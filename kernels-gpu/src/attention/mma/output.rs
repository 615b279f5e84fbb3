//! Writes a warp's accumulator to global memory, as rows of one head.
use cuda_std::mem;
use cuda_std::mma::{C, MatrixElem};
use cuda_std::prelude::*;

use super::tile::Tile;

/// A warp's accumulator of `16 * ROWS16` rows and `16 * DIM16` columns. Each 16 x 16 block consists of two
/// MMA accumulators (16 x 8): its left half and its right half.
pub(crate) type Accumulator<const ROWS16: usize, const DIM16: usize> = [[[C; 2]; DIM16]; ROWS16];

/// The location in global memory to which a warp writes its rows.
pub(crate) struct Output<T> {
    /// Pointer to the first row of the sequence.
    pub head: *mut T,
    /// Elements from one row to the next.
    pub stride: i64,
    /// The warp's first row in the sequence.
    pub first: u32,
    /// Number of rows in the sequence.
    pub rows: u32,
    /// Head dimension.
    pub dim: u32,
    /// True if rows can be written in 16-byte stores.
    pub vector: bool,
}

impl<T: MatrixElem> Output<T> {
    /// Multiplies each row of the accumulator by the row's factor in `factors`, and writes the row to global
    /// memory. The warp first copies its rows to `tile` in shared memory. Each lane can then store 16
    /// contiguous bytes of a row.
    ///
    /// # Safety
    /// Only this warp accesses `tile`, which has at least as many rows as the accumulator. The output is
    /// writable.
    #[inline(always)]
    pub unsafe fn write<const ROWS16: usize, const DIM16: usize>(
        &self,
        tile: &Tile<T, DIM16>,
        sums: &Accumulator<ROWS16, DIM16>,
        factors: &[[f32; 2]; ROWS16],
    ) {
        let lane = warp::lane();
        // The next loop overwrites `tile`, from which other lanes of this warp may still read, for example
        // queries. Wait until all lanes have finished reading.
        warp::sync(warp::ALL);
        for row in 0..ROWS16 {
            for half in 0..2 {
                let (line, factor) = (16 * row as u32 + 8 * half as u32 + lane / 4, factors[row][half]);
                for pair in 0..DIM16 {
                    for side in 0..2 {
                        let c = sums[row][pair][side];
                        let word = T::pair(c[2 * half] * factor, c[2 * half + 1] * factor);
                        let at = 8 * pair as u32 + 4 * side as u32 + lane % 4;
                        // SAFETY: `put` writes a word of `tile`. The caller guarantees that `tile` has all
                        // rows of the accumulator, and that only this warp accesses it.
                        unsafe { tile.put(line, at, word) };
                    }
                }
            }
        }
        warp::sync(warp::ALL);
        let chunks = 2 * DIM16 as u32;
        for step in 0..ROWS16 as u32 * 16 * chunks / warp::SIZE {
            let at = step * warp::SIZE + lane;
            let (line, chunk) = (at / chunks, at % chunks);
            let cols = self.dim.saturating_sub(8 * chunk).min(8);
            if self.first + line >= self.rows {
                continue;
            }
            let offset = i64::from(self.first + line) * self.stride + i64::from(8 * chunk);
            // SAFETY: the store is inside the output, because the comparison above excludes rows outside the
            // sequence. `tile.chunk` reads a 16-byte chunk that this warp wrote before the last warp barrier.
            unsafe {
                self.store(self.head.wrapping_offset(offset as isize), tile.chunk(line, chunk).0, cols)
            };
        }
    }

    /// Writes the first `cols` of the eight elements in `words` to address `to`. If the field `vector` is
    /// true, this function uses one 16-byte store. `cols` must then be 0 or 8.
    ///
    /// # Safety
    /// The `cols` elements at `to` are writable.
    #[inline(always)]
    unsafe fn store(&self, to: *mut T, words: [u32; 4], cols: u32) {
        if self.vector {
            if cols > 0 {
                // SAFETY: the store writes the eight elements at `to`. These elements exist, because the head
                // dimension is a multiple of 8. The host checked this, and that rows are aligned to 16 bytes.
                unsafe { mem::store_u32x4(to.cast(), words, Store::Default) };
            }
            return;
        }
        for at in 0..8 {
            if at < cols {
                let bits = (words[at as usize / 2] >> (16 * (at % 2))) as u16;
                // SAFETY: the store writes element number `at`, counted from `to`. `at` is less than `cols`,
                // and the caller guarantees that `cols` elements at `to` are writable.
                unsafe { mem::store_u16(to.wrapping_add(at as usize).cast(), bits, Store::Default) };
            }
        }
    }
}
