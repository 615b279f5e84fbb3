//! Gradients: `dv = pT do`, `ds = p * (do vT - delta)`, `dq = scale ds k`, `dk = scale dsT q`, with the weights `p` worked
//! out again from the scores and `lse`, and `delta` the sum of `do * out` over a query's columns (arXiv:2307.08691).
//!
//! A block has the rows of one side, queries or keys, and goes over the tiles of the other: with queries it gets `dq`, with
//! keys `dk` and `dv`, of all heads that share them. Both multiply the same way, so there is one kernel: two products give
//! scores and gradients of weights, from which come the left matrices of one or two more. No atomics: the sums have one
//! order, and the same bits every time. It costs two products more than a kernel for both sides would need.
use cuda_std::copy;
use cuda_std::math::ex2_ftz;
use cuda_std::mem;
use cuda_std::mma::{A, C, MatrixElem};
use cuda_std::prelude::*;

use super::band::Band;
use super::mask::{At, Lines, cap, hide};
use super::output::{Output, Sums};
use super::place::Place;
use super::softmax::Scores;
use super::tile::{Copier, Lanes, Tile};
use super::{Params, WARPS};
use crate::heads::Heads;

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackwardParams {
    /// The forward launch's, with its results; `tiles` are those of the side whose gradients are wanted.
    pub forward: Params,
    /// The gradient of the result.
    pub dout: Heads,
    /// Those of queries, keys and values.
    pub dq: Heads,
    /// As `k`.
    pub dk: Heads,
    /// As `v`.
    pub dv: Heads,
    /// The sum of `dout * out` over the columns, as `lse`.
    pub delta: *mut f32,
    /// May all heads be accessed 16 bytes at a time?
    pub vector: u32,
}

/// Rows of a block: 16 for each warp.
pub const ROWS: u32 = 16 * WARPS;

/// Shared memory of a block, in bytes: two tiles of its rows, two buffers of two tiles of the other side's, and of two
/// numbers for each of these rows.
pub const fn shared_bytes(dim16: usize, cols16: usize) -> u32 {
    let cols = 16 * cols16 as u32;
    (2 * ROWS + 4 * cols) * (2 * dim16 as u32 + 1) * 16 + 4 * cols * 4
}

/// `lse` as a power of two, and `delta`, of a query; 0 for `lse` where no key was seen: all weights are 0 then.
///
/// # Safety
/// The query is one of the sequence.
#[inline(always)]
unsafe fn statistics(p: &BackwardParams, place: &Place, query: u32) -> [f32; 2] {
    let at = place.number(&p.forward, query);
    // SAFETY: as the caller promises: the host checked that there is one for each query.
    let read = |numbers: *mut f32| unsafe {
        f32::from_bits(mem::load_u32(numbers.wrapping_add(at).cast_const().cast(), Load::Default))
    };
    let lse = read(p.forward.lse);
    let lse = if lse == f32::NEG_INFINITY { 0.0 } else { lse * core::f32::consts::LOG2_E };
    [lse, read(p.delta)]
}

/// Gradients of the rows of one side: of keys if `KEYS`, then `FIRST` gives `dk` and `SECOND` `dv`; else of queries, and
/// `FIRST` gives `dq`.
///
/// # Safety
/// The parameters are those of a launch that the host checked, with [`shared_bytes`].
#[inline(always)]
pub(crate) unsafe fn backward<
    T: MatrixElem,
    const DIM16: usize,
    const COLS16: usize,
    const KEYS: bool,
    const FIRST: bool,
    const SECOND: bool,
