//! `cp.async`.
use core::arch::asm;

use crate::mem::Load;

/// # Safety
/// `to` is 16 bytes of shared memory, `from` of global memory, both aligned to them.
#[inline(always)]
pub unsafe fn copy_async(to: *mut u8, from: *const u8) {
    if cfg!(not(target_feature = "sm_80")) {
        // SAFETY: as the caller promises.
        return unsafe { to.cast::<[u32; 4]>().write(super::load_u32x4(from, Load::Once)) };
    }
    // SAFETY: as the caller promises; the instruction needs sm_80.
    unsafe {
        asm!(
            "{{ .reg .b64 shared; cvta.to.shared.u64 shared, {}; cp.async.cg.shared.global [shared], [{}], 16; }}",
            in(reg64) to, in(reg64) from,
            options(nostack)
        );
    }
}

/// [`copy_async`] to an address in the shared window, of what is `wanted`; else 16 bytes of zeros, and nothing is read.
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

#[inline(always)]
pub fn copy_wait() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: waits for copies of this thread; the instruction needs sm_80.
        unsafe { asm!("cp.async.wait_all;", options(nostack)) };
    }
}
