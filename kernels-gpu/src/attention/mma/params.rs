//! What a launch of attention works on, and sizes that kernels and host share.
use crate::layout::heads::Heads;

/// A mask that broadcasts against `[B, H, Sq, Sk]`: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// The first element.
    pub base: *const u8,
    /// Elements from a batch, head, query and key to the next; 0 where it broadcasts.
    pub strides: [i64; 4],
    /// One of [`Mask::NONE`], [`Mask::BOOL`], [`Mask::F32`], [`Mask::SAME`].
    pub kind: u32,
}

impl Mask {
    /// No mask.
    pub const NONE: u32 = 0;
    /// Bytes: 0 hides a key.
    pub const BOOL: u32 = 1;
    /// Added to scores, f32.
    pub const F32: u32 = 2;
    /// Added to scores, of the element type.
    pub const SAME: u32 = 3;
    /// The mask that is not there.
    pub const ABSENT: Self = Self { base: core::ptr::null(), strides: [0; 4], kind: Self::NONE };
}

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams {
    /// Queries.
    pub q: Heads,
    /// Keys.
    pub k: Heads,
    /// Values.
    pub v: Heads,
    /// The result, as `q`.
    pub out: Heads,
    /// `ln(sum(exp(scores)))` of each head and query; null: not wanted.
    pub lse: *mut f32,
    /// Where packed sequences begin among the queries, and end; null: batches of `queries` queries.
    pub query_starts: *const i32,
    /// Likewise among the keys.
    pub key_starts: *const i32,
    /// What is added to the scores, or hides them: in the general kernels.
    pub mask: Mask,
    /// Batches, or packed sequences.
    pub batches: u32,
    /// Queries of a batch, or of all packed sequences.
    pub queries: u32,
    /// Keys, likewise.
    pub keys: u32,
    /// Heads of the queries.
    pub heads: u32,
    /// Heads of the queries that share one of the keys.
    pub group: u32,
    /// Columns of a head.
    pub dim: u32,
    /// Query tiles of a batch, or of all sequences.
    pub tiles: u32,
    /// Are all heads readable 16 bytes at a time? What is not, the general kernels read element by element.
    pub vector: u32,
    /// Are later queries longer work than earlier ones? They are then begun first.
    pub backwards: u32,
    /// The most keys before its position that a query sees.
    pub before: i32,
    /// The most keys after it.
    pub after: i32,
    /// The factor of `q k`; above 0 except in the general kernels.
    pub scale: f32,
    /// Scores become `softcap tanh(score / softcap)` unless it is 0: in the general kernels.
    pub softcap: f32,
}

/// More than there are keys: no limit to a window.
pub const UNLIMITED: i32 = 1 << 30;

/// Shared memory that a block may have on every GPU from sm_80 on: sm_86, sm_89 and sm_120 have the least.
pub const SHARED_BYTES_EVERYWHERE: u32 = 99 << 10;

/// Warps in a block of the kernels of [`decode`](crate::attention::decode).
pub const WARPS: u32 = 4;
