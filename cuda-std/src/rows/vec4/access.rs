//! The ways of reading and writing a row, as types.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// How the threads of a row read and write its columns, and where the row is between two passes over it. A
/// row's results do not depend on it.
pub trait Access: Copy + 'static {
    /// Are four elements one access? The row is `Rows::is_quads` then.
    const VECTOR: bool;
    /// Do whole tiles fill the row, so that no thread asks whether it has columns in one of them? The row is
    /// `Rows::is_vector` and [`Rows::is_near`], has four tiles or more, its columns are divisible by
    /// [`TILE`](super::TILE), and rows are fewer than 2^30.
    const WHOLE: bool = false;
    /// Do the four warps of a block share a row, of which each has every fourth tile? Otherwise each warp has
    /// a row.
    const BLOCK_SHARED: bool = false;
    /// Tiles of the row that stay in the registers of each of its warps; 0: none.
    const HELD: usize = 0;
    /// Does a row in registers have room in shared memory too, for reductions that read it there?
    const STAGED: bool = false;
}

/// One element at a time, of any row.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Four elements at a time.
#[derive(Clone, Copy)]
pub struct Vec4;

/// Four elements at a time, of rows of whole tiles, which are staged in shared memory.
#[derive(Clone, Copy)]
pub struct WholeTiles;

/// As [`WholeTiles`], of rows each of which a block shares.
#[derive(Clone, Copy)]
pub struct BlockTiles;

/// As [`WholeTiles`], of rows of `N` tiles that stay in the registers of their warp.
#[derive(Clone, Copy)]
pub struct WarpRegisters<const N: usize>;

/// As [`BlockTiles`], of rows of `4 N` tiles that stay in the registers of the block's warps.
#[derive(Clone, Copy)]
pub struct BlockRegisters<const N: usize>;

/// As [`BlockRegisters`], with room for a row in shared memory.
#[derive(Clone, Copy)]
pub struct BlockRegistersStaged<const N: usize>;

impl Access for Scalar {
    const VECTOR: bool = false;
}

impl Access for Vec4 {
    const VECTOR: bool = true;
}

impl Access for WholeTiles {
    const VECTOR: bool = true;
    const WHOLE: bool = true;
}

impl Access for BlockTiles {
    const VECTOR: bool = true;
    const WHOLE: bool = true;
    const BLOCK_SHARED: bool = true;
}

impl<const N: usize> Access for WarpRegisters<N> {
    const VECTOR: bool = true;
    const WHOLE: bool = true;
    const HELD: usize = in_registers(N);
}

impl<const N: usize> Access for BlockRegisters<N> {
    const VECTOR: bool = true;
    const WHOLE: bool = true;
    const BLOCK_SHARED: bool = true;
    const HELD: usize = in_registers(N);
}

impl<const N: usize> Access for BlockRegistersStaged<N> {
    const VECTOR: bool = true;
    const WHOLE: bool = true;
    const BLOCK_SHARED: bool = true;
    const HELD: usize = in_registers(N);
    const STAGED: bool = true;
}

/// The most quads of a row that stay in a thread's registers.
pub const MOST_HELD: usize = 12;

/// `tiles`, which is 1 to [`MOST_HELD`]: anything else does not compile.
const fn in_registers(tiles: usize) -> usize {
    assert!(tiles > 0 && tiles <= MOST_HELD);
    tiles
}
