//! Matrix products `y = epilogue(x wᵀ + bias)` with `mma.sync`, for every GPU from sm_80 on.
//!
//! A block computes one tile of `y`. It has four warps, and each warp computes a quarter of the tile. The
//! block copies tiles of `x` and `w` into a ring of buffers in shared memory, with 32 elements of K per
//! buffer. While the warps multiply the tiles of one buffer, the copies to the next buffers are in flight.
//!
//! - `x` and `w` both have contiguous rows along K, as the A and B operands of an MMA require. `ldmatrix`
//!   therefore reads both operands without a transposition.
//! - The order of the 16-byte chunks of a row depends on the row (XOR swizzle). The eight rows of an
//!   `ldmatrix` matrix (8 x 8) are therefore in different banks.
//! - Each warp reads the operands of a step (16 elements of K) from shared memory while it multiplies the
//!   operands of the previous step.
//! - Each element of `y` has one f32 accumulator, which adds all products in ascending order of K. All tile
//!   sizes therefore give the same bits.
//!
//! - `params`: tile sizes and kernel argument.
//! - `tiles`, `kernel`: the bodies of the kernels, and the main loop.
//! - `ring`: the ring of buffers.
//! - `loader`: copies tiles of `x` and `w` to shared memory.
//! - `multiply`: reads operands from shared memory and multiplies them.
//! - `swizzle`: tiles in shared memory.
//! - `write`: the epilogue, which writes the tile of `y`.
mod kernel;
mod loader;
mod multiply;
pub mod params;
mod ring;
mod swizzle;
pub(crate) mod tiles;
mod write;
