//! The ways of reading and writing a row, as types.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// How the threads of a row read and write its columns, and where the row is between two passes over it. The
/// results of a row do not depend on it.
///
/// Kernels ask [`is_whole`] and the other functions of this module, which compare numbers. Constants of type
/// `bool` in the trait would be the same for a reader. But rustc resolves branches on them before LLVM sees them,
/// and kernels would get other instructions and register counts.
pub trait Access: Copy + 'static {
    /// The number of the type, as the functions of this module take it apart.
    #[doc(hidden)]
    const CODE: u32;
}

const SCALAR: u32 = 0;
const VECTORIZED: u32 = 1;
const WHOLE_TILES: u32 = 2;
const BLOCK_TILES: u32 = 3;
/// Plus the tiles of a warp, as the next two.
const WARP_REGISTERS: u32 = 16;
const BLOCK_REGISTERS_STAGED: u32 = 64;
const BLOCK_REGISTERS: u32 = 128;

/// Is one element an access?
#[inline(always)]
pub const fn is_scalar<A: Access>() -> bool {
    A::CODE == SCALAR
}

/// Are four elements an access? The row is `Rows::is_vec4s` then.
#[inline(always)]
pub const fn is_vector<A: Access>() -> bool {
    A::CODE != SCALAR
}

/// Is it [`Scalar`] or [`Vectorized`], which do not need rows of whole tiles?
#[inline(always)]
pub const fn is_any_length<A: Access>() -> bool {
    A::CODE < WHOLE_TILES
}

/// Do whole tiles fill the row, so that no thread asks whether it has columns in one of them? The row is
/// `Rows::is_vector` and [`Rows::is_near`] then and has four tiles or more, its columns are divisible by
/// [`TILE`](super::TILE), and rows are fewer than 2^30.
#[inline(always)]
pub const fn is_whole<A: Access>() -> bool {
    A::CODE >= WHOLE_TILES
}

/// Are whole rows staged in shared memory between the passes?
#[inline(always)]
pub const fn is_whole_staged<A: Access>() -> bool {
    A::CODE == WHOLE_TILES || A::CODE == BLOCK_TILES
}

/// Do the four warps of a block share a row? Each warp then has every fourth tile. Otherwise each warp has a row of its own.
#[inline(always)]
pub const fn is_block_shared<A: Access>() -> bool {
    matches!(A::CODE, BLOCK_TILES | BLOCK_REGISTERS_STAGED..)
}

/// Tiles of the row that each of its warps keeps in registers; 0: none.
#[inline(always)]
pub const fn tiles_in_registers<A: Access>() -> usize {
    tiles_of_code(A::CODE)
}

/// Is it [`BlockRegisters`]? No shared memory is allocated for the row, so a reduction cannot read it there.
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

/// One element at a time, of any row.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Four elements at a time.
#[derive(Clone, Copy)]
pub struct Vectorized;

/// Four elements at a time, of rows of whole tiles, which are staged in shared memory.
#[derive(Clone, Copy)]
pub struct WholeTiles;

/// As [`WholeTiles`], but the four warps of a block share one row.
#[derive(Clone, Copy)]
pub struct BlockTiles;

/// Four elements at a time, of rows of exactly `N` tiles, which a warp keeps in its registers between the passes. Shared memory
/// is not used.
#[derive(Clone, Copy)]
pub struct WarpRegisters<const N: usize>;

/// Four elements at a time, of rows of exactly `4 N` tiles, which the four warps of a block keep in their registers. Shared
/// memory has only what the reduction needs.
#[derive(Clone, Copy)]
pub struct BlockRegisters<const N: usize>;

/// As [`BlockRegisters`], with room for a row in shared memory.
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

/// The most vec4s of a row that stay in the registers of a thread.
pub const MAX_IN_REGISTERS: usize = 12;

/// `tiles`, which is 1 to [`MAX_IN_REGISTERS`]: anything else does not compile.
const fn in_registers(tiles: usize) -> u32 {
    assert!(tiles > 0 && tiles <= MAX_IN_REGISTERS);
    tiles as u32
}
