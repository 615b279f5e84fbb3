//! Sums written to rows of heads.
use cuda_std::mem;
use cuda_std::mma::{C, MatrixElem};
use cuda_std::prelude::*;

use super::tile::Tile;

/// A warp's sums of `16 ROWS16` rows and `16 DIM16` columns, two matrices side by side.
pub(crate) type Accumulator<const ROWS16: usize, const DIM16: usize> = [[[C; 2]; DIM16]; ROWS16];

/// The rows of a head that a warp writes.
pub(crate) struct Output<T> {
    /// The first row of the sequence.
    pub head: *mut T,
    /// Elements from a row to the next.
    pub stride: i64,
    /// The warp's first row, and how many there are in the sequence.
    pub first: u32,
    pub rows: u32,
    /// Columns of a head.
    pub dim: u32,
    /// Are they writable 16 bytes at a time?
    pub vector: bool,
}

impl<T: MatrixElem> Output<T> {
    /// Writes the sums, each times its row's factor, through shared memory: there a lane gets 16 bytes of a row together.
    ///
    /// # Safety
    /// Nobody but the warp uses the tile, which has room for the rows; the output is writable.
    #[inline(always)]
    pub unsafe fn write<const ROWS16: usize, const DIM16: usize>(
        &self,
        tile: &Tile<T, DIM16>,
        sums: &Accumulator<ROWS16, DIM16>,
        factors: &[[f32; 2]; ROWS16],
    ) {
        let lane = warp::lane();
        // What other lanes read of the tile, its rows among them, they have read by now.
        warp::sync(warp::ALL);
        for row in 0..ROWS16 {
            for half in 0..2 {
                let (line, factor) = (16 * row as u32 + 8 * half as u32 + lane / 4, factors[row][half]);
                for pair in 0..DIM16 {
                    for side in 0..2 {
                        let c = sums[row][pair][side];
                        let word = T::pair(c[2 * half] * factor, c[2 * half + 1] * factor);
                        let at = 8 * pair as u32 + 4 * side as u32 + lane % 4;
                        // SAFETY: as the caller promises.
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
            // SAFETY: as the caller promises; the warp has met since the chunk was written.
            unsafe {
                self.store(self.head.wrapping_offset(offset as isize), tile.chunk(line, chunk).0, cols)
            };
        }
    }

    /// Writes the first `cols` elements of a chunk.
    ///
    /// # Safety
    /// They are writable.
    #[inline(always)]
    unsafe fn store(&self, to: *mut T, words: [u32; 4], cols: u32) {
        if self.vector {
            if cols > 0 {
                // SAFETY: as the caller promises; all eight are there, and aligned.
                unsafe { mem::store_u32x4(to.cast(), words, Store::Default) };
            }
            return;
        }
        for at in 0..8 {
            if at < cols {
                let bits = (words[at as usize / 2] >> (16 * (at % 2))) as u16;
                // SAFETY: as the caller promises.
                unsafe { mem::store_u16(to.wrapping_add(at as usize).cast(), bits, Store::Default) };
            }
        }
    }
}
