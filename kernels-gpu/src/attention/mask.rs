//! What is done to scores between the product and the softmax.
use core::f32::consts::LOG2_E;

use cuda_std::math::{ex2_ftz, rcp_ftz};
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::Params;
use super::band::Band;
use super::place::Place;
use super::softmax::Scores;

/// A mask that broadcasts against `[B, H, Sq, Sk]`: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The first element.
    pub base: *const u8,
    /// Elements from a batch, head, query and key to the next; 0 where it broadcasts.
    pub strides: [i64; 4],
    /// One of [`Mask::NONE`], [`Mask::BOOL`], [`Mask::F32`], [`Mask::SAME`].
    pub kind: u32,
}

impl Mask {
    /// No mask.
    pub const NONE: u32 = 0;
    /// Bytes: 0 hides a key.
    pub const BOOL: u32 = 1;
    /// Added to scores, f32.
    pub const F32: u32 = 2;
    /// Added to scores, of the element type.
    pub const SAME: u32 = 3;
    /// The mask that is not there.
    pub const ABSENT: Self = Self { base: core::ptr::null(), strides: [0; 4], kind: Self::NONE };
}

/// Where a warp's scores are: those of the keys from `key` on, of the queries from `query` on.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub query: u32,
    pub key: u32,
}

impl At {
    /// The query of the lane's row `half` in the 16 of number `row`.
    #[inline(always)]
    pub fn query(&self, row: usize, half: usize) -> u32 {
        self.query + 16 * row as u32 + 8 * half as u32 + warp::lane() / 4
    }

    /// The key of the lane's first column in the 16 of number `pair`, to the left or right.
    #[inline(always)]
    fn key(&self, pair: usize, side: usize) -> u32 {
        self.key + 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2
    }
}

/// Hides the keys that the queries do not see by their position.
#[inline(always)]
pub(super) fn hide<const ROWS16: usize, const KEYS16: usize>(
    scores: &mut Scores<ROWS16, KEYS16>,
    at: At,
    band: &Band,
) {
    for row in 0..ROWS16 {
        for half in 0..2 {
            let query = at.query(row, half);
            let first = band.first(query);
            let (first, seen) = (first as u32, (band.end(query) - first).max(0) as u32);
            for pair in 0..KEYS16 {
                for side in 0..2 {
                    for odd in 0..2 {
                        let key = at.key(pair, side) + odd as u32;
                        if key.wrapping_sub(first) >= seen {
                            scores[row][pair][side][2 * half + odd] = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

/// Scales and caps scores and adds the mask, as powers of two: `log2(e)` times what the softmax is of.
///
/// # Safety
/// The mask is readable at every query and key of the sequence.
#[inline(always)]
pub(super) unsafe fn adjust<T: MatrixElem, const ROWS16: usize, const KEYS16: usize>(
    scores: &mut Scores<ROWS16, KEYS16>,
    at: At,
    p: &Params,
    place: &Place,
) {
    let (scale, cap) = (p.scale * LOG2_E, p.softcap * LOG2_E);
    if cap == 0.0 {
        each(scores, |score| score * scale);
    } else {
        // tanh(x) = 1 - 2 / (1 + e^2x); `tanh.approx` is off by up to 2^-11.
        let twice = 2.0 * scale / p.softcap;
        each(scores, |score| fma(-2.0 * cap, rcp_ftz(1.0 + ex2_ftz(score * twice)), cap));
    }
    // SAFETY: as the caller promises, of elements of the type that the kind says.
    unsafe {
        match p.mask.kind {
            Mask::BOOL => with_mask::<ROWS16, KEYS16>(scores, at, p, place, 1, |ptr| {
                if mem::load_u8(ptr, Load::Default) == 0 { f32::NEG_INFINITY } else { 0.0 }
            }),
            Mask::F32 => with_mask::<ROWS16, KEYS16>(scores, at, p, place, 4, |ptr| {
                f32::from_bits(mem::load_u32(ptr, Load::Default))
            }),
            Mask::SAME => with_mask::<ROWS16, KEYS16>(scores, at, p, place, 2, |ptr| {
                T::from_bits(u32::from(mem::load_u16(ptr, Load::Default))).to_f32()
            }),
            _ => {}
        }
    }
}

#[inline(always)]
fn each<const ROWS16: usize, const KEYS16: usize>(
    scores: &mut Scores<ROWS16, KEYS16>,
    f: impl Fn(f32) -> f32,
) {
    for pair in scores.as_flattened_mut() {
        for c in pair {
            *c = [f(c[0]), f(c[1]), f(c[2]), f(c[3])];
        }
    }
}

/// Adds what `load` makes of the mask's elements of `size` bytes; where it is the same for all queries, reads it once.
///
/// # Safety
/// As [`adjust`], of such elements.
#[inline(always)]
unsafe fn with_mask<const ROWS16: usize, const KEYS16: usize>(
    scores: &mut Scores<ROWS16, KEYS16>,
    at: At,
    p: &Params,
    place: &Place,
    size: i64,
    load: impl Fn(*const u8) -> f32,
) {
    let [by_batch, by_head, by_query, by_key] = p.mask.strides.map(|stride| stride * size);
    let head = i64::from(place.batch) * by_batch + i64::from(place.head) * by_head;
    // Whatever is read in the place of queries and keys that there are not is hidden, or not stored.
    let line = |row, half| {
        let query = i64::from(at.query(row, half).min(place.queries - 1));
        p.mask.base.wrapping_offset((head + query * by_query) as isize)
    };
    let lines: [[_; 2]; ROWS16] = core::array::from_fn(|row| [line(row, 0), line(row, 1)]);
    for pair in 0..KEYS16 {
        // Else all of the tile's elements are read at once, into registers that there are not.
        warp::sync(warp::ALL);
        for side in 0..2 {
            for odd in 0..2 {
                let key = i64::from((at.key(pair, side) + odd as u32).min(place.keys - 1));
                let mut value = 0.0;
                for row in 0..ROWS16 {
                    for half in 0..2 {
                        if by_query != 0 || row + half == 0 {
                            value = load(lines[row][half].wrapping_offset((key * by_key) as isize));
                        }
                        let score = &mut scores[row][pair][side][2 * half + odd];
                        *score = fma(value, LOG2_E, *score);
                    }
                }
            }
        }
    }
}
