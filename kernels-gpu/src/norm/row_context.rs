//! The row that a thread processes: the index of the row, the thread's columns, the copy of the row in shared
//! memory, and the launch parameters.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_any_length, is_block_shared, is_whole, is_whole_staged};

use super::params::NormParams;

/// The row that the calling thread processes. Either one warp or the four warps of a block process a row.
///
/// The two passes over the row are in [`passes`](super::passes).
#[derive(Clone, Copy)]
pub(crate) struct RowContext<T, A> {
    pub at: RowIndex,
    pub columns: Vec4Columns,
    /// The copy of the row in shared memory. The access type `A` (how a thread reads rows) decides whether
    /// the kernel makes this copy. Kernels without the copy must not access this field.
    pub staged: SharedRow<T>,
    /// The parameters of the launch.
    pub p: NormParams,
    /// The warp's index among the warps that share the row. The index is 0 if one warp processes the whole
    /// row.
    pub warp: u32,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> RowContext<T, A> {
    /// Returns the row that the calling warp processes, or `None` if the index of this row is past the last
    /// row.
    #[inline(always)]
    pub fn of_warp(p: NormParams) -> Option<Self> {
        let mut team = Team::of_block();
        if is_block_shared::<A>() {
            // Read the row index from `blockIdx.x`. `team.row` already has this value, because the block
            // processes one row. With `blockIdx.x`, however, the compiler knows that the index is equal in
            // all threads of the block.
            team.row = u64::from(thread::block_index()[0]);
        }
        // If rows consist of whole tiles (128 columns each), 32 bits suffice for the index of a row. The host
        // checked that such a launch has fewer than 2^30 rows.
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

    /// Returns two parts of the shared memory: one for staged rows, and one for the block reduction. The part
    /// for the block reduction has the lower addresses.
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

    /// Returns a second row in shared memory, for a second operand. The access type `A` (how a thread reads
    /// rows) decides whether the kernel stages rows in shared memory. If not, the kernel must not access this
    /// second row.
    #[inline(always)]
    pub fn another_row(&self) -> SharedRow<T> {
        let (mut memory, _) = Self::memory();
        let _rows = Self::rows(&mut memory, self.p.staged);
        Self::rows(&mut memory, self.p.staged)
    }

    /// Returns whether the row is staged in shared memory.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        is_whole_staged::<A>() || is_any_length::<A>() && self.p.staged > 0
    }

    /// Returns the thread's vec4 (four columns) of `tile` from shared memory, or `None` if rows are not
    /// staged there. Past the end of the row, the vec4 is zero.
    #[inline(always)]
    pub fn staged_vec4(&self, tile: u32) -> Option<Vec4<T>> {
        if !self.has_room() {
            return None;
        }
        Some(if self.columns.has::<A>(tile) { self.staged.get(tile) } else { Vec4::ZERO })
    }
}
