//! Outer-loop tile of the backward pass: the rows whose gradients a warp computes.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{FragmentLanes, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::attention::mma::window::Window;

/// The `16 ROWS16` outer-loop rows of a warp, which are queries or keys.
pub(super) struct OuterTile<T, const ROWS16: usize, const DIM16: usize> {
    /// Two operands in shared memory: keys and values, or queries and dO.
    pub tiles: [Tile<T, DIM16>; 2],
    /// `ldmatrix` offsets of this lane.
    pub lanes: FragmentLanes<DIM16>,
    /// The columns that each row sees.
    pub window: Window,
    /// First row of the warp, and the last row of the warp that exists.
    pub span: [u32; 2],
    /// `lse` and `delta` of rows `g` and `g + 8` of each 16, with `g = lane / 4`. They are 0 if the rows are
    /// keys.
    pub numbers: [[[f32; 2]; 2]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize> OuterTile<T, ROWS16, DIM16> {
    /// Returns this warp's rows of the block's tiles. The sequence has `there` rows.
    ///
    /// # Safety
    /// As for [`gradients`](super::gradients::gradients).
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
                // SAFETY: `query` is less than the number of queries in the sequence.
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

/// Returns the window of the outer-loop rows, and the number of these rows in the sequence.
#[inline(always)]
pub(super) fn rows_of<const KEYS: bool>(p: &BackwardParams, coords: &TileCoords) -> (Window, u32) {
    let window = Window::of(coords.queries, coords.keys, p.forward.before, p.forward.after);
    if KEYS { (window.transposed(coords.queries), coords.keys) } else { (window, coords.queries) }
}
