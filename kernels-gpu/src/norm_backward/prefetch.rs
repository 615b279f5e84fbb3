//! Prefetches the next rows of a block into L2. The kernels are bound by memory latency, and have no free
//! registers to load these rows early.
//!
//! A kernel issues the prefetch after it has summed the loaded data, before the barrier of the block
//! reduction. Issuing the prefetch occupies one warp. If the prefetch came before the loads, this warp would
//! delay the whole block (`docs/internals/decisions.md`).
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::{NormBackwardParams, Operands};

/// Prefetches the rows `first` to `first + count - 1` of `x` and `dy`. Rows from `end` on are skipped.
///
/// Each thread prefetches one row of one operand. If the block has fewer than `2 * count` threads, the last
/// rows are skipped. Row indices wrap at 2^32, so larger indices prefetch wrong rows. A wrong prefetch costs
/// time, but does not change results.
///
/// # Safety
/// The requirements of [`norm_backward`](super::gradients::norm_backward) apply. All operands allow 16-byte
/// accesses (`Rows::is_vector`).
#[inline(always)]
pub(super) unsafe fn prefetch<T: Elem>(
    operands: &Operands,
    [first, count, end]: [u32; 3],
    p: &NormBackwardParams,
) {
    // `opaque` makes the compiler recompute the addresses for each prefetch, instead of keeping them in
    // registers.
    let [first, thread] = thread::opaque([first, block::linear_index()]);
    let (row, is_dy) = (first + thread / 2, thread % 2 == 1);
    if thread / 2 >= count || row >= end {
        return;
    }
    let (within, group) = if p.inner == 0 { (row, 0) } else { (row % p.inner, row / p.inner) };
    let (x, dy) = (&operands.x, &operands.dy);
    let base = if is_dy { dy.base } else { x.base };
    let inner_stride = if is_dy { dy.inner_stride } else { x.inner_stride };
    let outer_stride = if is_dy { dy.outer_stride } else { x.outer_stride };
    let elements = i64::from(within) * inner_stride + i64::from(group) * outer_stride;
    let start = base.cast::<T>().wrapping_offset(elements as isize);
    // SAFETY: `row` is below `end`, or has wrapped to an existing row. The caller passes rows aligned to 16
    // bytes.
    unsafe { mem::prefetch(start.cast(), p.cols * size_of::<T>() as u32) };
}
