//! The two ends of the [`passes`](super::passes): where a row comes from, and what becomes of it.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::reduce::stats::Stats;
use super::row_context::RowContext;

/// Where the rows to be normalised come from.
pub(crate) trait Source<T: Elem, A: Access>: Copy {
    /// What a quad is made of.
    type Parts: Copy;
    /// Nothing yet.
    const NOTHING: Self::Parts;
    /// Brings what the warp's row is made of to where it waits.
    fn stage(&self, row: &RowContext<T, A>);
    /// Reads what the thread's quad of `tile` is made of.
    fn parts(&self, row: &RowContext<T, A>, tile: u32) -> Self::Parts;
    /// Makes the quad, which then waits, if rows do.
    fn make(&self, row: &RowContext<T, A>, tile: u32, parts: Self::Parts) -> Vec4<T>;
    /// The same quad again, of a row that is too long to wait.
    fn again(&self, tile: u32) -> Vec4<T>;
}

/// A row as it is.
impl<T: Elem, A: Access> Source<T, A> for Vec4Row<T, A> {
    type Parts = Vec4<T>;
    const NOTHING: Vec4<T> = Vec4::ZERO;
    #[inline(always)]
    fn stage(&self, row: &RowContext<T, A>) {
        self.copy_to(&row.staged, row.p.packs != 0);
        row.staged.wait();
    }
    #[inline(always)]
    fn parts(&self, row: &RowContext<T, A>, tile: u32) -> Vec4<T> {
        row.staged_vec4(tile).unwrap_or_else(|| self.get(tile))
    }
    #[inline(always)]
    fn make(&self, _: &RowContext<T, A>, _: u32, vec4: Vec4<T>) -> Vec4<T> {
        vec4
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Vec4<T> {
        self.get(tile)
    }
}

/// What becomes of the quads in the second pass.
pub(crate) trait Sink<T: Elem> {
    /// Are there registers to read beside a whole group before anything is done with it?
    const GROUPED: bool;
    /// Is what is read beside a held row so little that all of it may wait for the reduction?
    const EARLY: bool = false;
    /// Quads of a held row of which what is beside them is read together.
    const PREFETCH: usize = 4;
    /// What is read beside a quad.
    type Fetched: Copy;
    /// Nothing yet.
    const EMPTY: Self::Fetched;
    /// Reads the thread's part of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Writes what the quad makes with it, in a row of these moments.
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, fetched: Self::Fetched);
}
