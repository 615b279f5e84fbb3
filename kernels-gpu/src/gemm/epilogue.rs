//! What a matrix product computes from its sums before it writes them.
use cuda_std::elem::Elem;

/// The last step of a matrix product.
pub(crate) trait Epilogue: Copy {
    /// Returns the value to write for `sum`, the sum of the products plus the bias, in f32. The caller rounds
    /// the value to `T`.
    fn apply<T: Elem>(sum: f32) -> f32;
}

/// Writes the sums.
#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl Epilogue for Identity {
    #[inline(always)]
    fn apply<T: Elem>(sum: f32) -> f32 {
        sum
    }
}
