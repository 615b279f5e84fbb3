//! Epilogues of matrix products: the computations between the accumulators of `x wᵀ + bias` and the stores of
//! the result.
//!
//! A thread processes its accumulators in fragments. A fragment is the thread's eight elements of a block of
//! 16 x 16 elements of the result. Element `i` of the fragment lies `i / 2 % 2 * 8` rows below element 0, and
//! `i / 4 * 8 + i % 2` columns to the right of it. Two adjacent `mma.sync` accumulators contain the elements
//! in this order, and so do eight registers of a `wgmma` accumulator. Elements `2 * i` and `2 * i + 1` form a
//! word of `stmatrix`.
//!
//! - `identity`: the result is `x wᵀ + bias`.
//! - `activation`, `gated_activation`: activation functions.
//! - `gated_residual`: `residual + gate * (x wᵀ + bias)`.
//! - `scaled`: multiplies `x wᵀ` by scales of `x` and `w`, before another epilogue.
//! - `fragments`: selects a fragment, and loads the operands of the epilogue for it.
pub mod activation;
pub(crate) mod fragments;
pub mod gated_activation;
pub mod gated_residual;
pub(crate) mod identity;
pub mod scaled;

use cuda_std::elem::Elem;
use fragments::FragmentPlace;

/// The last step of a matrix product.
pub(crate) trait Epilogue: Copy {
    /// Whether to unroll the loop over a thread's fragments (eight accumulators each). Unrolling makes short
    /// epilogues faster. In long epilogues, such as a selection among several functions, unrolling would make
    /// the code too long.
    const UNROLLED: bool = false;
    /// Whether the epilogue combines two halves of the columns of `x wᵀ`, so that the result has half as many
    /// columns. Each thread then has the accumulators of both halves.
    const HALVES: bool = false;
    /// Whether the epilogue has an operand with the rows and columns of the result, such as a residual.
    const OPERAND: bool = false;
    /// Whether the rows of the operands of the product have scales.
    const ROW_SCALES: bool = false;
    /// Whether blocks of the operands of the product have scales.
    const BLOCK_SCALES: bool = false;
    /// A thread's elements of the other operands for one fragment (eight accumulators), for example elements
    /// of a gate.
    type Fetched: Copy;

    /// Returns the row of `w` (the weight) that gives column 0 of the result. The bias of this column has the
    /// same index. If the epilogue combines two halves of `x wᵀ`, the result has one such row for each half.
    #[inline(always)]
    fn starts(&self) -> [u32; 2] {
        [0, 0]
    }

    /// Multiplies the sums of a fragment by the scales of the rows. If `ROW_SCALES` is false, returns the
    /// sums. `start` is the row of `w` that gives column 0.
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was created belongs to this launch.
    #[inline(always)]
    unsafe fn scale(&self, sums: [f32; 8], _at: FragmentPlace, _start: u32) -> [f32; 8] {
        sums
    }

    /// Returns the scales of a row of `x` and of a row of `w`, for block `block` of 128 elements of K. If
    /// `BLOCK_SCALES` is false, returns 1.
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was created belongs to this launch.
    #[inline(always)]
    unsafe fn block_scales(&self, _x_row: u32, _w_row: u32, _block: u32) -> [f32; 2] {
        [1.0; 2]
    }

    /// Loads a thread's elements of the operand with the rows and columns of the result, with two elements
    /// per word. The Hopper kernels do not call this method, because TMA loads the operand.
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was created belongs to this launch.
    #[inline(always)]
    unsafe fn operand(&self, _at: FragmentPlace) -> [u32; 4] {
        [0; 4]
    }

    /// Loads the epilogue's other operands for one fragment (eight accumulators of a thread).
    ///
    /// # Safety
    /// The kernel argument from which the epilogue was created belongs to this launch.
    unsafe fn fetch(&self, at: FragmentPlace) -> Self::Fetched;

    /// Returns the results of a fragment, rounded to the 16-bit type `T`, with two results per word. `sums`
    /// has the fragment's eight elements of `x wᵀ + bias`, in f32. If the epilogue combines two halves of the
    /// columns, `sums` has a fragment of each half. If it does not, only the first fragment of `sums` is
    /// valid. `operand` has the thread's elements of the operand with the rows and columns of the result.
    fn apply<T: Elem<F32Vec = [f32; 8]>>(
        &self,
        sums: [[f32; 8]; 2],
        operand: [u32; 4],
        fetched: Self::Fetched,
    ) -> [u32; 4];
}
