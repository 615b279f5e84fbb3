//! A warp's queries: left matrices, held in registers where there are enough of them.
use cuda_std::mma::{A, MatrixElem};

use super::tile::{FragmentLanes, Tile};

pub(crate) struct Queries<T, const ROWS16: usize, const DIM16: usize, const Q_IN_REGISTERS: bool> {
    tile: Tile<T, DIM16>,
    lanes: FragmentLanes<DIM16>,
    in_registers: [[A; DIM16]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize, const Q_IN_REGISTERS: bool>
    Queries<T, ROWS16, DIM16, Q_IN_REGISTERS>
{
    /// Those of the warp whose rows `tile` has; [`Queries::hold`] once they are there.
    #[inline(always)]
    pub fn of(tile: Tile<T, DIM16>, lanes: FragmentLanes<DIM16>) -> Self {
        Self { tile, lanes, in_registers: [[[0; 4]; DIM16]; ROWS16] }
    }

    /// Reads them, if they are held.
    ///
    /// # Safety
    /// A barrier stands between this and the writes.
    #[inline(always)]
    pub unsafe fn hold(&mut self) {
        if Q_IN_REGISTERS {
            for row in 0..ROWS16 {
                for col in 0..DIM16 {
                    // SAFETY: as the caller promises.
                    self.in_registers[row][col] = unsafe { self.tile.left(&self.lanes, row, col) };
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
        if Q_IN_REGISTERS {
            self.in_registers[row][col]
        } else {
            // SAFETY: as the caller promises.
            unsafe { self.tile.left(&self.lanes, row, col) }
        }
    }
}
