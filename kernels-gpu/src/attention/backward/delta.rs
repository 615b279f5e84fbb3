//! The numbers of a query: `lse`, and `delta`.
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{BackwardParams, DELTA_ROWS, DELTA_THREADS};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::Heads;
use crate::layout::vec8::Vec8;

/// Where `lse` is less, a mask hides all keys by finite numbers, beside which the logarithm of the keys'
/// number is lost: 2^23.
const MIN_LSE: f32 = -8e6;

/// `lse` as a power of two, and `delta`, of a query; 0 for `lse` where no key was seen, or all were hidden by
/// finite numbers: all weights are 0 then, and so are the gradients.
///
/// # Safety
/// The query is one of the sequence.
#[inline(always)]
pub(super) unsafe fn statistics(p: &BackwardParams, coords: &TileCoords, query: u32) -> [f32; 2] {
    let at = coords.number(&p.forward, query);
    // SAFETY: as the caller promises: the host checked that there is one for each query.
    let read = |numbers: *mut f32| unsafe {
        f32::from_bits(mem::load_u32(numbers.wrapping_add(at).cast_const().cast(), Load::Default))
    };
    let lse = read(p.forward.lse);
    let lse = if lse < MIN_LSE { 0.0 } else { lse * core::f32::consts::LOG2_E };
    [lse, read(p.delta)]
}

/// `delta`: a team of eight lanes for each query of a tile.
///
/// # Safety
/// As [`gradients`](super::gradients), for the side of the queries.
#[inline(always)]
pub(crate) unsafe fn delta<T: MatrixElem>(p: BackwardParams) {
    let f = &p.forward;
    // SAFETY: as the caller promises.
    let Some(coords) = (unsafe { TileCoords::of_rows(f, DELTA_ROWS, false) }) else { return };
    let (team, lane) = (thread::index()[0] / 8, thread::index()[0] % 8);
    for step in 0..DELTA_ROWS / (DELTA_THREADS / 8) {
        let query = coords.first + step * (DELTA_THREADS / 8) + team;
        let mut sum = 0.0;
        if query < coords.queries {
            let row = |heads: &Heads| -> *const T {
                coords
                    .query::<T>(heads)
                    .cast_const()
                    .wrapping_offset((i64::from(query) * heads.token_stride) as isize)
            };
            let (out, dout) = (row(&f.out), row(&p.dout));
            let mut col = 8 * lane;
            while col < f.dim {
                // SAFETY: columns of the query.
                let [a, b] = [out, dout].map(|row| unsafe { eight(row, col, f.dim, p.vector != 0) });
                for at in 0..8 {
                    sum = fma(a[at], b[at], sum);
                }
                col += 64;
            }
        }
        let sum = warp::sum(sum, 8);
        if lane == 0 && query < coords.queries {
            let to = p.delta.wrapping_add(coords.number(f, query));
            // SAFETY: the host checked that there is one for each query.
            unsafe { mem::store_u32(to.cast(), sum.to_bits(), Store::Default) };
        }
    }
}

/// The columns from `col` on, eight of them, of a row of `dim`; zeros behind its end. With `vector`, rows are
/// aligned to 16 bytes and so long.
///
/// # Safety
/// The row is readable.
#[inline(always)]
unsafe fn eight<T: MatrixElem>(row: *const T, col: u32, dim: u32, vector: bool) -> [f32; 8] {
    let at = row.wrapping_add(col as usize);
    if vector {
        // SAFETY: as the caller promises.
        let [[a, b, c, d], [e, f, g, h]] = unsafe { Vec8::load(at, true) }.vec4s();
        return [a, b, c, d, e, f, g, h];
    }
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| {
        if col + i >= dim {
            return 0.0;
        }
        // SAFETY: as the caller promises.
        let bits = unsafe { mem::load_u16(at.wrapping_add(i as usize).cast(), Load::ReadOnly) };
        T::from_bits(u32::from(bits)).to_f32()
    })
}
