//! The trait `Access` and its implementing types. Each type stands for one way in which threads read and
//! write a row.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// The way in which threads read and write a row, and the place where the row stays between two passes over
/// it. For example, the row may stay in registers or in shared memory. The results are the same with each
/// implementing type.
///
/// A kernel calls functions of this module, such as [`is_whole`], which compare the constant `CODE`. One
/// `bool` constant per property in the trait would be easier to read. However, rustc would remove branches on
/// such constants before LLVM optimizes the code, which changes the instructions and register counts of
/// kernels.
pub trait Access: Copy + 'static {
    /// A number that encodes the implementing type and its constant parameter `N`. The functions of this
    /// module decode the number.
    #[doc(hidden)]
    const CODE: u32;
}

const SCALAR: u32 = 0;
const VECTORIZED: u32 = 1;
const WHOLE_TILES: u32 = 2;
const BLOCK_TILES: u32 = 3;
/// The code of an access type (how a thread reads rows) that keeps a row in registers is a sum of two
/// numbers. The first is [`WARP_REGISTERS`], [`BLOCK_REGISTERS_STAGED`] or [`BLOCK_REGISTERS`], depending on
/// the type. The second says how many tiles (128 columns each) of the row each warp keeps in registers.
const WARP_REGISTERS: u32 = 16;
const BLOCK_REGISTERS_STAGED: u32 = 64;
const BLOCK_REGISTERS: u32 = 128;

/// Returns whether a thread reads one element per access.
#[inline(always)]
pub const fn is_scalar<A: Access>() -> bool {
    A::CODE == SCALAR
}

/// Returns whether a thread reads four elements per access. If so, the row satisfies the alignment check
/// `Rows::is_vec4s`.
#[inline(always)]
pub const fn is_vector<A: Access>() -> bool {
    A::CODE != SCALAR
}

/// Returns whether the access type (how a thread reads rows) is [`Scalar`] or [`Vectorized`]. With these two
/// types, the length of a row need not be a multiple of a tile (128 columns).
#[inline(always)]
pub const fn is_any_length<A: Access>() -> bool {
    A::CODE < WHOLE_TILES
}

/// Returns whether rows consist of whole tiles (128 columns each) with this access type, which determines how
/// a thread reads rows. Threads then need no bounds checks.
///
/// The host uses such an access type only if further conditions hold. The rows satisfy `Rows::is_vector`
/// (16-byte alignment) and [`Rows::is_near`] (strides of 32 bits). A row has at least four tiles of
/// [`TILE`](super::TILE) columns, and the tensor has fewer than 2^30 rows.
#[inline(always)]
pub const fn is_whole<A: Access>() -> bool {
    A::CODE >= WHOLE_TILES
}

/// Returns whether the access type (how a thread reads rows) is [`WholeTiles`] or [`BlockTiles`]. With these
/// two types, the row is staged in shared memory between the passes over it.
#[inline(always)]
pub const fn is_whole_staged<A: Access>() -> bool {
    A::CODE == WHOLE_TILES || A::CODE == BLOCK_TILES
}

/// Returns whether the four warps of a block share a row. If so, each warp accesses every fourth tile (128
/// columns) of it. If not, each warp has its own row.
#[inline(always)]
pub const fn is_block_shared<A: Access>() -> bool {
    matches!(A::CODE, BLOCK_TILES | BLOCK_REGISTERS_STAGED..)
}

/// Returns how many tiles (128 columns each) of a row each warp keeps in registers. Returns 0 if the row does
/// not stay in registers.
#[inline(always)]
pub const fn tiles_in_registers<A: Access>() -> usize {
    tiles_of_code(A::CODE)
}

/// Returns whether the access type (how a thread reads rows) is [`BlockRegisters`]. With this type, the row
/// is not in shared memory, so a reduction must not read it from there.
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
/// registers between the passes over it. Kernels with this type use no shared memory.
#[derive(Clone, Copy)]
pub struct WarpRegisters<const N: usize>;

/// Reads four elements per access, for rows of exactly `4 * N` tiles (128 columns each). The four warps of a
/// block share one row and keep it in registers, `N` tiles per warp. Shared memory contains only the partial
/// results of reductions.
#[derive(Clone, Copy)]
pub struct BlockRegisters<const N: usize>;

/// Does the same as [`BlockRegisters`], but the block also has shared memory for one row.
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

/// Returns `tiles` unchanged. If `tiles` is not in the range from 1 to [`MAX_IN_REGISTERS`], the code does
/// not compile.
const fn in_registers(tiles: usize) -> u32 {
    assert!(tiles > 0 && tiles <= MAX_IN_REGISTERS);
    tiles as u32
}
