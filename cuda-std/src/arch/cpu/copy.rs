//! Copies to shared memory on the CPU executor: what `arch/ptx/copy.rs` has.
use super::memory::check_aligned;
use crate::cpu::copies;

/// # Safety
/// `to` is where in the launch's shared memory 16 bytes are, `from` 16 bytes, both aligned to them.
pub unsafe fn copy_async(to: usize, from: *const u8) {
    check_aligned(from.addr(), 16);
    // SAFETY: as the caller promises.
    copies::begin(to, unsafe { from.cast::<[u8; 16]>().read() });
}

/// # Safety
/// As [`copy_async`] if it is `wanted`; else `from` is not read.
pub unsafe fn copy_async_or_zero(to: u32, from: *const u8, wanted: bool) {
    if wanted {
        // SAFETY: as the caller promises.
        unsafe { copy_async(to as usize, from) }
    } else {
        copies::begin(to as usize, [0; 16]);
    }
}

/// Looks whether the memory is there and aligned: there is no L2.
///
/// # Safety
/// As [`mem::prefetch`](crate::simt::mem::prefetch).
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    check_aligned(from.addr(), 16);
    check_aligned(from.addr() + bytes as usize, 16);
    for at in (0..bytes as usize).step_by(16) {
        // SAFETY: as the caller promises.
        unsafe { from.add(at).read_volatile() };
    }
}

pub fn copy_wait() {
    copies::wait();
}

/// The offset itself.
#[inline(always)]
pub fn shared_window(offset: u32) -> u32 {
    offset
}
