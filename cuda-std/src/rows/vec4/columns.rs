//! The columns of a row that a thread accesses.
use super::access::{Access, is_whole};
use super::vector::LEN;
use crate::rows::row::{RowIndex, Rows};
use crate::simt::{thread, warp};

/// Number of columns of a tile. A tile has one vec4 (four elements) for each lane of a warp.
pub const TILE: u32 = LEN * warp::SIZE;

/// The columns of a row that the calling thread accesses.
#[derive(Clone, Copy)]
pub struct Vec4Columns {
    /// The thread's first column.
    own: u32,
    pub(super) cols: u32,
}

impl Vec4Columns {
    /// Returns the columns that the calling thread accesses, for kernels in which each warp has its own row
    /// of `cols` columns. If the row does not exist, the thread has no columns.
    #[inline(always)]
    pub fn of_warp(at: RowIndex, cols: u32) -> Self {
        Self { own: LEN * warp::lane(), cols: if at.exists() { cols } else { 0 } }
    }

    /// Returns the columns that the calling thread accesses, for kernels in which each block has one row of
    /// `cols` columns. The row is divided into tiles of 128 columns. In a block of `n` warps, warp `w`
    /// accesses the tiles `w`, `w + n`, `w + 2 n`, and so on.
    #[inline(always)]
    pub fn of_block(at: RowIndex, cols: u32) -> Self {
        Self { own: LEN * thread::index()[0], cols: if at.exists() { cols } else { 0 } }
    }

    /// Returns the columns for a thread that accesses only one vec4 (four elements) of a row of `cols`
    /// columns. The vec4 starts at `column`. The thread accesses it by passing tile number 0 to the functions
    /// of the row.
    #[inline(always)]
    pub fn of_one(column: u32, cols: u32) -> Self {
        Self { own: column, cols }
    }

    /// Returns the first of the four columns that the thread accesses in tile number `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        self.own + tile * TILE
    }

    /// Returns the address of the thread's vec4 (four elements) of `tile`, for a row that starts at `start`.
    #[inline(always)]
    pub(super) fn place<T>(&self, start: *const T, tile: u32) -> *const T {
        start.wrapping_add(self.own as usize).wrapping_add((tile * TILE) as usize)
    }

    /// Returns how many of the thread's four columns of tile number `tile` lie inside the row, 0 to 4.
    #[inline(always)]
    pub fn count(&self, tile: u32) -> u32 {
        self.cols.saturating_sub(self.first(tile)).min(LEN)
    }

    /// Returns whether at least one of the thread's four columns of tile number `tile` lies inside the row.
    /// If `A` requires rows of whole tiles (128 columns each), the function returns true without a check.
    /// Kernels never access a tile past the end of such rows.
    #[inline(always)]
    pub fn has<A: Access>(&self, tile: u32) -> bool {
        is_whole::<A>() || self.first(tile) < self.cols
    }
}

impl Rows {
    /// Returns whether all rows start and end at a multiple of the size of four elements. A row has `cols`
    /// elements, and `element` is the size of one element in bytes.
    pub fn is_vec4s(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, LEN as usize * element)
    }
}
