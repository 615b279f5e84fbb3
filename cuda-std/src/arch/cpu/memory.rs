//! Loads, stores, and the bounds of shared memory.
use crate::base::cache::{LINE, Load, Store};
use crate::cpu::{FaultKind, with};

#[inline]
pub fn shared_base() -> *mut u8 {
    with(|block| block.shared_base())
}

#[inline]
pub fn shared_bytes() -> u32 {
    with(|block| block.shape.shared_bytes)
}

#[inline]
pub fn check_shared(offset: usize, bytes: usize) {
    with(|block| {
        let size = block.shape.shared_bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size as usize) {
            block.raise(FaultKind::SharedOutOfBounds { offset, bytes, size });
        }
    });
}

/// The GPU faults on a misaligned access, most hosts do not.
#[inline]
pub(super) fn check_aligned(address: usize, bytes: usize) {
    if !address.is_multiple_of(bytes) {
        with(|block| block.raise(FaultKind::Misaligned { address, bytes }));
    }
}

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty;)*) => { $(
        /// # Safety
        /// `ptr` is valid for the read.
        #[inline]
        pub unsafe fn $load(ptr: *const u8, _: Load) -> $bits {
            check_aligned(ptr.addr(), size_of::<$bits>());
            // SAFETY: valid, as the caller promises, and aligned.
            unsafe { ptr.cast::<$bits>().read() }
        }

        /// # Safety
        /// `ptr` is valid for the write.
        #[inline]
        pub unsafe fn $store(ptr: *mut u8, value: $bits, _: Store) {
            check_aligned(ptr.addr(), size_of::<$bits>());
            // SAFETY: valid, as the caller promises, and aligned.
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

/// # Safety
/// A line begins at `ptr`: its ends are read, so that a tool that checks addresses sees one that nobody has.
pub unsafe fn l2_demote(ptr: *const u8) {
    check_aligned(ptr.addr(), LINE as usize);
    // SAFETY: as the caller promises.
    unsafe { std::hint::black_box([ptr.read(), ptr.wrapping_add(LINE as usize - 1).read()]) };
}
