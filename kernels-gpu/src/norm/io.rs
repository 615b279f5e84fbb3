//! The input ([`Source`]) and the output ([`Sink`]) of the two [`passes`](super::passes) of a norm.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::reduce::stats::Stats;
use super::row_context::RowContext;

/// The row to be normalised, as a function of the operands that it is computed from.
///
/// A tile is 128 columns of a row: one vec4 for each of 32 threads.
pub(crate) trait Source<T: Elem, A: Access>: Copy {
    /// The loaded operands of one vec4.
    type Parts: Copy;
    /// Initial value of a `Parts` variable that is not loaded yet.
    const NOTHING: Self::Parts;
    /// Copies the row's operands to shared memory, and waits for the copies.
    fn stage(&self, row: &RowContext<T, A>);
    /// Loads the operands of the thread's vec4 of `tile`.
    fn parts(&self, row: &RowContext<T, A>, tile: u32) -> Self::Parts;
    /// Computes the thread's vec4 of `tile` from `parts`. If rows are staged, the staged row then contains
    /// this vec4.
    fn make(&self, row: &RowContext<T, A>, tile: u32, parts: Self::Parts) -> Vec4<T>;
    /// Returns the vec4 of `tile` in the second pass, if the row is too long to be staged.
    fn again(&self, tile: u32) -> Vec4<T>;
}

/// A row of one operand, without computation.
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

/// The second pass: it computes the results of each vec4 and writes them.
pub(crate) trait Sink<T: Elem> {
    /// `true` if the operands of a whole group of vec4s fit in registers, so that their loads are in flight
    /// together.
    const GROUPED: bool;
    /// `true` if the operands of a whole row fit in registers. If the row is in registers too, they are then
    /// loaded before the block reduction.
    const EARLY: bool = false;
    /// Number of vec4s of a row in registers whose operands are loaded together.
    const PREFETCH: usize = 4;
    /// The loaded operands of one vec4: scale and shift, for example.
    type Fetched: Copy;
    /// Initial value of a `Fetched` variable that is not loaded yet.
    const EMPTY: Self::Fetched;
    /// Loads the operands for the thread's columns of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Computes and writes the results of `vec4` in `tile`, with the statistics of its row and the loaded
    /// operands.
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, fetched: Self::Fetched);
}
