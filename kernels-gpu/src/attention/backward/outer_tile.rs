//! The rows whose gradients a warp gives.
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::delta::statistics;
use super::params::BackwardParams;
use crate::attention::mma::tile::{Lanes, Tile};
use crate::attention::mma::tile_coords::Place;
use crate::attention::mma::window::Band;

/// A warp's `16 ROWS16` rows.
pub(super) struct Own<T, const ROWS16: usize, const DIM16: usize> {
    pub tiles: [Tile<T, DIM16>; 2],
    pub lanes: Lanes<DIM16>,
    pub band: Band,
    /// The first row, and the last that there is.
    pub span: [u32; 2],
    /// `lse` and `delta` of rows `g` and `g + 8` of each 16, if they are queries.
    pub numbers: [[[f32; 2]; 2]; ROWS16],
}

impl<T: MatrixElem, const ROWS16: usize, const DIM16: usize> Own<T, ROWS16, DIM16> {
    /// The warp's own of the block's rows.
    ///
    /// # Safety
    /// As [`gradients`](super::gradients::gradients).
    #[inline(always)]
    pub unsafe fn of<const KEYS: bool>(
        p: &BackwardParams,
        place: &Place,
        band: Band,
        there: u32,
        tiles: [Tile<T, DIM16>; 2],
    ) -> Self {
        let count = 16 * ROWS16 as u32;
        let line = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE * count, 0);
        let first = place.first + line;
        let mut numbers = [[[0.0; 2]; 2]; ROWS16];
        for row in 0..2 * ROWS16 {
            let query = first + 8 * row as u32 + warp::lane() / 4;
            if !KEYS && query < there {
                // SAFETY: it is one of the sequence.
                numbers[row / 2][row % 2] = unsafe { statistics(p, place, query) };
            }
        }
        let span = [first, (first + count - 1).min(there.max(1) - 1)];
        Self { tiles: tiles.map(|tile| tile.at_row(line)), lanes: Lanes::new(), band, span, numbers }
    }
}

/// What the block's rows see, and how many rows there are.
#[inline(always)]
pub(super) fn rows_of<const KEYS: bool>(p: &BackwardParams, place: &Place) -> (Band, u32) {
    let band = Band::of(place.queries, place.keys, p.forward.before, p.forward.after);
    if KEYS { (band.transposed(place.queries), place.keys) } else { (band, place.queries) }
}
