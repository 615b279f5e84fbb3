//! The two matrix multiplications of attention, QKᵀ and PV. Each function multiplies the rows of one warp by
//! a tile in shared memory.
use cuda_std::mma::{A, MatrixElem};

use super::output::Accumulator;
use super::q_fragments::Queries;
use super::softmax::Scores;
use super::tile::{FragmentLanes, Tile};

/// Returns QKᵀ: the scores of the warp's queries for a tile of keys. The function processes the tile in 16 x
/// 16 matrices. After the MMAs with matrix number `i`, it calls the callback `operands(i)`, in which the
/// caller can issue copies.
///
/// # Safety
/// The copies of queries and keys to shared memory are complete, and a barrier followed.
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
    // SAFETY: `get` reads the tile of queries. The caller guarantees that the copy to this tile is complete,
    // and that a barrier followed.
    let left = |col| -> [_; ROWS16] { core::array::from_fn(|row| unsafe { queries.get(row, col) }) };
    // SAFETY: `columns` reads the tile of keys. The caller guarantees that the copy to this tile is complete,
    // and that a barrier followed.
    let right = |at: usize| unsafe { keys.columns(lanes, at % KEYS16, at / KEYS16) };
    // Read each matrix from shared memory one step before the MMAs that use it, so that reads and MMAs
    // overlap.
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

/// Multiplies the A operands `a` by 16 rows of the tile `right`, from row `16 * step` on. Adds the product to
/// `sums`.
///
/// # Safety
/// The copy of `right` to shared memory is complete, and a barrier followed.
#[inline(always)]
pub(crate) unsafe fn add_product<T: MatrixElem, const ROWS16: usize, const DIM16: usize>(
    sums: &mut Accumulator<ROWS16, DIM16>,
    a: [A; ROWS16],
    right: &Tile<T, DIM16>,
    lanes: &FragmentLanes<DIM16>,
    step: usize,
) {
    for col in 0..DIM16 {
        // SAFETY: `rows` reads the tile `right`. The caller guarantees that the copy to this tile is
        // complete, and that a barrier followed.
        let b = unsafe { right.rows(lanes, step, col) };
        for row in 0..ROWS16 {
            for side in 0..2 {
                sums[row][col][side] = T::mma(a[row], b[side], sums[row][col][side]);
            }
        }
    }
}

/// Multiplies the A operands `left(0)` to `left(STEPS - 1)` by the tile `right`, and adds the product to
/// `sums`. The function processes the tile in 16 x 16 matrices. After the MMAs with matrix number `i`, it
/// reads matrix `i + 2` from shared memory. Then it calls the callback `operands(i)`, in which the caller can
/// issue copies.
///
/// # Safety
/// The copy of `right` to shared memory is complete, and a barrier followed.
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
    // SAFETY: `rows` reads the tile `right`. The caller guarantees that the copy to this tile is complete,
    // and that a barrier followed.
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
