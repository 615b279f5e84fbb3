//! What is done to scores between the product and the softmax.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{AttentionParams, Mask};
use super::softmax::Scores;
use super::tile_coords::TileCoords;
use super::window::Window;

/// Where a warp's scores are: those of rows from `row` on and columns from `col` on. Rows are queries and
/// columns keys, or the other way round.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub row: u32,
    pub col: u32,
}

impl At {
    /// The lane's row `half` in the 16 of number `row`.
    #[inline(always)]
    pub fn row(&self, row: usize, half: usize) -> u32 {
        self.row + 16 * row as u32 + 8 * half as u32 + warp::lane() / 4
    }

    /// The lane's first column in the 16 of number `pair`, to the left or right.
    #[inline(always)]
    pub fn col(&self, pair: usize, side: usize) -> u32 {
        self.col + 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2
    }
}

/// Hides the scores that `window` does not have.
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

/// Scales and caps scores, as powers of two: `log2(e)` times what the softmax is of, without the mask.
#[inline(always)]
pub(crate) fn cap<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    p: &AttentionParams,
) {
    let (scale, cap) = (p.scale * LOG2_E, p.softcap * LOG2_E);
    if cap == 0.0 {
        each(scores, |score| score * scale);
    } else {
        // tanh(x) = 1 - 2 / (1 + e^2x); `tanh.approx` is off by up to 2^-11.
        let twice = 2.0 * scale / p.softcap;
        each(scores, |score| fma(-2.0 * cap, rcp_ftz(1.0 + ex2_ftz(score * twice)), cap));
    }
}

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

/// The least that is added: times log2(e) it is still finite. A row in which every key has a mask's finite
/// minimum then is the mean of all values, as torch's is.
const MIN: f32 = -2.3e38;

/// What is added for a mask's element to scores that are multiplied by `1 / unscale` later: finite where that
/// is.
#[inline(always)]
pub(crate) fn addend(element: f32, unscale: f32) -> f32 {
    let addend = element * unscale;
    let min = (MIN * unscale).max(-f32::MAX);
    if addend < min && element != f32::NEG_INFINITY { min } else { addend }
}

/// The mask of one head, for scores whose rows are queries, or keys.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    base: *const u8,
    kind: u32,
    /// Elements before the head, from a row to the next, and from a column to the next.
    head: i64,
    by_row: i64,
    by_col: i64,
    /// How many there are.
    rows: u32,
    cols: u32,
}

impl Lines {
    /// Rows are queries unless they are `keys`.
    #[inline(always)]
    pub fn of(mask: &Mask, coords: &TileCoords, keys: bool) -> Self {
        let [by_batch, by_head, by_query, by_key] = mask.strides;
        let head = i64::from(coords.batch) * by_batch + i64::from(coords.head) * by_head;
        let (queries, keys_there) = ((by_query, coords.queries), (by_key, coords.keys));
        let ((by_row, rows), (by_col, cols)) =
            if keys { (keys_there, queries) } else { (queries, keys_there) };
        Self { base: mask.base, kind: mask.kind, head, by_row, by_col, rows, cols }
    }

    /// Adds the mask to scores that are powers of two.
    ///
    /// # Safety
    /// The mask is readable at every row and column.
    #[inline(always)]
    pub unsafe fn add<T: MatrixElem, const ROWS16: usize, const COLS16: usize>(
        &self,
        scores: &mut Scores<ROWS16, COLS16>,
        at: At,
    ) {
        // SAFETY: as the caller promises, of elements of the type that the kind says.
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

    /// Adds what `load` makes of elements of `size` bytes; where they are the same for all rows, reads them
    /// once.
    ///
    /// # Safety
    /// As [`Lines::add`], of such elements.
    #[inline(always)]
    unsafe fn add_elements<const ROWS16: usize, const COLS16: usize>(
        &self,
        scores: &mut Scores<ROWS16, COLS16>,
        at: At,
        size: i64,
        load: impl Fn(*const u8) -> f32,
    ) {
        // Whatever is read in the place of rows and columns that there are not is hidden, or not stored.
        let line = |row, half| {
            let row = i64::from(at.row(row, half).min(self.rows - 1));
            self.base.wrapping_offset(((self.head + row * self.by_row) * size) as isize)
        };
        let lines: [[_; 2]; ROWS16] = core::array::from_fn(|row| [line(row, 0), line(row, 1)]);
        for pair in 0..COLS16 {
            // Else all of the tile's elements are read at once, into registers that there are not.
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
