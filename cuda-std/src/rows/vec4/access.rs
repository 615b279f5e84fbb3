//! The ways of reading and writing a row, as types.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// How threads read and write the columns of a row, and where the row stays between two passes over it. The
/// choice does not change the results.
///
/// Kernels call functions of this module, such as [`is_whole`], which compare `CODE`. Constants of type
/// `bool` in the trait would be easier to read. However, rustc resolves branches on such constants before
/// LLVM processes the code. The early resolution changes the instructions and register counts of kernels.
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
/// Each of the constants [`WARP_REGISTERS`], [`BLOCK_REGISTERS_STAGED`] and [`BLOCK_REGISTERS`] is the start
/// of a range of codes. The code of a type is the start of its range plus the number of tiles (128 columns
/// each) that each warp keeps in registers.
const WARP_REGISTERS: u32 = 16;
const BLOCK_REGISTERS_STAGED: u32 = 64;
const BLOCK_REGISTERS: u32 = 128;

/// Whether one access reads one element.
#[inline(always)]
pub const fn is_scalar<A: Access>() -> bool {
    A::CODE == SCALAR
}

/// Whether one access reads four elements. The row then satisfies `Rows::is_vec4s`.
#[inline(always)]
pub const fn is_vector<A: Access>() -> bool {
    A::CODE != SCALAR
}

/// Whether the type is [`Scalar`] or [`Vectorized`]. With these types, the length of a row need not be a
/// multiple of a tile (128 columns).
#[inline(always)]
pub const fn is_any_length<A: Access>() -> bool {
    A::CODE < WHOLE_TILES
}

/// Whether the row consists of whole tiles (128 columns each), so that threads need no bounds checks.
///
/// The host ensures that the row then satisfies `Rows::is_vector` and [`Rows::is_near`]. The row has at least
/// four tiles of [`TILE`](super::TILE) columns, and the tensor has fewer than 2^30 rows.
#[inline(always)]
pub const fn is_whole<A: Access>() -> bool {
    A::CODE >= WHOLE_TILES
}

/// Whether whole rows are staged in shared memory between the passes.
#[inline(always)]
pub const fn is_whole_staged<A: Access>() -> bool {
    A::CODE == WHOLE_TILES || A::CODE == BLOCK_TILES
}

/// Whether the four warps of a block share a row, so that each warp has every fourth tile (128 columns).
/// Otherwise each warp has its own row.
#[inline(always)]
pub const fn is_block_shared<A: Access>() -> bool {
    matches!(A::CODE, BLOCK_TILES | BLOCK_REGISTERS_STAGED..)
}

/// Number of tiles (128 columns each) of a row that each warp keeps in registers, or 0 if the row does not
/// stay in registers.
#[inline(always)]
pub const fn tiles_in_registers<A: Access>() -> usize {
    tiles_of_code(A::CODE)
}

/// Whether the type is [`BlockRegisters`]. The row is then not in shared memory, so a reduction must not read
/// it there.
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

/// One element per access, for any row.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Four elements per access.
#[derive(Clone, Copy)]
pub struct Vectorized;

/// Reads four elements per access, for rows of whole tiles (128 columns each). The row is staged in shared
/// memory between the passes over the row.
#[derive(Clone, Copy)]
pub struct WholeTiles;

/// Reads four elements per access, for rows of whole tiles (128 columns each). The four warps of a block
/// share one row, which is staged in shared memory between the passes over the row.
#[derive(Clone, Copy)]
pub struct BlockTiles;

/// Reads four elements per access, for rows of exactly `N` tiles (128 columns each). A warp keeps the row in
/// registers between the passes over the row. No shared memory is used.
#[derive(Clone, Copy)]
pub struct WarpRegisters<const N: usize>;

/// Reads four elements per access, for rows of exactly `4 * N` tiles (128 columns each). The four warps of a
/// block keep the row in registers. Shared memory contains only the partial results of reductions.
#[derive(Clone, Copy)]
pub struct BlockRegisters<const N: usize>;

/// As [`BlockRegisters`], with additional shared memory for one row.
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

/// Maximum number of vec4s (four elements each) of a row that a thread keeps in registers.
pub const MAX_IN_REGISTERS: usize = 12;

/// Returns `tiles`. A value outside 1 to [`MAX_IN_REGISTERS`] does not compile.
const fn in_registers(tiles: usize) -> u32 {
    assert!(tiles > 0 && tiles <= MAX_IN_REGISTERS);
    tiles as u32
}
