//! Loads and stores of global memory, and bounds checks of shared memory, on the CPU executor.
use core::panic::Location;

use crate::base::cache::{LINE, Load, Store};
use crate::cpu::{FaultKind, note_global, with};

#[inline]
pub fn shared_base() -> *mut u8 {
    with(|block| block.shared_base())
}

#[inline]
pub fn shared_bytes() -> u32 {
    with(|block| block.shape.shared_bytes)
}

#[inline]
#[track_caller]
pub fn check_shared(offset: usize, bytes: usize) {
    let at = Location::caller();
    with(|block| {
        let size = block.shape.shared_bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size as usize) {
            block.raise_at(at, FaultKind::SharedOutOfBounds { offset, bytes, size });
        }
    });
}

/// Raises a fault if `address` is not a multiple of `bytes`, the size of the access. A GPU also faults on a
/// misaligned access, but most host CPUs accept it.
#[inline]
#[track_caller]
pub(super) fn check_aligned(address: usize, bytes: usize) {
    if !address.is_multiple_of(bytes) {
        let at = Location::caller();
        with(|block| block.raise_at(at, FaultKind::Misaligned { address, bytes }));
    }
}

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty;)*) => { $(
        /// # Safety
        /// `ptr` is valid for a read of a value of the return type.
        #[inline]
        #[track_caller]
        pub unsafe fn $load(ptr: *const u8, _: Load) -> $bits {
            check_aligned(ptr.addr(), size_of::<$bits>());
            note_global();
            // SAFETY: the read covers one value at `ptr`. The caller guarantees that `ptr` is readable, and
            // `check_aligned` checked its alignment.
            unsafe { ptr.cast::<$bits>().read() }
        }

        /// # Safety
        /// `ptr` is valid for a write of a value of the type of `value`.
        #[inline]
        #[track_caller]
        pub unsafe fn $store(ptr: *mut u8, value: $bits, _: Store) {
            check_aligned(ptr.addr(), size_of::<$bits>());
            note_global();
            // SAFETY: the write covers one value at `ptr`. The caller guarantees that `ptr` is writable, and
            // `check_aligned` checked its alignment.
            unsafe { ptr.cast::<$bits>().write(value) }
        }
    )* };
}
accesses! {
    load_u32x4, store_u32x4: [u32; 4];
    load_u32x2, store_u32x2: [u32; 2];
    load_u32, store_u32: u32;
    load_u8, store_u8: u8;
    load_u16, store_u16: u16;
}

/// Reads the first and the last byte of the cache line at `ptr`, so that an address sanitizer reports an
/// invalid `ptr`. The function has no other effect.
///
/// # Safety
/// `ptr` is the start of a cache line of readable memory.
pub unsafe fn l2_demote(ptr: *const u8) {
    check_aligned(ptr.addr(), LINE as usize);
    // SAFETY: the reads cover the first and the last byte of the cache line at `ptr`. The caller guarantees
    // that the cache line is readable.
    unsafe { std::hint::black_box([ptr.read(), ptr.wrapping_add(LINE as usize - 1).read()]) };
}