>(
    p: BackwardParams,
) {
    let (f, cols, vector) = (&p.forward, 16 * COLS16 as u32, p.vector != 0);
    // SAFETY: as the caller promises.
    let Some(place) = (unsafe { Place::of_rows(f, ROWS, KEYS) }) else { return };
    let band = Band::of(place.queries, place.keys, f.before, f.after);
    let (band, there) =
        if KEYS { (band.transposed(place.queries), place.keys) } else { (band, place.queries) };
    let begin = band.first(place.first) as u32 / cols;
    // Opaque: of the minimum in it and a maximum LLVM makes an instruction that sm_80 has not.
    let [end, _] = thread::forget([band.end((place.first + ROWS).min(there) - 1) as u32, 0]);
    let tiles = if end as i32 > 0 { end.div_ceil(cols).saturating_sub(begin) } else { 0 };
    let steps = tiles * if KEYS { f.group } else { 1 };

    let mut memory = SharedMemory::of_launch();
    let own = [Tile::<T, DIM16>::take(&mut memory, ROWS), Tile::<T, DIM16>::take(&mut memory, ROWS)];
    let other =
        [Tile::<T, DIM16>::take(&mut memory, 2 * cols), Tile::<T, DIM16>::take(&mut memory, 2 * cols)];
    let numbers = memory.take::<f32>(4 * cols);
    let lanes = Lanes::new();
    // Of a query's tensors the head is a member of the group that shares a key's.
    let side = |keys: bool, member: u32| -> [Copier<T, DIM16>; 2] {
        let place = place.with_member(member);
        let of_query = |heads: &Heads| (place.query(heads), heads.token_stride, place.queries);
        let of_key = |heads: &Heads| (place.key(heads, f.group), heads.token_stride, place.keys);
        let pair = if keys { [of_key(&f.k), of_key(&f.v)] } else { [of_query(&f.q), of_query(&p.dout)] };
        pair.map(|(head, stride, rows)| Copier::of(head, stride, rows, f.dim))
    };
    let at = |step: u32| (step / tiles.max(1), begin + step % tiles.max(1));
    // SAFETY: the tensors are readable; of two buffers, the one that is copied to was used up before the last barrier.
    let copy_step = |step: u32| unsafe {
        let (member, tile) = at(step);
        for (copier, to) in side(!KEYS, member).iter().zip(&other) {
            copier.copy(&to.at_row(step % 2 * cols), tile * cols, cols, vector);
        }
    };
    // The numbers of a step's queries, one of each for a thread.
    let numbers_of = |step: u32| {
        let (member, tile) = at(step);
        let query = tile * cols + thread::index()[0];
        if !KEYS || thread::index()[0] >= cols || query >= place.queries {
            return [0.0; 2];
        }
        // SAFETY: it is one of the sequence.
        unsafe { statistics(&p, &place.with_member(member), query) }
    };
    let keep = |step: u32, [lse, delta]: [f32; 2]| {
        if KEYS && thread::index()[0] < cols {
            let to = step % 2 * 2 * cols + thread::index()[0];
            // SAFETY: the thread's own places, of the buffer that is not in use.
            unsafe {
                numbers.set(to, lse);
                numbers.set(to + cols, delta);
            }
        }
    };
    if steps > 0 {
        for (copier, to) in side(KEYS, 0).iter().zip(&own) {
            // SAFETY: as in `copy_step`.
            unsafe { copier.copy(to, place.first, ROWS, vector) };
        }
        copy_step(0);
        keep(0, numbers_of(0));
    }
    copy::wait();
    block::sync();

    let line = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE * 16, 0);
    let first = place.first + line;
    let span = [first, (first + 15).min(there.max(1) - 1)];
    let own = own.map(|tile| tile.at_row(line));
    let mut rows_numbers = [[0.0; 2]; 2];
    for half in 0..2 {
        let query = first + 8 * half as u32 + warp::lane() / 4;
        if !KEYS && query < there {
            // SAFETY: it is one of the sequence.
            rows_numbers[half] = unsafe { statistics(&p, &place, query) };
        }
    }
    let mut sums: [Sums<1, DIM16>; 2] = [[[[[0.0; 4]; 2]; DIM16]; 1]; 2];
    for step in 0..steps {
        let next = if step + 1 < steps {
            copy_step(step + 1);
            numbers_of(step + 1)
        } else {
            [0.0; 2]
        };
        let (member, tile) = at(step);
        // Else the places of its rows in the mask stay in registers from step to step.
        let at = At { row: thread::forget([first, 0])[0], col: tile * cols };
        if first < there && !band.hides(span, at.col, cols) {
            let right = other.map(|other| other.at_row(step % 2 * cols));
            // SAFETY: all tiles have been waited for; the host checked the mask.
            unsafe {
                let mut scores = product::<T, DIM16, COLS16>(&own[0], &right[0], &lanes);
                let slopes = cap_with_slopes(&mut scores, f);
                Lines::of(&f.mask, &place.with_member(member), KEYS).add::<T, 1, COLS16>(&mut scores, at);
                if !band.shows(span, at.col, cols) {
                    hide(&mut scores, at, &band);
                }
                let weight_gradients = product::<T, DIM16, COLS16>(&own[1], &right[1], &lanes);
                let number = |pair: usize, side: usize, at: usize| {
                    if !KEYS {
                        return rows_numbers[at / 2];
                    }
                    let col = 16 * pair as u32 + 8 * side as u32 + warp::lane() % 4 * 2 + at as u32 % 2;
                    let from = step % 2 * 2 * cols + col;
                    [numbers.get(from), numbers.get(from + cols)]
                };
                for pair in 0..COLS16 {
                    let (mut weights, mut gradients) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
                    for side in 0..2 {
                        for at in 0..4 {
                            let [lse, delta] = number(pair, side, at);
                            let weight = ex2_ftz(scores[0][pair][side][at] - lse);
                            weights[side][at] = weight;
                            gradients[side][at] = weight
                                * (weight_gradients[0][pair][side][at] - delta)
                                * slopes[0][pair][side][at];
                        }
                    }
                    if SECOND {
                        accumulate(&mut sums[1], left::<T>(&weights), &right[1], &lanes, pair);
                    }
                    if FIRST {
                        accumulate(&mut sums[0], left::<T>(&gradients), &right[0], &lanes, pair);
                    }
                }
            }
        }
        copy::wait();
        keep(step + 1, next);
        block::sync();
    }
    let rows = |heads: &Heads, head: *mut T| Output {
        head,
        stride: heads.token_stride,
        first,
        rows: there,
        dim: f.dim,
        vector,
    };
    // SAFETY: the warp is the only one that used these rows of its tiles, and has done so; the outputs are writable.
    unsafe {
        if KEYS && SECOND {
            rows(&p.dv, place.key(&p.dv, f.group)).write(&own[1], &sums[1], &[[1.0; 2]]);
        }
        if KEYS && FIRST {
            rows(&p.dk, place.key(&p.dk, f.group)).write(&own[0], &sums[0], &[[f.scale; 2]]);
        }
        if !KEYS {
            rows(&p.dq, place.query(&p.dq)).write(&own[0], &sums[0], &[[f.scale; 2]]);
        }
    }
}

