//! The queries of a warp as A operands of `mma.sync`, in registers or in shared memory.
use cuda_std::mma::{A, MatrixElem};

use super::tile::{FragmentLanes, Tile};

/// The queries of a warp, which are A operands of MMAs. If the const parameter `Q_IN_REGISTERS` is true, the
/// warp keeps all its queries in registers. Otherwise, the warp reads each A operand from shared memory
/// before the MMAs that use it.
pub(crate) struct Queries<T, const ROWS16: usize, const DIM16: usize, const Q_IN_REGISTERS: bool> {
    tile: Tile<T, DIM16>,
    lanes: FragmentLanes<DIM16>,
    in_registers: [[A; DIM16]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize, const Q_IN_REGISTERS: bool>
    Queries<T, ROWS16, DIM16, Q_IN_REGISTERS>
{
    /// Returns a `Queries` object for the first `16 * ROWS16` rows of `tile`. This function does not read
    /// these rows, so the asynchronous copy to `tile` need not be complete. Call [`Queries::hold`] after its
    /// completion.
    #[inline(always)]
    pub fn of(tile: Tile<T, DIM16>, lanes: FragmentLanes<DIM16>) -> Self {
        Self { tile, lanes, in_registers: [[[0; 4]; DIM16]; ROWS16] }
    }

    /// If `Q_IN_REGISTERS` is true, loads the queries from shared memory into registers. Otherwise, this
    /// function does nothing.
    ///
    /// # Safety
    /// The copy of the queries is complete, and a barrier followed.
    #[inline(always)]
    pub unsafe fn hold(&mut self) {
        if Q_IN_REGISTERS {
            for row in 0..ROWS16 {
                for col in 0..DIM16 {
                    // SAFETY: `left` reads the tile of queries. The caller guarantees that the copy to this
                    // tile is complete, and that a barrier followed.
                    self.in_registers[row][col] = unsafe { self.tile.left(&self.lanes, row, col) };
                }
            }
        }
    }

    /// Returns an A operand: the 16 x 16 matrix of queries that starts at row `16 * row` and column
    /// `16 * col`.
    ///
    /// # Safety
    /// The copy of the queries is complete, and a barrier followed.
    #[inline(always)]
    pub unsafe fn get(&self, row: usize, col: usize) -> A {
        if Q_IN_REGISTERS {
            self.in_registers[row][col]
        } else {
            // SAFETY: `left` reads the tile of queries. The caller guarantees that the copy to this tile is
            // complete, and that a barrier followed.
            unsafe { self.tile.left(&self.lanes, row, col) }
        }
    }
}
