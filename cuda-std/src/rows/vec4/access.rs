//! Types that say how threads read and write a row: the trait `Access` and its implementations.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// How threads read and write the columns of a row, and where the row stays between two passes over it. For
/// example, the row may stay in registers or in shared memory. The choice does not change the results.
///
/// A kernel calls functions of this module, such as [`is_whole`], which compare the constant `CODE`.
/// Constants of type `bool` in the trait would be easier to read. However, rustc resolves branches on such
/// constants before LLVM processes the code. The early resolution changes the instructions and register
/// counts of kernels.
pub trait Access: Copy + 'static {
    /// A number that identifies the implementing type and its constant `N`. The functions of this module
    /// decode this number.
    #[doc(hidden)]
    const CODE: u32;
}

const SCALAR: u32 = 0;
const VECTORIZED: u32 = 1;
const WHOLE_TILES: u32 = 2;
const BLOCK_TILES: u32 = 3;
/// The code of an access type that keeps a row in registers is a sum: the start of a range of codes plus a
/// number of tiles. The start is one of the constants [`WARP_REGISTERS`], [`BLOCK_REGISTERS_STAGED`] and
/// [`BLOCK_REGISTERS`]. The number says how many tiles (128 columns each) of the row each warp keeps in
/// registers.
const WARP_REGISTERS: u32 = 16;
const BLOCK_REGISTERS_STAGED: u32 = 64;
const BLOCK_REGISTERS: u32 = 128;

/// Returns whether one access reads one element.
#[inline(always)]
pub const fn is_scalar<A: Access>() -> bool {
    A::CODE == SCALAR
}

/// Returns whether one access reads four elements. The row then satisfies the alignment check
/// `Rows::is_vec4s`.
#[inline(always)]
pub const fn is_vector<A: Access>() -> bool {
    A::CODE != SCALAR
}

/// Returns whether the access type is [`Scalar`] or [`Vectorized`]. With these two types, the length of a row
/// need not be a multiple of a tile (128 columns).
#[inline(always)]
pub const fn is_any_length<A: Access>() -> bool {
    A::CODE < WHOLE_TILES
}

/// Returns whether the row consists of whole tiles (128 columns each), so that threads need no bounds checks.
///
/// If this function returns true, the host has checked further conditions. The row satisfies
/// `Rows::is_vector` (16-byte alignment) and [`Rows::is_near`] (strides of 32 bits). The row has at least
/// four tiles of [`TILE`](super::TILE) columns, and the tensor has fewer than 2^30 rows.
#[inline(always)]
pub const fn is_whole<A: Access>() -> bool {
    A::CODE >= WHOLE_TILES
}

/// Returns whether whole rows are staged in shared memory between the passes over the row.
#[inline(always)]
pub const fn is_whole_staged<A: Access>() -> bool {
    A::CODE == WHOLE_TILES || A::CODE == BLOCK_TILES
}

/// Returns whether the four warps of a block share a row, so that each warp accesses every fourth tile (128
/// columns). If not, each warp has a different row.
#[inline(always)]
pub const fn is_block_shared<A: Access>() -> bool {
    matches!(A::CODE, BLOCK_TILES | BLOCK_REGISTERS_STAGED..)
}

/// Returns the number of tiles (128 columns each) of a row that each warp keeps in registers, or 0 if the row
/// does not stay in registers.
#[inline(always)]
pub const fn tiles_in_registers<A: Access>() -> usize {
    tiles_of_code(A::CODE)
}

/// Returns whether the access type is [`BlockRegisters`]. The row is then only in registers, and not in
/// shared memory. A reduction must therefore not read the row from shared memory.
pub const fn is_unstaged<A: Access>() -> bool {
    A::CODE >= BLOCK_REGISTERS
}

const fn tiles_of_code(code: u32) -> usize {
    match code {
        BLOCK_REGISTERS.. => (code - BLOCK_REGISTERS) as usize,
        BLOCK_REGISTERS_STAGED.. => (code - BLOCK_REGISTERS_STAGED) as usize,
        WARP_REGISTERS.. => (code - WARP_REGISTERS) as usize,
        _ => 0,
    }
}

/// Reads and writes one element per access, for any row.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Reads and writes four elements per access.
#[derive(Clone, Copy)]
pub struct Vectorized;

/// Reads four elements per access, for rows that consist of whole tiles (128 columns each). The row is staged
/// in shared memory between the passes over the row.
#[derive(Clone, Copy)]
pub struct WholeTiles;

/// Reads four elements per access, for rows that consist of whole tiles (128 columns each). The four warps of
/// a block share one row, which is staged in shared memory between the passes over the row.
#[derive(Clone, Copy)]
pub struct BlockTiles;

/// Reads four elements per access, for rows of exactly `N` tiles (128 columns each). A warp keeps the row in
/// registers between the passes over the row and uses no shared memory.
#[derive(Clone, Copy)]
pub struct WarpRegisters<const N: usize>;

/// Reads four elements per access, for rows of exactly `4 * N` tiles (128 columns each). The four warps of a
/// block keep the row in registers. Shared memory contains only the partial results of reductions.
#[derive(Clone, Copy)]
pub struct BlockRegisters<const N: usize>;

/// Works as [`BlockRegisters`] does, with additional shared memory for one row.
#[derive(Clone, Copy)]
pub struct BlockRegistersStaged<const N: usize>;

impl Access for Scalar {
    const CODE: u32 = SCALAR;
}

impl Access for Vectorized {
    const CODE: u32 = VECTORIZED;
}

impl Access for WholeTiles {
    const CODE: u32 = WHOLE_TILES;
}

impl Access for BlockTiles {
    const CODE: u32 = BLOCK_TILES;
}

impl<const N: usize> Access for WarpRegisters<N> {
    const CODE: u32 = WARP_REGISTERS + in_registers(N);
}

impl<const N: usize> Access for BlockRegisters<N> {
    const CODE: u32 = BLOCK_REGISTERS + in_registers(N);
}

impl<const N: usize> Access for BlockRegistersStaged<N> {
    const CODE: u32 = BLOCK_REGISTERS_STAGED + in_registers(N);
}

/// Maximum number of vec4s (vectors of four elements) of a row that a thread keeps in registers.
pub const MAX_IN_REGISTERS: usize = 12;

/// Returns `tiles` unchanged. With a value outside 1 to [`MAX_IN_REGISTERS`], the code does not compile.
const fn in_registers(tiles: usize) -> u32 {
    assert!(tiles > 0 && tiles <= MAX_IN_REGISTERS);
    tiles as u32
}
