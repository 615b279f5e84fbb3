//! `cp.async`.
use core::arch::asm;

use super::memory::{load_u32x4, shared_base};
use crate::base::cache::Load;

/// # Safety
/// `to` is where in the launch's shared memory 16 bytes are, `from` 16 bytes of global memory, both aligned
/// to them.
#[inline(always)]
pub unsafe fn copy_async(to: usize, from: *const u8) {
    if cfg!(not(target_feature = "sm_80")) {
        let to = shared_base().wrapping_add(to).cast::<[u32; 4]>();
        // SAFETY: as the caller promises.
        return unsafe { to.write(load_u32x4(from, Load::Once)) };
    }
    // SAFETY: as the caller promises; the instruction needs sm_80.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{}], [{}], 16;",
            in(reg32) shared_window(to as u32), in(reg64) from,
            options(nostack)
        );
    }
}

/// [`copy_async`] to an address in the shared window, of what is `wanted`; else 16 bytes of zeros, and
/// nothing is read.
///
/// # Safety
/// As [`copy_async`], if it is `wanted`; the instruction needs sm_80.
#[inline(always)]
pub unsafe fn copy_async_or_zero(to: u32, from: *const u8, wanted: bool) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};",
            in(reg32) to, in(reg64) from, in(reg32) if wanted { 16 } else { 0 },
            options(nostack)
        );
    }
}

/// Before sm_90 nothing is done.
///
/// # Safety
/// As [`mem::prefetch`](crate::simt::mem::prefetch).
#[inline(always)]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: as the caller promises; the instruction needs sm_90.
        unsafe {
            asm!("cp.async.bulk.prefetch.L2.global [{}], {};", in(reg64) from, in(reg32) bytes, options(nostack));
        }
    }
}

#[inline(always)]
pub fn copy_wait() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: waits for copies of this thread; the instruction needs sm_80.
        unsafe { asm!("cp.async.wait_all;", options(nostack)) };
    }
}

/// The address in the shared window of the byte at `offset`: what instructions on shared memory take, in 32
/// bits.
#[inline(always)]
pub fn shared_window(offset: u32) -> u32 {
    let base: u32;
    // SAFETY: arithmetic; the base is the same for the whole launch.
    unsafe {
        asm!(
            "{{ .reg .b64 window; cvta.to.shared.u64 window, {}; cvt.u32.u64 {}, window; }}",
            in(reg64) shared_base(), out(reg32) base,
            options(pure, nomem, nostack)
        );
    }
    base + offset
}
