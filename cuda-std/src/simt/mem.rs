//! Loads and stores of global memory with cache hints.
//!
//! Kernels that process whole rows of a tensor use the type [`Row`](crate::rows::row::Row). The functions of
//! this module are for access patterns that `Row` does not support. The address of an access must be a
//! multiple of the number of bytes that it accesses. Otherwise the GPU and the CPU executor report a fault.
use crate::arch;
pub use crate::base::cache::{Load, Store};

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty, $what:literal;)*) => { $(
        #[doc = concat!("Loads ", $what, " at `ptr`.")]
        ///
        /// # Safety
        /// `ptr` points to readable memory and is aligned to the size of the read. If `hint` is not
        /// [`Load::Default`], no thread writes to this memory while the kernel runs.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $load(ptr: *const u8, hint: Load) -> $bits {
            // SAFETY: the caller passes a readable, aligned `ptr`.
            unsafe { arch::$load(ptr, hint) }
        }
        #[doc = concat!("Stores ", $what, " at `ptr`.")]
        ///
        /// # Safety
        /// `ptr` points to writable memory and is aligned to the size of the write. No other thread accesses
        /// this memory without synchronization.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $store(ptr: *mut u8, value: $bits, hint: Store) {
            // SAFETY: the caller passes a writable, aligned `ptr`.
            unsafe { arch::$store(ptr, value, hint) }
        }
    )* };
}
accesses! {
    load_u32x4, store_u32x4: [u32; 4], "16 bytes";
    load_u32x2, store_u32x2: [u32; 2], "8 bytes";
    load_u32, store_u32: u32, "4 bytes";
    load_u8, store_u8: u8, "a byte";
    load_u16, store_u16: u16, "2 bytes";
}

/// Starts a prefetch of `bytes` bytes at `from` into the L2 cache. The function returns before the bytes
/// arrive. On GPUs before sm_90, the function does nothing.
///
/// One call by one thread is enough to prefetch the data for all threads of a block.
///
/// # Safety
/// The `bytes` bytes at `from` are readable global memory. `from` and `bytes` are multiples of 16.
#[inline(always)]
#[track_caller]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    // SAFETY: the prefetch accesses the `bytes` bytes at `from`. The caller guarantees that they are readable
    // and aligned to 16 bytes.
    unsafe { arch::prefetch(from, bytes) }
}
