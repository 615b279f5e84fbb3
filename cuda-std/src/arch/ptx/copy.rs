//! Asynchronous copies to shared memory (`cp.async`) and prefetches into L2.
use core::arch::asm;

use super::memory::{load_u32x4, shared_base};
use crate::base::cache::Load;

/// Starts an asynchronous copy of 16 bytes from global to shared memory. On sm_75, the copy is synchronous.
///
/// # Safety
/// `to` is an offset in the launch's shared memory and a multiple of 16. The 16 bytes from `to` on lie inside
/// this memory. `from` points to 16 bytes of global memory that are aligned to 16 bytes.
#[inline(always)]
pub unsafe fn copy_async(to: usize, from: *const u8) {
    if cfg!(not(target_feature = "sm_80")) {
        let to = shared_base().wrapping_add(to).cast::<[u32; 4]>();
        // SAFETY: the caller passes valid, aligned `to` and `from`.
        return unsafe { to.write(load_u32x4(from, Load::Once)) };
    }
    // SAFETY: the instruction reads 16 bytes at `from` and writes 16 bytes at `to`. The caller guarantees
    // that both ranges are valid and aligned. `cp.async` needs sm_80. On sm_75, the function has returned
    // before this line.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{}], [{}], 16;",
            in(reg32) shared_window(to as u32), in(reg64) from,
            options(nostack)
        );
    }
}

/// If `wanted` is true, starts an asynchronous copy of 16 bytes from `from` to `to`. Otherwise the function
/// writes 16 zero bytes to `to` and does not read `from`.
///
/// # Safety
/// `to` is the 32-bit shared-memory address of 16 bytes that are aligned to 16 bytes. If `wanted` is true,
/// `from` points to 16 bytes of global memory that are aligned to 16 bytes. The GPU is sm_80 or newer.
#[inline(always)]
pub unsafe fn copy_async_or_zero(to: u32, from: *const u8, wanted: bool) {
    // SAFETY: the instruction writes 16 bytes at `to`, and reads 16 bytes at `from` if `wanted` is true. The
    // caller guarantees that both ranges are valid and aligned in these cases.
    unsafe {
        asm!(
            "cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};",
            in(reg32) to, in(reg64) from, in(reg32) if wanted { 16 } else { 0 },
            options(nostack)
        );
    }
}

/// Starts a prefetch of `bytes` bytes at `from` into L2. On GPUs before sm_90, the function does nothing.
///
/// # Safety
/// The `bytes` bytes at `from` are readable global memory. `from` and `bytes` are multiples of 16.
#[inline(always)]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: the instruction reads the `bytes` bytes at `from`. The caller guarantees that they are
        // readable and aligned to 16 bytes. The surrounding `if` checks for sm_90.
        unsafe {
            asm!("cp.async.bulk.prefetch.L2.global [{}], {};", in(reg64) from, in(reg32) bytes, options(nostack));
        }
    }
}

#[inline(always)]
pub fn copy_wait() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: the instruction only waits for copies of this thread. The surrounding `if` checks for
        // sm_80.
        unsafe { asm!("cp.async.wait_all;", options(nostack)) };
    }
}

#[inline(always)]
pub fn copy_commit() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: the instruction only makes one group of the copies that this thread has started. The
        // surrounding `if` checks for sm_80.
        unsafe { asm!("cp.async.commit_group;", options(nostack)) };
    }
}

#[inline(always)]
pub fn copy_wait_for_groups<const PENDING: u32>() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: the instruction only waits for copies of this thread. The surrounding `if` checks for
        // sm_80.
        unsafe { asm!("cp.async.wait_group {};", const PENDING, options(nostack)) };
    }
}

/// Returns the 32-bit shared-memory address of the byte at `offset` in dynamic shared memory. Instructions
/// such as `cp.async` take such an address as operand.
#[inline(always)]
pub fn shared_window(offset: u32) -> u32 {
    let base: u32;
    // SAFETY: the instructions access only registers. The result is the same for every call in a launch, as
    // the option `pure` requires.
    unsafe {
        asm!(
            "{{ .reg .b64 window; cvta.to.shared.u64 window, {}; cvt.u32.u64 {}, window; }}",
            in(reg64) shared_base(), out(reg32) base,
            options(pure, nomem, nostack)
        );
    }
    base + offset
}
