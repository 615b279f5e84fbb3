//! The input ([`Source`]) and the output ([`Sink`]) of a norm. A norm processes each row in two
//! [`passes`](super::passes).
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::reduce::stats::Stats;
use super::row_context::RowContext;

/// The input of a norm: a row that is computed from one or more operands, for example `x + gate * y`.
///
/// A tile is 128 columns of a row: one vec4 (four columns) for each thread of a warp.
pub(crate) trait Source<T: Elem, A: Access>: Copy {
    /// The loaded operands of one vec4.
    type Parts: Copy;
    /// Initial value of a `Parts` variable that is not loaded yet.
    const NOTHING: Self::Parts;
    /// Copies the row's operands to shared memory, and waits for the copies.
    fn stage(&self, row: &RowContext<T, A>);
    /// Loads the operands from which the thread's vec4 (four columns) of `tile` is computed.
    fn parts(&self, row: &RowContext<T, A>, tile: u32) -> Self::Parts;
    /// Computes the thread's vec4 (four columns) of `tile` from the loaded operands `parts`. If the kernel
    /// stages rows in shared memory, this call also writes the vec4 there.
    fn make(&self, row: &RowContext<T, A>, tile: u32, parts: Self::Parts) -> Vec4<T>;
    /// Returns the thread's vec4 (four columns) of `tile` for the second pass. The second pass calls this
    /// method only if the kernel does not stage rows in shared memory.
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

/// The second pass of a norm: computes the results from the statistics of the row, and writes them.
pub(crate) trait Sink<T: Elem> {
    /// `true` if a thread has enough registers to load operands such as scale and shift for several vec4s
    /// (four columns each) together.
    const GROUPED: bool;
    /// `true` if a thread has enough registers to load operands such as scale and shift for all its columns
    /// of a row. If the row also stays in registers, the kernel then loads these operands before the block
    /// reduction, so that their latency overlaps with the reduction.
    const EARLY: bool = false;
    /// The number of vec4s (four columns each) whose scale and shift are loaded together. Only kernels that
    /// keep rows in registers use this number.
    const PREFETCH: usize = 4;
    /// The loaded operands of one vec4: scale and shift, for example.
    type Fetched: Copy;
    /// Initial value of a `Fetched` variable that is not loaded yet.
    const EMPTY: Self::Fetched;
    /// Loads the operands for the thread's columns of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// Computes the results for the thread's four columns of `tile`, and writes them. `vec4` contains the
    /// input values of these columns. `stats` contains the statistics of the row, and `fetched` contains the
    /// loaded operands, such as scale and shift.
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, fetched: Self::Fetched);
}
