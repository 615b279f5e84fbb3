//! The rows that a block comes to next, on their way to the L2 cache while it works on others: for their
//! packs there are no registers, and the latency of memory is what a block waits for most.
//!
//! A kernel asks when it has added up what it loaded and is about to wait for the other warps' sums. To ask
//! keeps a warp busy: before the loads, all would wait for the one that asks (`docs/ladders.md`).
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::{NormBackwardParams, Operands};

/// Asks for rows `first` to `first + count` of `x` and `dy`, those before `end`: a thread for each, and where
/// there are too few threads, rows are left out. Of rows past 2^32 others are asked for in their place, which
/// costs time and nothing else.
///
/// # Safety
/// As [`norm_backward`](super::gradients::norm_backward), all `Rows::is_vector`.
#[inline(always)]
pub(super) unsafe fn prefetch<T: Elem>(
    operands: &Operands,
    [first, count, end]: [u32; 3],
    p: &NormBackwardParams,
) {
    // Worked out anew each time, and not kept in registers.
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
    // SAFETY: a row, which is there and aligned, as the caller promises.
    unsafe { mem::prefetch(start.cast(), p.cols * size_of::<T>() as u32) };
}
