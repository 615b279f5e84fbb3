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

#[inline(always)]
pub fn copy_wait() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: waits for copies of this thread; the instruction needs sm_80.
        unsafe { asm!("cp.async.wait_all;", options(nostack)) };
    }
}
