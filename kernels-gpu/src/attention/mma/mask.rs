//! Operations on attention scores between QKᵀ and the softmax: scale, softcap, mask and sliding window.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{AttentionParams, Mask};
use super::softmax::Scores;
use super::tile_coords::TileCoords;
use super::window::Window;

/// The row and the column at which a warp's scores start in the score matrix. The rows are queries and the
/// columns are keys, except in the backward kernels for dK and dV, which use the transposed matrix.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub row: u32,
    pub col: u32,
}

impl At {
    /// Returns the index of one of this lane's rows of the score matrix. The warp's rows are divided into
    /// blocks of 16, and `row` is the number of a block. In each block, the lane has elements of two rows.
    /// `half` selects the one in the upper (0) or in the lower (1) 8 rows.
    #[inline(always)]
    pub fn row(&self, row: usize, half: usize) -> u32 {
        self.row + 16 * row as u32 + 8 * half as u32 + warp::lane() / 4
    }

    /// Returns the index of one of this lane's columns of the score matrix. The columns are divided into
    /// blocks of 16, and `pair` is the number of a block. `side` selects the left (0) or the right (1) 8
    /// columns of the block. The lane has two adjacent columns among them, and the result is the first one.
    #[inline(always)]
    pub fn col(&self, pair: usize, side: usize) -> u32 {
        self.col + 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2
    }
}

