//! The kernel: the rows of one side against all rows of the other that they see.
use cuda_std::copy;
use cuda_std::math::ex2_ftz;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::delta::statistics;
use super::other::{Other, side};
use super::products::{accumulate, cap_with_slopes, left, product};
use super::{BackwardParams, ROWS};
use crate::attention::band::Band;
use crate::attention::mask::{At, Lines, hide};
use crate::attention::output::{Output, Sums};
use crate::attention::place::Place;
use crate::attention::tile::{Lanes, Tile};
use crate::heads::Heads;

/// A warp's 16 rows.
struct Own<T, const DIM16: usize> {
    tiles: [Tile<T, DIM16>; 2],
    lanes: Lanes<DIM16>,
    band: Band,
    /// The first row, and the last that there is.
    span: [u32; 2],
    /// `lse` and `delta` of rows `g` and `g + 8`, if they are queries.
    numbers: [[f32; 2]; 2],
}

/// Gradients of the rows of one side: of keys if `KEYS`, then `FIRST` gives `dk` and `SECOND` `dv`; else of queries, and
/// `FIRST` gives `dq`.
///
/// # Safety
/// The parameters are those of a launch that the host checked, with [`shared_bytes`](super::shared_bytes).
#[inline(always)]
pub(crate) unsafe fn gradients<
    T: MatrixElem,
    const DIM16: usize,
    const COLS16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    p: BackwardParams,
) {
    // SAFETY: as the caller promises.
    let Some(place) = (unsafe { Place::of_rows(&p.forward, ROWS, KEYS) }) else { return };
    let (band, there) = rows_of::<KEYS>(&p, &place);
    let cols = 16 * COLS16 as u32;
    let begin = band.first(place.first) as u32 / cols;
    // Opaque: of the minimum in it and a maximum LLVM makes an instruction that sm_80 has not.
    let [end, _] = thread::forget([band.end((place.first + ROWS).min(there) - 1) as u32, 0]);
    let tiles = if end as i32 > 0 { end.div_ceil(cols).saturating_sub(begin) } else { 0 };

    let mut memory = SharedMemory::of_launch();
    let tiles_of_rows =
        [Tile::<T, DIM16>::take(&mut memory, ROWS), Tile::<T, DIM16>::take(&mut memory, ROWS)];
    let other = Other::<T, DIM16, KEYS>::take(&mut memory, &p, place, [begin, tiles, cols]);
    if other.steps() > 0 {
        for (copier, to) in side(&p, &place, KEYS, 0).iter().zip(&tiles_of_rows) {
            // SAFETY: the tensors are readable.
            unsafe { copier.copy(to, place.first, ROWS, p.vector != 0) };
        }
        // SAFETY: as above; it is the first step.
        unsafe { other.keep(0, other.begin(0)) };
    }
    copy::wait();
    block::sync();

    // SAFETY: as the caller promises.
    let own = unsafe { own_rows::<T, DIM16, KEYS>(&p, &place, band, there, tiles_of_rows) };
    let mut sums: [Sums<1, DIM16>; 2] = [[[[[0.0; 4]; 2]; DIM16]; 1]; 2];
    for step in 0..other.steps() {
        let more = step + 1 < other.steps();
        // SAFETY: the tensors are readable; the step before this was worked off before the last barrier.
        let next = if more { unsafe { other.begin(step + 1) } } else { [0.0; 2] };
        // SAFETY: all tiles have been waited for; the host checked the mask.
        unsafe { add::<T, DIM16, COLS16, KEYS, FIRST, SECOND>(&mut sums, &own, &other, step) };
        copy::wait();
        // SAFETY: as above.
        unsafe { other.keep(step + 1, next) };
        block::sync();
    }
    // SAFETY: the warp is the only one that used these rows of its tiles, and has done so; the outputs are writable.
    unsafe { write::<T, DIM16, KEYS, FIRST, SECOND>(&p, &place, there, &own, &sums) };
}

/// What the block's rows see, and how many rows there are.
#[inline(always)]
fn rows_of<const KEYS: bool>(p: &BackwardParams, place: &Place) -> (Band, u32) {
    let band = Band::of(place.queries, place.keys, p.forward.before, p.forward.after);
    if KEYS { (band.transposed(place.queries), place.keys) } else { (band, place.queries) }
}

