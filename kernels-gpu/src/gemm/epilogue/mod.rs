//! What a matrix product computes from its sums before it writes them.
//!
//! A thread computes the results of a fragment together: eight elements of a block of 16 x 16 elements. The
//! order of these elements is the order of two accumulators of `mma.sync`, and of a `wgmma` accumulator:
//! value
//! `i` is in row `i / 2 % 2 * 8` and column `i / 4 * 8 + i % 2`, counted from the thread's first element. Two
//! neighbouring values form a word of `stmatrix`.
//!
//! - `identity`: the sums.
//! - `activation`, `gated_activation`: activation functions.
//! - `gated_residual`: `residual + gate * sum`.
//! - `fragments`: selects a fragment, and loads operands for it.
pub mod activation;
pub(crate) mod fragments;
pub mod gated_activation;
pub mod gated_residual;
pub(crate) mod identity;

use cuda_std::elem::Elem;
use fragments::FragmentPlace;

/// The last step of a matrix product.
pub(crate) trait Epilogue: Copy {
    /// Whether a loop over the fragments of a thread is unrolled. The code of a short epilogue is then
    /// faster. The code of a long epilogue, with a selection among several functions, would become too long.
    const UNROLLED: bool = false;
    /// Whether the epilogue combines two halves of the columns of `x wᵀ`. The result then has half as many
    /// columns. A thread has the sums of both halves.
    const HALVES: bool = false;
    /// A thread's operands of a fragment, such as elements of a residual.
    type Fetched: Copy;

    /// Returns the row of `w`, and the index in the bias, of column 0 of the result. If the epilogue has two
    /// halves, there is one such row for each of them.
    #[inline(always)]
    fn starts(&self) -> [u32; 2] {
        [0, 0]
    }

    /// Starts to load the rows of the operands for a tile into L2. The tile has `columns` columns, and
    /// `[row, column]` is the place of the first element that belongs to this thread.
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was made belongs to this launch.
    #[inline(always)]
    unsafe fn prefetch(&self, _at: [u32; 2], _columns: u32) {}

    /// Loads the operands of a fragment.
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was made belongs to this launch.
    unsafe fn fetch(&self, at: FragmentPlace) -> Self::Fetched;

    /// Returns the results of a fragment, rounded to `T` and in pairs. `sums` are the sums of the products
    /// plus the bias, in f32. If the epilogue has two halves, `sums` has a fragment of each half. Otherwise,
    /// the second fragment has no meaning.
    fn apply<T: Elem<F32Vec = [f32; 8]>>(&self, sums: [[f32; 8]; 2], operands: Self::Fetched) -> [u32; 4];
}
