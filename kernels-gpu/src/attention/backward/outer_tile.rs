//! The rows whose gradients a warp gives.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{FragmentLanes, Tile};
use crate::attention::mma::tile_coords::TileCoords;
use crate::attention::mma::window::Window;

/// A warp's `16 ROWS16` rows.
pub(super) struct OuterTile<T, const ROWS16: usize, const DIM16: usize> {
    pub tiles: [Tile<T, DIM16>; 2],
    pub lanes: FragmentLanes<DIM16>,
    pub window: Window,
    /// The first row, and the last that there is.
    pub span: [u32; 2],
    /// `lse` and `delta` of rows `g` and `g + 8` of each 16, if they are queries.
    pub numbers: [[[f32; 2]; 2]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize> OuterTile<T, ROWS16, DIM16> {
    /// The warp's own of the block's rows.
    ///
    /// # Safety
    /// As [`gradients`](super::gradients::gradients).
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
                // SAFETY: it is one of the sequence.
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

/// What the block's rows see, and how many rows there are.
#[inline(always)]
pub(super) fn rows_of<const KEYS: bool>(p: &BackwardParams, coords: &TileCoords) -> (Window, u32) {
    let window = Window::of(coords.queries, coords.keys, p.forward.before, p.forward.after);
    if KEYS { (window.transposed(coords.queries), coords.keys) } else { (window, coords.queries) }
}
