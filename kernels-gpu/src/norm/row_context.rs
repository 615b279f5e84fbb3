//! A row as its threads see it: which columns a thread has, where the row is staged in shared memory, and the
//! launch's parameters.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_any_length, is_block_shared, is_whole, is_whole_staged};

use super::params::NormParams;

/// The row of the calling thread's warp, or the warp's part of the block's row. [`passes`](super::passes) has its
/// passes.
#[derive(Clone, Copy)]
pub(crate) struct RowContext<T, A> {
    pub at: RowIndex,
    pub columns: Vec4Columns,
    /// Where the row is staged, if it is.
    pub staged: SharedRow<T>,
    /// The parameters of the launch.
    pub p: NormParams,
    /// The warp's number among those of the row.
    pub warp: u32,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> RowContext<T, A> {
    /// That of the calling warp, if there is a row for it.
    #[inline(always)]
    pub fn of_warp(p: NormParams) -> Option<Self> {
        // Rows of four tiles and more are fewer: no memory holds as many.
        let mut team = Team::of_block();
        if is_block_shared::<A>() {
            // The same, in a way that tells the compiler that it is one row for all threads.
            team.row = u64::from(thread::block_index()[0]);
        }
        let at = if is_whole::<A>() {
            RowIndex::narrow(team, p.rows as u32, p.inner)
        } else {
            RowIndex::of(team, p.rows, p.inner)
        };
        if !at.exists() {
            return None;
        }
        let columns = if is_block_shared::<A>() {
            Vec4Columns::of_block(at, p.cols)
        } else {
            Vec4Columns::of_warp(at, p.cols)
        };
        let warp = if is_block_shared::<A>() { thread::index()[0] / warp::SIZE } else { 0 };
        let staged = Self::rows(&mut Self::memory().0, p.staged);
        Some(Self { at, columns, staged, p, warp, access: PhantomData })
    }

    /// The launch's shared memory for rows, and before it the room in which the warps of a row meet.
    #[inline(always)]
    pub fn memory() -> (SharedMemory, Shared<f32>) {
        let mut memory = SharedMemory::of_launch();
        let reduction_scratch = memory.take(if is_block_shared::<A>() { NormParams::SHARING } else { 0 });
        (memory, reduction_scratch)
    }

    #[inline(always)]
    fn rows(memory: &mut SharedMemory, tiles: u32) -> SharedRow<T> {
        if is_block_shared::<A>() {
            SharedRow::take_for_block(memory, tiles)
        } else {
            SharedRow::take(memory, tiles)
        }
    }

    /// Room for another row, if rows wait and the launch made it.
    #[inline(always)]
    pub fn another_row(&self) -> SharedRow<T> {
        let (mut memory, _) = Self::memory();
        let _rows = Self::rows(&mut memory, self.p.staged);
        Self::rows(&mut memory, self.p.staged)
    }

    /// Does the row wait in shared memory?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        is_whole_staged::<A>() || is_any_length::<A>() && self.p.staged > 0
    }

    /// The quad of `tile` that waits in shared memory, if rows do; zeros past the end.
    #[inline(always)]
    pub fn staged_vec4(&self, tile: u32) -> Option<Vec4<T>> {
        if !self.has_room() {
            return None;
        }
        Some(if self.columns.has::<A>(tile) { self.staged.get(tile) } else { Vec4::ZERO })
    }
}
