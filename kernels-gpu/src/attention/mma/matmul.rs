//! The products of a warp's rows with tiles.
use cuda_std::mma::{A, MatrixElem};

use super::output::Accumulator;
use super::q_fragments::Queries;
use super::softmax::Scores;
use super::tile::{FragmentLanes, Tile};

/// `a bT`: the scores, where these are queries and keys. Behind the products with each matrix of `b` comes `operands`, with the
/// number of them so far less one.
///
/// # Safety
/// Both have been waited for.
#[inline(always)]
pub(crate) unsafe fn products<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const KEYS16: usize,
    const Q_IN_REGISTERS: bool,
>(
    queries: &Queries<T, ROWS16, DIM16, Q_IN_REGISTERS>,
    keys: &Tile<T, DIM16>,
    lanes: &FragmentLanes<DIM16>,
    mut operands: impl FnMut(usize),
) -> Scores<ROWS16, KEYS16> {
    let mut scores = [[[[0.0; 4]; 2]; KEYS16]; ROWS16];
    // SAFETY: as the caller promises.
    let left = |col| -> [_; ROWS16] { core::array::from_fn(|row| unsafe { queries.get(row, col) }) };
    // SAFETY: as the caller promises.
    let right = |at: usize| unsafe { keys.columns(lanes, at % KEYS16, at / KEYS16) };
    // Each matrix is read a step before it is wanted.
    let (mut a, mut b) = (left(0), right(0));
    for col in 0..DIM16 {
        let next_a = if col + 1 < DIM16 { left(col + 1) } else { a };
        for pair in 0..KEYS16 {
            let next = col * KEYS16 + pair + 1;
            let next_b = if next < DIM16 * KEYS16 { right(next) } else { b };
            for row in 0..ROWS16 {
                for side in 0..2 {
                    scores[row][pair][side] = T::mma(a[row], b[side], scores[row][pair][side]);
                }
            }
            b = next_b;
            operands(next - 1);
        }
        a = next_a;
    }
    scores
}

/// Adds left matrices times rows `16 step` to `16 step + 15` of a tile.
///
/// # Safety
/// It has been waited for.
#[inline(always)]
pub(crate) unsafe fn add_product<T: MatrixElem, const ROWS16: usize, const DIM16: usize>(
    sums: &mut Accumulator<ROWS16, DIM16>,
    a: [A; ROWS16],
    right: &Tile<T, DIM16>,
    lanes: &FragmentLanes<DIM16>,
    step: usize,
) {
    for col in 0..DIM16 {
        // SAFETY: as the caller promises.
        let b = unsafe { right.rows(lanes, step, col) };
        for row in 0..ROWS16 {
            for side in 0..2 {
                sums[row][col][side] = T::mma(a[row], b[side], sums[row][col][side]);
            }
        }
    }
}

/// Adds the left matrices of all steps times the rows of a tile, each read two products before it is wanted; `operands` as in
/// [`products`].
///
/// # Safety
/// It has been waited for.
#[inline(always)]
pub(crate) unsafe fn add_products<
    T: MatrixElem,
    const ROWS16: usize,
    const DIM16: usize,
    const STEPS: usize,
>(
    sums: &mut Accumulator<ROWS16, DIM16>,
    mut left: impl FnMut(usize) -> [A; ROWS16],
    right: &Tile<T, DIM16>,
    lanes: &FragmentLanes<DIM16>,
    mut operands: impl FnMut(usize),
) {
    // SAFETY: as the caller promises.
    let read = |at: usize| unsafe { right.rows(lanes, at / DIM16, at % DIM16) };
    let mut ahead = [read(0), read(1)];
    for step in 0..STEPS {
        let a = left(step);
        for col in 0..DIM16 {
            let at = step * DIM16 + col;
            let b = ahead[at % 2];
            for row in 0..ROWS16 {
                for side in 0..2 {
                    sums[row][col][side] = T::mma(a[row], b[side], sums[row][col][side]);
                }
            }
            if at + 2 < STEPS * DIM16 {
                ahead[at % 2] = read(at + 2);
            }
            operands(at);
        }
    }
}
