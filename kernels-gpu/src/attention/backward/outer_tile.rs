//! Outer-loop tile of the attention backward pass. The rows of this tile are the queries or keys whose
//! gradients a block computes. The block keeps this tile in shared memory while it loops over tiles of the
//! other operands.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{FragmentLanes, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::attention::mma::window::Window;

/// One warp's share of an outer-loop tile: `16 * ROWS16` consecutive rows, which are queries or keys.
pub(super) struct OuterTile<T, const ROWS16: usize, const DIM16: usize> {
    /// The warp's rows of two tiles in shared memory. If the block computes gradients of keys and values,
    /// these are a tile of keys and a tile of values. If it computes gradients of queries, they are a tile of
    /// queries and a tile of dO.
    pub tiles: [Tile<T, DIM16>; 2],
    /// Offsets from which this lane computes its addresses for `ldmatrix`.
    pub lanes: FragmentLanes<DIM16>,
    /// Sliding window: the range of visible columns for each row.
    pub window: Window,
    /// Indices in the sequence of the warp's first row and of its last row that exists.
    pub span: [u32; 2],
    /// The statistics `[lse, delta]` (log-sum-exp, and sum of `dO * O`) of this lane's accumulator rows. In
    /// each block of 16 rows, a lane has elements of the rows `g` and `g + 8`, with `g = lane / 4`. All
    /// statistics are 0 if the rows are keys.
    pub numbers: [[[f32; 2]; 2]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize> OuterTile<T, ROWS16, DIM16> {
    /// Returns this warp's rows of the tile whose gradients the block computes. `there` is the number of
    /// queries in the sequence, or the number of keys if `KEYS` is true.
    ///
    /// # Safety
    /// The host validated the kernel argument `p` for this launch.
    #[inline(always)]
    pub unsafe fn of<const KEYS: bool>(
        p: &BackwardParams,
        coords: &TileCoords,
        window: Window,
        there: u32,
        tiles: [Tile<T, DIM16>; 2],
    ) -> Self {
        let count = 16 * ROWS16 as u32;
        let line = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE * count, 0);
        let first = coords.first + line;
        let mut numbers = [[[0.0; 2]; 2]; ROWS16];
        for row in 0..2 * ROWS16 {
            let query = first + 8 * row as u32 + warp::lane() / 4;
            if !KEYS && query < there {
                // SAFETY: the function `statistics` requires that `query` is less than the number of queries
                // in the sequence. The condition above checked this.
                numbers[row / 2][row % 2] = unsafe { statistics(p, coords, query) };
            }
        }
        let span = [first, (first + count - 1).min(there.max(1) - 1)];
        Self {
            tiles: tiles.map(|tile| tile.at_row(line)),
            lanes: FragmentLanes::new(),
            window,
            span,
            numbers,
        }
    }
}

/// Returns the sliding window, and the number of rows in the sequence. Rows are keys if `KEYS` is true,
/// otherwise queries.
#[inline(always)]
pub(super) fn rows_of<const KEYS: bool>(p: &BackwardParams, coords: &TileCoords) -> (Window, u32) {
    let window = Window::of(coords.queries, coords.keys, p.forward.before, p.forward.after);
    if KEYS { (window.transposed(coords.queries), coords.keys) } else { (window, coords.queries) }
}
