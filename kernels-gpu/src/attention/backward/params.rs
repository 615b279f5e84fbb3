//! Kernel argument and sizes of the attention backward pass.
use crate::attention::mma::params::AttentionParams;
use crate::attention::mma::tiling::Tiling;
use crate::layout::heads::Heads;

/// The kernel argument of the attention backward kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackwardParams {
    /// Parameters of the forward pass, including pointers to its outputs. In a backward launch, the field
    /// `tiles` is a number of tiles. If the launch computes `dk` or `dv`, these are tiles of keys, otherwise
    /// tiles of queries.
    pub forward: AttentionParams,
    /// The incoming gradient dO. It has the shape of `out`.
    pub dout: Heads,
    /// Gradient of the queries. It has the shape of `q`.
    pub dq: Heads,
    /// Gradient of the keys. It has the shape of `k`.
    pub dk: Heads,
    /// Gradient of the values. It has the shape of `v`.
    pub dv: Heads,
    /// Sum of `dout * out` over the columns of each query, f32. It has the shape of `lse`.
    pub delta: *mut f32,
    /// 1 if the alignment of every head permits 16-byte accesses, otherwise 0.
    pub vector: u32,
}

/// Threads per block of the `_delta` kernels, which compute the sum of `dO * O` for each query.
pub const DELTA_THREADS: u32 = 128;
/// Queries per block of the `_delta` kernels, which compute the sum of `dO * O` for each query.
pub const DELTA_ROWS: u32 = 64;

/// Returns the bytes of shared memory per block. Shared memory contains the tile whose gradients the block
/// computes, for two operands. The block loops over tiles of two other operands, and shared memory contains
/// two buffers for each of them. It also contains the statistics `lse` and `delta` of the queries in these
/// buffers.
pub const fn shared_bytes(tiling: &Tiling) -> u32 {
    let cols = 16 * tiling.cols16 as u32;
    (2 * tiling.rows() + 4 * cols) * (2 * tiling.dim16 as u32 + 1) * 16 + 4 * cols * 4
}
