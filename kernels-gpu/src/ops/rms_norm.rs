//! `y[r, c] = x[r, c] / sqrt(mean_c(x[r, c]^2) + eps) * (offset + w[c])`, the weight optional.
//!
//! One team of threads a row; sums in f32, one accumulator a lane. The first `IN_REGISTERS` tiles of the row stay in
//! registers between the two passes, as loaded, so that a row which fits is read once; what is beyond is read again,
//! mostly from L2. `rms_norm_any_<dtype>` holds nothing and takes any layout; `rms_norm_block<n>_<dtype>` wants rows that
//! can be read 16 bytes at a time ([`Rows::is_vector`]); `rms_norm_cluster8_<dtype>` has a cluster of blocks a row.
use cuda_std::prelude::*;

use crate::rms::row::{RmsParams, RowSource, load_registers, normalize};
use crate::rms::weight::Weight;

/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements and the weight `p.cols`, all
/// `Rows::is_vector` if `VECTOR`, and that `y` overlaps nothing else.
#[inline(always)]
unsafe fn rms_norm<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    weight: Weight,
    y: Rows,
    p: RmsParams,
    team: Team,
) {
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: as the caller promises; a team's row is its own.
    unsafe {
        let x = Row::<T, VECTOR>::of(&x, team, at, p.cols);
        let in_registers =
            load_registers::<T, IN_REGISTERS, _>(x, IN_REGISTERS <= Row::<T, VECTOR>::LOAD_FIRST, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, IN_REGISTERS, VECTOR, _>(x, in_registers, weight, y, team, p);
    }
}

/// # Safety
/// As [`rms_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            rms_norm::<T, 0, true>(x, weight, y, p, Team::of_block())
        } else {
            rms_norm::<T, 0, false>(x, weight, y, p, Team::of_block())
        }
    }
}

/// # Safety
/// As [`rms_norm`].
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { rms_norm::<T, IN_REGISTERS, true>(x, weight, y, p, Team::of_block()) }
}

/// # Safety
/// As [`rms_norm`].
#[inline(always)]
unsafe fn cluster<T: Elem>(x: Rows, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: as the caller promises.
    unsafe { rms_norm::<T, 8, true>(x, weight, y, p, Team::of_cluster()) }
}

entry! {
    rms_norm_any<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams) => any_layout::<T>(x, weight, y, p);
    rms_norm_block2<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4>(x, weight, y, p);
    rms_norm_block4<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 4, 512, 2>(x, weight, y, p);
    rms_norm_block8<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 8, 1024, 1>(x, weight, y, p);
    rms_norm_cluster8<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => cluster::<T>(x, weight, y, p)
}