/// The warp's own of the block's rows.
///
/// # Safety
/// As [`gradients`].
#[inline(always)]
unsafe fn own_rows<T: MatrixElem, const DIM16: usize, const KEYS: bool>(
    p: &BackwardParams,
    place: &Place,
    band: Band,
    there: u32,
    tiles: [Tile<T, DIM16>; 2],
) -> Own<T, DIM16> {
    let line = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE * 16, 0);
    let first = place.first + line;
    let mut numbers = [[0.0; 2]; 2];
    for half in 0..2 {
        let query = first + 8 * half as u32 + warp::lane() / 4;
        if !KEYS && query < there {
            // SAFETY: it is one of the sequence.
            numbers[half] = unsafe { statistics(p, place, query) };
        }
    }
    let span = [first, (first + 15).min(there.max(1) - 1)];
    Own { tiles: tiles.map(|tile| tile.at_row(line)), lanes: Lanes::new(), band, span, numbers }
}

/// Adds what the other side's tile of a step gives.
///
/// # Safety
/// All tiles have been waited for; the mask is readable.
#[inline(always)]
unsafe fn add<
    T: MatrixElem,
    const DIM16: usize,
    const COLS16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    sums: &mut [Sums<1, DIM16>; 2],
    own: &Own<T, DIM16>,
    other: &Other<T, DIM16, KEYS>,
    step: u32,
) {
    let ([first, last], (member, col), cols) = (own.span, other.at(step), other.rows);
    if first > last || own.band.hides(own.span, col, cols) {
        return;
    }
    let (f, right) = (&other.p.forward, other.tiles_of(step));
    // Else the places of its rows in the mask stay in registers from step to step.
    let at = At { row: thread::forget([first, 0])[0], col };
    // SAFETY: as the caller promises.
    unsafe {
        let mut scores = product::<T, DIM16, COLS16>(&own.tiles[0], &right[0], &own.lanes);
        let slopes = cap_with_slopes(&mut scores, f);
        Lines::of(&f.mask, &other.place.with_member(member), KEYS).add::<T, 1, COLS16>(&mut scores, at);
        if !own.band.shows(own.span, col, cols) {
            hide(&mut scores, at, &own.band);
        }
        let weight_gradients = product::<T, DIM16, COLS16>(&own.tiles[1], &right[1], &own.lanes);
        for pair in 0..COLS16 {
            let (mut weights, mut gradients) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
            for side in 0..2 {
                for at in 0..4 {
                    let [lse, delta] =
                        if KEYS { other.numbers(step, pair, side, at) } else { own.numbers[at / 2] };
                    let weight = ex2_ftz(scores[0][pair][side][at] - lse);
                    weights[side][at] = weight;
                    gradients[side][at] =
                        weight * (weight_gradients[0][pair][side][at] - delta) * slopes[0][pair][side][at];
                }
            }
            if SECOND {
                accumulate(&mut sums[1], left::<T>(&weights), &right[1], &own.lanes, pair);
            }
            if FIRST {
                accumulate(&mut sums[0], left::<T>(&gradients), &right[0], &own.lanes, pair);
            }
        }
    }
}

/// Writes the gradients.
///
/// # Safety
/// Nobody but the warp uses its rows of its tiles; the outputs are writable.
#[inline(always)]
unsafe fn write<
    T: MatrixElem,
    const DIM16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    p: &BackwardParams,
    place: &Place,
    there: u32,
    own: &Own<T, DIM16>,
    sums: &[Sums<1, DIM16>; 2],
) {
    let f = &p.forward;
    let rows = |heads: &Heads, head: *mut T| Output {
        head,
        stride: heads.token_stride,
        first: own.span[0],
        rows: there,
        dim: f.dim,
        vector: p.vector != 0,
    };
    // SAFETY: as the caller promises.
    unsafe {
        if KEYS && SECOND {
            rows(&p.dv, place.key(&p.dv, f.group)).write(&own.tiles[1], &sums[1], &[[1.0; 2]]);
        }
        if KEYS && FIRST {
            rows(&p.dk, place.key(&p.dk, f.group)).write(&own.tiles[0], &sums[0], &[[f.scale; 2]]);
        }
        if !KEYS {
            rows(&p.dq, place.query(&p.dq)).write(&own.tiles[0], &sums[0], &[[f.scale; 2]]);
        }
    }
}
