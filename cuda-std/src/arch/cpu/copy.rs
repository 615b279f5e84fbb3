//! Copies to shared memory, and L2 prefetches, on the CPU executor. The functions have the same names as the
//! PTX versions in `arch/ptx/copy.rs`.
use super::memory::check_aligned;
use crate::cpu::cluster::FIRST_ADDRESS;
use crate::cpu::{copies, note_global};

/// # Safety
/// `to` is an offset in the launch's shared memory and a multiple of 16. The 16 bytes from `to` on lie inside
/// this memory. `from` points to 16 readable bytes that are aligned to 16 bytes.
#[track_caller]
pub unsafe fn copy_async(to: usize, from: *const u8) {
    check_aligned(from.addr(), 16);
    note_global();
    // SAFETY: the read covers the 16 bytes at `from`. The caller guarantees that they are readable, and
    // `check_aligned` checked the alignment of `from`.
    copies::begin(to, unsafe { from.cast::<[u8; 16]>().read() });
}

/// # Safety
/// `to` is the shared-memory address of 16 bytes inside the launch's shared memory, and a multiple of 16. If
/// `wanted` is true, `from` points to 16 readable bytes that are aligned to 16 bytes.
/// Otherwise `from` is not read.
#[track_caller]
pub unsafe fn copy_async_or_zero(to: u32, from: *const u8, wanted: bool) {
    let to = to - FIRST_ADDRESS;
    if wanted {
        // SAFETY: `copy_async` reads 16 bytes at `from`. The call happens only if `wanted` is true. In this
        // case, the caller guarantees that the bytes are readable and aligned.
        unsafe { copy_async(to as usize, from) }
    } else {
        copies::begin(to as usize, [0; 16]);
    }
}

/// Reads `bytes` bytes at `from`, so that an invalid prefetch causes a segmentation fault or a sanitizer
/// report. The function prefetches nothing, because the CPU executor emulates no L2 cache.
///
/// # Safety
/// The `bytes` bytes at `from` are readable. `from` and `bytes` are multiples of 16.
#[track_caller]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    check_aligned(from.addr(), 16);
    check_aligned(from.addr() + bytes as usize, 16);
    for at in (0..bytes as usize).step_by(16) {
        // SAFETY: the read covers the byte at `from + at`. The caller guarantees `bytes` readable bytes, and
        // the loop ensures that `at` is less than `bytes`.
        unsafe { from.add(at).read_volatile() };
    }
}

pub fn copy_wait() {
    copies::wait();
}

pub fn copy_commit() {
    copies::commit();
}

pub fn copy_wait_for_groups<const PENDING: u32>() {
    copies::wait_for_groups(PENDING as usize);
}

/// Returns the shared-memory address of the byte at `offset`.
#[inline(always)]
pub fn shared_window(offset: u32) -> u32 {
    FIRST_ADDRESS + offset
}
