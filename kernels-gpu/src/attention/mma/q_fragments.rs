//! A warp's queries: left matrices, held in registers where there are enough of them.
use cuda_std::mma::{A, MatrixElem};

use super::tile::{Lanes, Tile};

pub(crate) struct Queries<T, const ROWS16: usize, const DIM16: usize, const HELD: bool> {
    tile: Tile<T, DIM16>,
    lanes: Lanes<DIM16>,
    held: [[A; DIM16]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize, const HELD: bool>
    Queries<T, ROWS16, DIM16, HELD>
{
    /// Those of the warp whose rows `tile` has; [`Queries::hold`] once they are there.
    #[inline(always)]
    pub fn of(tile: Tile<T, DIM16>, lanes: Lanes<DIM16>) -> Self {
        Self { tile, lanes, held: [[[0; 4]; DIM16]; ROWS16] }
    }

    /// Reads them, if they are held.
    ///
    /// # Safety
    /// A barrier stands between this and the writes.
    #[inline(always)]
    pub unsafe fn hold(&mut self) {
        if HELD {
            for row in 0..ROWS16 {
                for col in 0..DIM16 {
                    // SAFETY: as the caller promises.
                    self.held[row][col] = unsafe { self.tile.left(&self.lanes, row, col) };
                }
            }
        }
    }

    /// The matrix at row `16 row` and column `16 col`.
    ///
    /// # Safety
    /// As [`Queries::hold`].
    #[inline(always)]
    pub unsafe fn get(&self, row: usize, col: usize) -> A {
        // SAFETY: as the caller promises.
        if HELD { self.held[row][col] } else { unsafe { self.tile.left(&self.lanes, row, col) } }
    }
}
