//! Two statistics of each query, which the attention backward pass needs: `delta` and `lse`. `delta` is the
//! sum of `dO * O` over the columns, and the function [`delta`] computes it. `lse` is the log-sum-exp of the
//! query's scores. The forward pass computed and saved `lse`. The function [`statistics`] loads both
//! statistics.
use cuda_std::mem;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::params::{BackwardParams, DELTA_ROWS, DELTA_THREADS};
use crate::attention::mma::tile_coords::TileCoords;
use crate::layout::heads::Heads;
use crate::layout::vec8::Vec8;

/// Lower limit for the log-sum-exp (`lse`) of a query, about -2^23. A smaller `lse` occurs if an additive
/// mask hides all keys from the query with huge negative finite values. The backward pass then treats the
/// query like a query without visible keys, because such an `lse` does not give the probabilities. For equal
/// scores, `lse` is the score plus the logarithm of the number of keys, and f32 rounding loses this logarithm
/// next to a huge score.
const MIN_LSE: f32 = -8e6;

/// Loads the statistics of a query: `lse * log2(e)` (`lse` is the log-sum-exp), and `delta` (the sum of
/// `dO * O`).
///
/// The first result is 0 if no key is visible to the query, or if an additive mask hides all keys with huge
/// negative finite values. In both cases, all scores of the query are -inf or huge negative numbers. With an
/// `lse` of 0, all probabilities `exp2(score - lse)` are 0, and so are all gradients of the query.
///
/// # Safety
/// `query` is less than the number of queries in the sequence.
#[inline(always)]
pub(super) unsafe fn statistics(p: &BackwardParams, coords: &TileCoords, query: u32) -> [f32; 2] {
    let at = coords.number(&p.forward, query);
    // SAFETY: the two loads read this query's element of `lse` and of `delta`. The host checked that both
    // tensors have one element per head and query, and the caller guarantees that the sequence contains the
    // query.
    let read = |numbers: *mut f32| unsafe {
        f32::from_bits(mem::load_u32(numbers.wrapping_add(at).cast_const().cast(), Load::Default))
    };
    let lse = read(p.forward.lse);
    let lse = if lse < MIN_LSE { 0.0 } else { lse * core::f32::consts::LOG2_E };
    [lse, read(p.delta)]
}

/// Computes `delta`, the sum of `dO * O` over the columns, for each query of this block's tile. Eight lanes
/// of a warp together compute the sum of one query.
///
/// # Safety
/// The host validated the kernel argument `p` for this launch. The field `tiles` of `p.forward` counts tiles
/// of [`DELTA_ROWS`] queries.
#[inline(always)]
pub(crate) unsafe fn delta<T: MatrixElem>(p: BackwardParams) {
    let f = &p.forward;
    // SAFETY: the host validated the kernel argument `p`.
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
                // SAFETY: the function `eight` reads columns of the query's row of O and of dO. Both rows
                // exist, because the sequence contains the query. Both rows have `f.dim` readable columns,
                // and `col` is a multiple of 8 below `f.dim`, as `eight` requires.
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
            // SAFETY: the store writes this query's element of `delta`. The element exists, because the host
            // checked that `delta` has one element per head and query.
            unsafe { mem::store_u32(to.cast(), sum.to_bits(), Store::Default) };
        }
    }
}

/// Loads eight consecutive columns of a row, from column `col` on. The row has `dim` columns, and the result
/// is 0 for each of the eight columns after the last one. If `vector` is true, the function uses one 16-byte
/// load. The row must then be aligned to 16 bytes, and `dim` must be a multiple of 8.
///
/// # Safety
/// The row has `dim` readable columns. `col` is a multiple of 8 and less than `dim`.
#[inline(always)]
unsafe fn eight<T: MatrixElem>(row: *const T, col: u32, dim: u32, vector: bool) -> [f32; 8] {
    let at = row.wrapping_add(col as usize);
    if vector {
        // SAFETY: `load` reads 16 bytes, which are the eight columns from `col` on. `dim` and `col` are
        // multiples of 8 and `col` is less than `dim`, so the row has these columns. The caller guarantees
        // that the row is aligned to 16 bytes.
        let [[a, b, c, d], [e, f, g, h]] = unsafe { Vec8::load(at, true) }.vec4s();
        return [a, b, c, d, e, f, g, h];
    }
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| {
        if col + i >= dim {
            return 0.0;
        }
        // SAFETY: the load reads column `col + i` of the row. This column exists, because `col + i` is less
        // than `dim`, and the caller passes a row of `dim` columns.
        let bits = unsafe { mem::load_u16(at.wrapping_add(i as usize).cast(), Load::ReadOnly) };
        T::from_bits(u32::from(bits)).to_f32()
    })
}
