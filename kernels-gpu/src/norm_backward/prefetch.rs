//! Prefetches the next rows of a block into L2. The backward kernels of the norms are bound by memory
//! latency, but they have no free registers to load these rows early.
//!
//! A block issues the prefetch after each thread has added its elements of the current row, and before the
//! block reduction. Issuing the prefetch occupies one warp for some time. If this warp issued the prefetch
//! before it loads the current row, it would delay the whole block (`docs/internals/decisions.md`).
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::{NormBackwardParams, Operands};

/// Prefetches the rows `first` to `first + count - 1` of `x` and `dy`. The function skips rows with an index
/// of `end` or more.
///
/// Each thread prefetches one row of one operand. If the block has fewer than `2 * count` threads, the
/// function skips the last rows. Row indices have 32 bits, so an index wraps if a launch has more than 2^32
/// rows. A thread then prefetches a wrong row, which costs time, but does not change results.
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
    // The optimization barrier `opaque` makes the compiler compute the addresses again for each prefetch.
    // Otherwise, the addresses would occupy registers during the loop over rows.
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
    // SAFETY: the prefetched row exists: `row` is below `end`, or the 32-bit index has wrapped to another
    // existing row. The caller guarantees rows that are aligned to 16 bytes.
    unsafe { mem::prefetch(start.cast(), p.cols * size_of::<T>() as u32) };
}
