//! The kernel `y[r] = ln(sum(exp(x[r, :])))`, as `torch.logsumexp` computes it.
use core::f32::consts::LN_2;

use cuda_std::libdevice::exp;
use cuda_std::math::lg2;
use cuda_std::prelude::*;

/// Each warp processes one row. It reads the row twice: first for the maximum, then (from L1) for the sum.
/// The kernel subtracts the maximum before `exp`, because `exp(x)` overflows for `x` above about 88.
///
/// Each block has `[32, rows per block]` threads. If `VECTOR` is true, a thread loads 16 bytes at a time.
///
/// # Safety
/// `x` has `rows` rows of `cols` elements. If `VECTOR` is true, `x` satisfies `Rows::is_vector` (16-byte
/// alignment). `y` has `rows` elements and does not overlap `x`.
#[inline(always)]
unsafe fn log_sum_exp<T: Elem, const VECTOR: bool>(x: Rows, y: *mut T, rows: u64, cols: u32) {
    let team = Team::of_block();
    let at = RowIndex::of(team, rows, 0);
    // SAFETY: the caller passes `x` with `rows` rows of `cols` elements.
    let x = unsafe { Row::<T, VECTOR>::of(&x, team, at, cols) };
    // Columns past the end of the row read as -inf, which changes neither the maximum nor the sum.
    let load = |tile| x.load_or(tile, T::NEG_INFINITY, Load::ReadOnly).lanes();
    let mut largest = f32::NEG_INFINITY;
    for tile in 0..x.tiles() {
        load(tile).map(|x| {
            largest = f32::max(largest, x);
            x
        });
    }
    // `warp::max` uses shuffles, which all lanes of a warp must execute. A lane without columns therefore
    // must not return early.
    let largest = warp::max(largest, warp::SIZE);
    // If the maximum is infinite, the kernel subtracts 0 instead, as torch does. Otherwise `inf - inf` would
    // give NaN.
    let shift = if largest.abs() == f32::INFINITY { 0.0 } else { largest };
    let mut sum = 0.0;
    for tile in 0..x.tiles() {
        // The maximum above ignores NaN, but the sum does not. A NaN in the row therefore makes the result
        // NaN.
        sum += load(tile).map(|x| exp(x - shift)).sum();
    }
    let sum = warp::sum(sum, warp::SIZE);
    if warp::lane() == 0 && at.exists() {
        // SAFETY: the row exists, so its index is less than `rows`, the number of elements of `y`. Only lane
        // 0 of the row's warp writes this element.
        unsafe { y.add(team.row as usize).write(T::from_f32(shift + lg2(sum) * LN_2)) };
    }
}

entry! {
    log_sum_exp<T: [f32, f16, bf16]>(x: Rows, y: *mut T, rows: u64, cols: u32)
        => log_sum_exp::<T, false>(x, y, rows, cols);
    log_sum_exp_vector<T: [f32, f16, bf16]>(x: Rows, y: *mut T, rows: u64, cols: u32)
        => log_sum_exp::<T, true>(x, y, rows, cols)
}
