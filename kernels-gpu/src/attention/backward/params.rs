//! What a launch of the gradients works on, and its sizes.
use crate::attention::mma::params::AttentionParams;
use crate::attention::mma::tiling::Tiling;
use crate::layout::heads::Heads;

/// What a launch works on: the kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackwardParams {
    /// The forward launch's, with its results; `tiles` are those of the side whose gradients are wanted.
    pub forward: AttentionParams,
    /// The gradient of the result.
    pub dout: Heads,
    /// Those of queries, keys and values.
    pub dq: Heads,
    /// As `k`.
    pub dk: Heads,
    /// As `v`.
    pub dv: Heads,
    /// The sum of `dout * out` over the columns, as `lse`.
    pub delta: *mut f32,
    /// May all heads be accessed 16 bytes at a time?
    pub vector: u32,
}

/// Threads of a block of `_delta`.
pub const DELTA_THREADS: u32 = 128;
/// Queries of a block of `_delta`.
pub const DELTA_ROWS: u32 = 64;

/// Shared memory of a block, in bytes: two tiles of its rows, two buffers of two tiles of the other side's,
/// and of two numbers for each of these rows.
pub const fn shared_bytes(tiling: &Tiling) -> u32 {
    let cols = 16 * tiling.cols16 as u32;
    (2 * tiling.rows() + 4 * cols) * (2 * tiling.dim16 as u32 + 1) * 16 + 4 * cols * 4
}
