//! Which columns of a row a thread has.
use super::access::{Access, is_whole};
use super::vector::LEN;
use crate::rows::row::{RowIndex, Rows};
use crate::simt::{thread, warp};

/// Columns of a tile.
pub const TILE: u32 = LEN * warp::SIZE;

/// The columns that a thread holds of its row.
#[derive(Clone, Copy)]
pub struct Vec4Columns {
    /// The thread's first column.
    own: u32,
    pub(super) cols: u32,
}

impl Vec4Columns {
    /// Those of the calling thread in its warp's row of `cols` columns; none if there is no row.
    #[inline(always)]
    pub fn of_warp(at: RowIndex, cols: u32) -> Self {
        Self { own: LEN * warp::lane(), cols: if at.exists() { cols } else { 0 } }
    }

    /// Those of the calling thread in its block's row: a warp has every tile of its own number modulo theirs.
    #[inline(always)]
    pub fn of_block(at: RowIndex, cols: u32) -> Self {
        Self { own: LEN * thread::index()[0], cols: if at.exists() { cols } else { 0 } }
    }

    /// The quad at `column` of a row of `cols` columns, as tile 0 of a thread that has no other.
    #[inline(always)]
    pub fn of_one(column: u32, cols: u32) -> Self {
        Self { own: column, cols }
    }

    /// The thread's first column of `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        self.own + tile * TILE
    }

    /// Where the thread's quad of `tile` lies in the row that starts at `start`.
    #[inline(always)]
    pub(super) fn place<T>(&self, start: *const T, tile: u32) -> *const T {
        start.wrapping_add(self.own as usize).wrapping_add((tile * TILE) as usize)
    }

    /// How many of the quad's columns the row has, 0 to 4.
    #[inline(always)]
    pub fn count(&self, tile: u32) -> u32 {
        self.cols.saturating_sub(self.first(tile)).min(LEN)
    }

    /// Does the row reach into the thread's quad? Of rows of whole tiles no thread asks beyond them.
    #[inline(always)]
    pub fn has<A: Access>(&self, tile: u32) -> bool {
        is_whole::<A>() || self.first(tile) < self.cols
    }
}

impl Rows {
    /// May rows of `cols` elements of `element` bytes be accessed four elements at a time?
    pub fn is_vec4s(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, LEN as usize * element)
    }
}
