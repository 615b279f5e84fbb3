//! Global memory: the cache hints, and the element type a load or store moves.
//!
//! Row kernels go through [`Row`](crate::rows::row::Row); these are for what does not fit it. A vector access wants its
//! address aligned to its size: the GPU faults otherwise, and so does the CPU executor.
use super::l2::Policy;
use crate::arch;

/// How a load uses the caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// `ld.global`: coherent; the only choice for memory that this kernel also writes.
    Default,
    /// `ld.global.nc`: read-only for the whole kernel, kept in L1 (weights, tables).
    ReadOnly,
    /// `ld.global.nc.L1::no_allocate`: read-only and read once; leaves L1 to the rest.
    Once,
    /// `ld.global.nc.L2::cache_hint`: read-only, and in L2 as the policy says ([`Passage`](super::l2::Passage)). Before sm_90
    /// as `ReadOnly`.
    By(Policy),
}

/// How a store uses the caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// `st.global`.
    Default,
    /// `st.global.cs`: written once, not read again soon: first to be evicted.
    Streaming,
}

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty, $what:literal;)*) => { $(
        #[doc = concat!("Loads ", $what, " at `ptr`.")]
        ///
        /// # Safety
        /// `ptr` is valid for the read and aligned to its size; with another hint than [`Load::Default`] nothing
        /// writes there while the kernel runs.
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

/// Has `bytes` from `from` on brought to the L2 cache, and waits for nothing: one thread asks for what a block is going to
/// read. Before sm_90 nothing is done.
///
/// # Safety
/// All of it is readable global memory; `from` and `bytes` are multiples of 16.
#[inline(always)]
pub unsafe fn prefetch(from: *const u8, bytes: u32) {
    // SAFETY: as the caller promises.
    unsafe { arch::prefetch(from, bytes) }
}
