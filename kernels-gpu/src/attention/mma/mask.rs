//! Scale, softcap, mask and sliding window, applied to scores between QKᵀ and the softmax.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{AttentionParams, Mask};
use super::softmax::Scores;
use super::tile_coords::TileCoords;
use super::window::Window;

/// Position of a warp's scores: first row and first column. Rows are queries and columns are keys, or the
/// reverse in the backward pass for keys.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub row: u32,
    pub col: u32,
}

impl At {
    /// Returns the row of the score matrix that this lane has in the MMA tile number `row` of 16 rows: the
    /// row in the tile's upper 8 rows for `half` 0, in its lower 8 rows for `half` 1.
    #[inline(always)]
    pub fn row(&self, row: usize, half: usize) -> u32 {
        self.row + 16 * row as u32 + 8 * half as u32 + warp::lane() / 4
    }

    /// First column of this lane in 8-column half `side` of 16-column block `pair`.
    #[inline(always)]
    pub fn col(&self, pair: usize, side: usize) -> u32 {
        self.col + 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2
    }
}

/// Sets scores outside the window to minus infinity.
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

/// Applies scale and softcap, and multiplies the scores by `log2(e)`. The softmax then uses base-2 exponents.
#[inline(always)]
pub(crate) fn cap<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    p: &AttentionParams,
) {
    let (scale, cap) = (p.scale * LOG2_E, p.softcap * LOG2_E);
    if cap == 0.0 {
        each(scores, |score| score * scale);
    } else {
        // tanh(x) = 1 - 2 / (1 + e^2x). The instruction `tanh.approx` has an error of up to 2^-11.
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

/// Smallest finite addend. Its product with `log2(e)` is finite. If a mask hides all keys of a row with a
/// finite minimum, the result is the mean of all values, as in torch.
const MIN: f32 = -2.3e38;

/// Returns the addend of mask element `element` for scores that are later multiplied by `1 / unscale`. The
/// addend of a finite negative element is finite.
#[inline(always)]
pub(crate) fn addend(element: f32, unscale: f32) -> f32 {
    let addend = element * unscale;
    let min = (MIN * unscale).max(-f32::MAX);
    if addend < min && element != f32::NEG_INFINITY { min } else { addend }
}

/// The mask of one head. Its rows are queries and its columns are keys, or the reverse.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    base: *const u8,
    /// One of the constants of [`Mask`].
    kind: u32,
    /// Elements before the head in the mask.
    head: i64,
    /// Elements from one row to the next; 0 if the mask broadcasts.
    by_row: i64,
    /// Elements from one column to the next; 0 if the mask broadcasts.
    by_col: i64,
    /// Number of rows in the sequence.
    rows: u32,
    /// Number of columns in the sequence.
    cols: u32,
}

impl Lines {
    /// Creates the view for the head of `coords`. If `keys`, rows are keys, otherwise queries.
    #[inline(always)]
    pub fn of(mask: &Mask, coords: &TileCoords, keys: bool) -> Self {
        let [by_batch, by_head, by_query, by_key] = mask.strides;
        let head = i64::from(coords.batch) * by_batch + i64::from(coords.head) * by_head;
        let (queries, keys_there) = ((by_query, coords.queries), (by_key, coords.keys));
        let ((by_row, rows), (by_col, cols)) =
            if keys { (keys_there, queries) } else { (queries, keys_there) };
        Self { base: mask.base, kind: mask.kind, head, by_row, by_col, rows, cols }
    }

    /// Adds the mask to scores that are base-2 exponents.
    ///
    /// # Safety
    /// The mask is readable at every row and column of the sequence.
    #[inline(always)]
    pub unsafe fn add<T: MatrixElem, const ROWS16: usize, const COLS16: usize>(
        &self,
        scores: &mut Scores<ROWS16, COLS16>,
        at: At,
    ) {
        // SAFETY: the caller guarantees a readable mask; each branch reads the element size of its kind.
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

    /// Adds `load(element)` for each mask element. `size` is the element size in bytes. If all rows share the
    /// same elements, it reads each element once.
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
        // Clamp rows and columns to the sequence. Scores outside are hidden or not stored, so their addends
        // do not matter.
        let line = |row, half| {
            let row = i64::from(at.row(row, half).min(self.rows - 1));
            self.base.wrapping_offset(((self.head + row * self.by_row) * size) as isize)
        };
        let lines: [[_; 2]; ROWS16] = core::array::from_fn(|row| [line(row, 0), line(row, 1)]);
        for pair in 0..COLS16 {
            // Without this barrier, the compiler loads all elements of the tile at once, and registers run
            // out.
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
