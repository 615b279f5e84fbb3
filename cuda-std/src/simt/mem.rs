//! Global memory: the cache hints, and the element type a load or store moves.
//!
//! Row kernels go through [`Row`](crate::rows::row::Row); these are for what does not fit it. A vector access
//! wants its address aligned to its size: the GPU faults otherwise, and so does the CPU executor.
use crate::arch;
pub use crate::base::cache::{Load, Store};

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty, $what:literal;)*) => { $(
        #[doc = concat!("Loads ", $what, " at `ptr`.")]
        ///
        /// # Safety
        /// `ptr` is valid for the read and aligned to its size; with another hint than [`Load::Default`]
        /// nothing writes there while the kernel runs.
        #[inline(always)]
        pub unsafe fn $load(ptr: *const u8, hint: Load) -> $bits {
            // SAFETY: as the caller promises.
            unsafe { arch::$load(ptr, hint) }
        }
        #[doc = concat!("Stores ", $what, " at `ptr`.")]
        ///
        /// # Safety
        /// `ptr` is valid for the write, aligned to its size, and no other thread accesses it unsynchronised.
        #[inline(always)]
        pub unsafe fn $store(ptr: *mut u8, value: $bits, hint: Store) {
            // SAFETY: as the caller promises.
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

/// Has `bytes` from `from` on brought to the L2 cache, and waits for nothing: one thread asks for what a
/// block is going to read. Before sm_90 nothing is done.
///
/// # Safety
/// All of it is readable global memory; `from` and `bytes` are multiples of 16.
#[inline(always)]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    // SAFETY: as the caller promises.
    unsafe { arch::prefetch(from, bytes) }
}
