//! How loads and stores use the caches.

/// Bytes of a line.
pub const LINE: u32 = 128;

/// How a load uses the caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// `ld.global`: coherent; the only choice for memory that this kernel also writes.
    Default,
    /// `ld.global.nc`: read-only for the whole kernel, kept in L1 (weights, tables).
    ReadOnly,
    /// `ld.global.nc.L1::no_allocate`: read-only and read once; leaves L1 to the rest.
    Once,
    /// `ld.global.nc.L2::cache_hint`: read-only, and in L2 as the policy says
    /// ([`L2Policy`](crate::l2::L2Policy)). Before sm_90 as `ReadOnly`.
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

/// What becomes of a line in L2, as `createpolicy.fractional` encodes it on sm_90. A number that the host
/// passes is read with the other arguments; made and chosen in the kernel, it would stand in front of the
/// first load.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub u64);

impl Policy {
    /// `evict_normal`.
    pub const NORMAL: Self = Self(0x16f0_0000_0000_0000);
    /// `evict_last`.
    pub const LAST: Self = Self(0x14f0_0000_0000_0000);
}