/// Sets the scores outside the sliding window to minus infinity.
#[inline(always)]
pub(crate) fn hide<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    at: At,
    window: &Window,
) {
    for row in 0..ROWS16 {
        for half in 0..2 {
            let line = at.row(row, half);
            let first = window.first(line);
            let (first, seen) = (first as u32, (window.end(line) - first).max(0) as u32);
            for pair in 0..COLS16 {
                for side in 0..2 {
                    for odd in 0..2 {
                        let col = at.col(pair, side) + odd as u32;
                        if col.wrapping_sub(first) >= seen {
                            scores[row][pair][side][2 * half + odd] = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

/// Multiplies the scores by the scale, applies the softcap, and multiplies the results by `log2(e)`, so that
/// the softmax can compute `exp2` instead of `exp`.
#[inline(always)]
pub(crate) fn cap<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    p: &AttentionParams,
) {
    let (scale, cap) = (p.scale * LOG2_E, p.softcap * LOG2_E);
    if cap == 0.0 {
        each(scores, |score| score * scale);
    } else {
        // Compute tanh(x) as 1 - 2 / (1 + e^2x). The instruction `tanh.approx` would have an error of up to
        // 2^-11.
        let twice = 2.0 * scale / p.softcap;
        each(scores, |score| fma(-2.0 * cap, rcp_ftz(1.0 + ex2_ftz(score * twice)), cap));
    }
}

/// Applies `f` to every score.
#[inline(always)]
pub(crate) fn each<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    f: impl Fn(f32) -> f32,
) {
    for pair in scores.as_flattened_mut() {
        for c in pair {
            *c = [f(c[0]), f(c[1]), f(c[2]), f(c[3])];
        }
    }
}

/// Lower limit for the value that a kernel adds to a score for a finite mask element. The limit is so small
/// in magnitude that its product with `log2(e)` is still finite.
///
/// Some masks contain the most negative f32 or bf16 number instead of minus infinity. If such a mask hides
/// all keys of a row, the limit makes all scores of the row equal and finite. The result of the row is then
/// the mean of all rows of V, as in torch.
const MIN: f32 = -2.3e38;

/// Returns the value that the caller adds to a score for the mask element `element`: `element * unscale`.
/// After the addition, the caller multiplies the score by `1 / unscale`. For a finite `element`, the result
/// is limited, so that the score does not become minus infinity.
#[inline(always)]
pub(crate) fn addend(element: f32, unscale: f32) -> f32 {
    let addend = element * unscale;
    let min = (MIN * unscale).max(-f32::MAX);
    if addend < min && element != f32::NEG_INFINITY { min } else { addend }
}

/// The mask of one head as a matrix, with the same rows and columns as the score matrix. The rows are queries
/// and the columns are keys, except in the backward kernels for dK and dV, which use the transposed matrix.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    base: *const u8,
    /// One of the constants of [`Mask`].
    kind: u32,
    /// Offset of this head's matrix from the start of the mask tensor, in elements.
    head: i64,
    /// Distance from one row to the next, in elements. The distance is 0 if the mask broadcasts over rows.
    by_row: i64,
    /// Distance from one column to the next, in elements. The distance is 0 if the mask broadcasts over
    /// columns.
    by_col: i64,
    /// Number of rows in the sequence.
    rows: u32,
    /// Number of columns in the sequence.
    cols: u32,
}

impl Lines {
    /// Returns the mask matrix for the batch `coords.batch` and the head `coords.head`. The rows of the
    /// matrix are keys if `keys` is true, otherwise queries.
    #[inline(always)]
    pub fn of(mask: &Mask, coords: &TileCoords, keys: bool) -> Self {
        let [by_batch, by_head, by_query, by_key] = mask.strides;
        let head = i64::from(coords.batch) * by_batch + i64::from(coords.head) * by_head;
        let (queries, keys_there) = ((by_query, coords.queries), (by_key, coords.keys));
        let ((by_row, rows), (by_col, cols)) =
            if keys { (keys_there, queries) } else { (queries, keys_there) };
        Self { base: mask.base, kind: mask.kind, head, by_row, by_col, rows, cols }
    }

    /// Adds the mask to the scores of one tile, which starts at row `at.row` and column `at.col`. The caller
    /// has already multiplied the scores by `log2(e)`, so this function multiplies the mask values by
    /// `log2(e)`, too.
    ///
    /// # Safety
    /// The mask is readable at every row and column of the sequence.
    #[inline(always)]
    pub unsafe fn add<T: MatrixElem, const ROWS16: usize, const COLS16: usize>(
        &self,
        scores: &mut Scores<ROWS16, COLS16>,
        at: At,
    ) {
        // SAFETY: the loads read mask elements of existing rows and columns, which the caller guarantees to
        // be readable. Each branch reads exactly the bytes of one element of its mask type.
        unsafe {
            match self.kind {
                Mask::BOOL => self.add_elements(scores, at, 1, |ptr| {
                    if mem::load_u8(ptr, Load::Default) == 0 { f32::NEG_INFINITY } else { 0.0 }
                }),
                Mask::F32 => self.add_elements(scores, at, 4, |ptr| {
                    addend(f32::from_bits(mem::load_u32(ptr, Load::Default)), 1.0)
                }),
                Mask::SAME => self.add_elements(scores, at, 2, |ptr| {
                    addend(T::from_bits(u32::from(mem::load_u16(ptr, Load::Default))).to_f32(), 1.0)
                }),
                _ => {}
            }
        }
    }

    /// Adds one mask element, multiplied by `log2(e)`, to each score. A mask element has `size` bytes, and
    /// the callback `load` reads the mask element at an address. If the mask broadcasts over rows, a thread
    /// reads one element per column and uses it for all its rows.
    ///
    /// # Safety
    /// The mask is readable at every row and column of the sequence, and its elements have `size` bytes.
    #[inline(always)]
    unsafe fn add_elements<const ROWS16: usize, const COLS16: usize>(
        &self,
        scores: &mut Scores<ROWS16, COLS16>,
        at: At,
        size: i64,
        load: impl Fn(*const u8) -> f32,
    ) {
        // Clamp rows and columns to the sequence, so that all reads are inside the mask. Scores outside the
        // sequence do not affect the results, so any mask value is correct for them.
        let line = |row, half| {
            let row = i64::from(at.row(row, half).min(self.rows - 1));
            self.base.wrapping_offset(((self.head + row * self.by_row) * size) as isize)
        };
        let lines: [[_; 2]; ROWS16] = core::array::from_fn(|row| [line(row, 0), line(row, 1)]);
        for pair in 0..COLS16 {
            // Without this warp barrier, the compiler would load all mask elements of the tile before it uses
            // the first one. These elements would need more registers than a thread has.
            warp::sync(warp::ALL);
            for side in 0..2 {
                for odd in 0..2 {
                    let col = i64::from((at.col(pair, side) + odd as u32).min(self.cols - 1));
                    let mut value = 0.0;
                    for row in 0..ROWS16 {
                        for half in 0..2 {
                            if self.by_row != 0 || row + half == 0 {
                                let offset = (col * self.by_col * size) as isize;
                                value = load(lines[row][half].wrapping_offset(offset));
                            }
                            let score = &mut scores[row][pair][side][2 * half + odd];
                            *score = fma(value, LOG2_E, *score);
                        }
                    }
                }
            }
        }
    }
}
