//! Copies to shared memory on the CPU executor: what `arch/ptx_copy.rs` has.
use super::{check_aligned, shared_base};

/// Done at once.
///
/// # Safety
/// `to` is where in the launch's shared memory 16 bytes are, `from` 16 bytes, both aligned to them.
pub unsafe fn copy_async(to: usize, from: *const u8) {
    // SAFETY: as the caller promises.
    unsafe { shared_base().wrapping_add(to).cast::<u128>().write(from.cast::<u128>().read()) };
}

/// Done at once.
///
/// # Safety
/// `to` is the offset in shared memory of 16 bytes, aligned to them; so is `from`, to read, if it is `wanted`.
pub unsafe fn copy_async_or_zero(to: u32, from: *const u8, wanted: bool) {
    // SAFETY: in bounds, as `Shared::window` checked.
    let to: *mut u128 = unsafe { shared_base().add(to as usize) }.cast();
    if wanted {
        check_aligned(from.addr(), 16);
    }
    // SAFETY: as the caller promises.
    unsafe { to.write(if wanted { from.cast::<u128>().read() } else { 0 }) };
}

/// Looks whether the memory is there and aligned: there is no L2.
///
/// # Safety
/// As [`mem::prefetch`](crate::mem::prefetch).
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    check_aligned(from.addr(), 16);
    check_aligned(from.addr() + bytes as usize, 16);
    for at in (0..bytes as usize).step_by(16) {
        // SAFETY: as the caller promises.
        unsafe { from.add(at).read_volatile() };
    }
}

pub fn copy_wait() {}

/// The offset itself.
#[inline(always)]
pub fn shared_window(offset: u32) -> u32 {
    offset
}
