//! Cache hints of loads and stores.

/// Bytes of an L2 cache line.
pub const LINE: u32 = 128;

/// Cache hint of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// `ld.global`: a coherent load. Required for memory that the kernel also writes.
    Default,
    /// `ld.global.nc`: for memory that no thread writes during the kernel, such as weights and tables. The
    /// load puts the data into L1.
    ReadOnly,
    /// `ld.global.nc.L1::no_allocate`: for read-only data that the kernel reads once. The load does not put
    /// the data into L1.
    Once,
    /// `ld.global.nc.L2::cache_hint`: for read-only data, with an L2 eviction policy
    /// ([`L2Policy`](crate::l2::L2Policy)). On GPUs before sm_90, this hint has the same effect as `ReadOnly`
    /// (plain `ld.global.nc`).
    By(Policy),
}

/// Cache hint of a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// `st.global`: the default policy.
    Default,
    /// `st.global.cs`: for data that the kernel writes once and does not read soon. The caches evict these
    /// lines before other lines.
    Streaming,
}

/// An L2 eviction policy, in the encoding that the PTX instruction `createpolicy.fractional` produces on
/// sm_90.
///
/// The host passes the policy as a kernel argument, because a `createpolicy` instruction in the kernel would
/// delay the first load.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub u64);

impl Policy {
    /// The policy `evict_normal`.
    pub const NORMAL: Self = Self(0x16f0_0000_0000_0000);
    /// The policy `evict_last`.
    pub const LAST: Self = Self(0x14f0_0000_0000_0000);
}
