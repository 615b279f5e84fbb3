//! A row as its threads see it: which columns a thread has, and where the row is staged in shared memory.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::params::Params;

/// The row of the calling thread's warp or block.
#[derive(Clone, Copy)]
pub(crate) struct RowContext<T, A> {
    pub at: RowAt,
    pub columns: QuadColumns,
    /// Where the row is staged, if it is.
    pub staged: Staged<T>,
    /// Tiles that shared memory has room for: all, or none.
    room: u32,
    /// Are the rows that are staged `Rows::is_vector`?
    pub packs: bool,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> RowContext<T, A> {
    /// Of the row at `at`.
    #[inline(always)]
    pub fn of(at: RowAt, columns: QuadColumns, p: Params) -> Self {
        let staged = Self::rows(&mut Self::memory().0, p.staged);
        Self { at, columns, staged, room: p.staged, packs: p.packs != 0, access: PhantomData }
    }

    /// The launch's shared memory for rows, and before it the room in which the warps of a row meet.
    #[inline(always)]
    pub fn memory() -> (SharedMemory, Shared<f32>) {
        let mut memory = SharedMemory::of_launch();
        let meeting = memory.take(if A::BLOCK_SHARED { Params::SHARING } else { 0 });
        (memory, meeting)
    }

    #[inline(always)]
    fn rows(memory: &mut SharedMemory, tiles: u32) -> Staged<T> {
        if A::BLOCK_SHARED { Staged::take_for_block(memory, tiles) } else { Staged::take(memory, tiles) }
    }

    /// Room for another row, if rows wait and the launch made it.
    #[inline(always)]
    pub fn another_row(&self) -> Staged<T> {
        let (mut memory, _) = Self::memory();
        let _rows = Self::rows(&mut memory, self.room);
        Self::rows(&mut memory, self.room)
    }

    /// Does the row wait in shared memory?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        A::HELD == 0 && (A::WHOLE || self.room > 0)
    }

    /// The quad of `tile` that waits in shared memory, if rows do; zeros past the end.
    #[inline(always)]
    pub fn waiting(&self, tile: u32) -> Option<Quad<T>> {
        if !self.has_room() {
            return None;
        }
        Some(if self.columns.has::<A>(tile) { self.staged.get(tile) } else { Quad::ZERO })
    }
}