/// Scores as powers of two, and what their gradients are multiplied by: the cap's derivative.
#[inline(always)]
fn cap_with_slopes<const COLS16: usize>(scores: &mut Scores<1, COLS16>, p: &Params) -> Scores<1, COLS16> {
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
unsafe fn product<T: MatrixElem, const DIM16: usize, const COLS16: usize>(
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
fn left<T: MatrixElem>([[a, b, c, d], [e, f, g, h]]: &[C; 2]) -> A {
    [T::pair(*a, *b), T::pair(*c, *d), T::pair(*e, *f), T::pair(*g, *h)]
}

/// Adds a left matrix times 16 rows of the other side.
///
/// # Safety
/// The tile has been waited for.
#[inline(always)]
unsafe fn accumulate<T: MatrixElem, const DIM16: usize>(
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

/// `delta`: a team of eight lanes for each query of a tile.
///
/// # Safety
/// As [`backward`], for the side of the queries.
#[inline(always)]
pub(crate) unsafe fn delta<T: MatrixElem>(p: BackwardParams) {
    let f = &p.forward;
    // SAFETY: as the caller promises.
    let Some(place) = (unsafe { Place::of_rows(f, ROWS, false) }) else { return };
    let (team, lane) = (thread::index()[0] / 8, thread::index()[0] % 8);
    for turn in 0..ROWS / (WARPS * 4) {
        let query = place.first + turn * WARPS * 4 + team;
        let mut sum = 0.0;
        if query < place.queries {
            let row = |heads: &Heads| {
                place.query::<T>(heads).wrapping_offset((i64::from(query) * heads.token_stride) as isize)
            };
            let (out, dout) = (row(&f.out), row(&p.dout));
            let mut col = 8 * lane;
            while col < f.dim {
                let cols = (f.dim - col).min(8);
                for at in 0..8 {
                    if at < cols {
                        let element = |row: *mut T| {
                            // SAFETY: a column of the query.
                            let bits = unsafe {
                                mem::load_u16(row.wrapping_add((col + at) as usize).cast(), Load::ReadOnly)
                            };
                            T::from_bits(u32::from(bits)).to_f32()
                        };
                        sum = fma(element(out), element(dout), sum);
                    }
                }
                col += 64;
            }
        }
        let sum = warp::sum(sum, 8);
        if lane == 0 && query < place.queries {
            let to = p.delta.wrapping_add(place.number(f, query));
            // SAFETY: the host checked that there is one for each query.
            unsafe { mem::store_u32(to.cast(), sum.to_bits(), Store::Default) };
        }
    }
}
