//! The products of 16 rows of a warp with tiles of the other side.
use cuda_std::mma::{A, C, MatrixElem};

use crate::attention::Params;
use crate::attention::mask::cap;
use crate::attention::output::Sums;
use crate::attention::softmax::Scores;
use crate::attention::tile::{Lanes, Tile};

/// Scores as powers of two, and what their gradients are multiplied by: the cap's derivative.
#[inline(always)]
pub(super) fn cap_with_slopes<const COLS16: usize>(
    scores: &mut Scores<1, COLS16>,
    p: &Params,
) -> Scores<1, COLS16> {
    cap(scores, p);
    let mut slopes = [[[[1.0; 4]; 2]; COLS16]; 1];
    if p.softcap != 0.0 {
        let inverse = 1.0 / (p.softcap * core::f32::consts::LOG2_E);
        for pair in 0..COLS16 {
            for side in 0..2 {
                for at in 0..4 {
                    let tanh = scores[0][pair][side][at] * inverse;
                    slopes[0][pair][side][at] = 1.0 - tanh * tanh;
                }
            }
        }
    }
    slopes
}

/// `own otherT`, of 16 rows.
///
/// # Safety
/// The tiles have been waited for.
#[inline(always)]
pub(super) unsafe fn product<T: MatrixElem, const DIM16: usize, const COLS16: usize>(
    own: &Tile<T, DIM16>,
    other: &Tile<T, DIM16>,
    lanes: &Lanes<DIM16>,
) -> Scores<1, COLS16> {
    let mut sums = [[[[0.0; 4]; 2]; COLS16]; 1];
    for col in 0..DIM16 {
        // SAFETY: as the caller promises.
        let a = unsafe { own.left(lanes, 0, col) };
        for pair in 0..COLS16 {
            // SAFETY: as the caller promises.
            let b = unsafe { other.columns(lanes, pair, col) };
            for side in 0..2 {
                sums[0][pair][side] = T::mma(a, b[side], sums[0][pair][side]);
            }
        }
    }
    sums
}

/// Two sums side by side as a left matrix, rounded.
#[inline(always)]
pub(super) fn left<T: MatrixElem>([[a, b, c, d], [e, f, g, h]]: &[C; 2]) -> A {
    [T::pair(*a, *b), T::pair(*c, *d), T::pair(*e, *f), T::pair(*g, *h)]
}

/// Adds a left matrix times 16 rows of the other side.
///
/// # Safety
/// The tile has been waited for.
#[inline(always)]
pub(super) unsafe fn accumulate<T: MatrixElem, const DIM16: usize>(
    sums: &mut Sums<1, DIM16>,
    a: A,
    other: &Tile<T, DIM16>,
    lanes: &Lanes<DIM16>,
    row16: usize,
) {
    for col in 0..DIM16 {
        // SAFETY: as the caller promises.
        let b = unsafe { other.rows(lanes, row16, col) };
        for side in 0..2 {
            sums[0][col][side] = T::mma(a, b[side], sums[0][col][side]);
        }
    }
}
