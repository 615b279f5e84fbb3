//! `cp.async`.
use core::arch::asm;

use crate::mem::Load;

/// # Safety
/// `to` is where in the launch's shared memory 16 bytes are, `from` 16 bytes of global memory, both aligned to them.
#[inline(always)]
pub unsafe fn copy_async(to: usize, from: *const u8) {
    if cfg!(not(target_feature = "sm_80")) {
        let to = super::shared_base().wrapping_add(to).cast::<[u32; 4]>();
        // SAFETY: as the caller promises.
        return unsafe { to.write(super::load_u32x4(from, Load::Once)) };
    }
    // SAFETY: as the caller promises; the instruction needs sm_80.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{}], [{}], 16;",
            in(reg32) shared_space(super::shared_base()) + to as u32, in(reg64) from,
            options(nostack)
        );
    }
}

/// The address in the shared space: asked for once, not at each copy.
#[inline(always)]
fn shared_space(generic: *const u8) -> u32 {
    let address: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{ .reg .b64 shared; cvta.to.shared.u64 shared, {}; cvt.u32.u64 {}, shared; }}",
            in(reg64) generic, out(reg32) address,
            options(pure, nomem, nostack)
        );
    }
    address
}

#[inline(always)]
pub fn copy_wait() {
    if cfg!(target_feature = "sm_80") {
        // SAFETY: waits for copies of this thread; the instruction needs sm_80.
        unsafe { asm!("cp.async.wait_all;", options(nostack)) };
    }
}
