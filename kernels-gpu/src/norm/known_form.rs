//! Selects the instantiation of a generic kernel body that matches the form of the operands. The form says
//! which dtypes the operands have, and which operands are a sum `table + value` of two tensors.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_any_length};

use super::affine::{AffineRow, DenseAffine, Parameters};
use super::operand::ModulationRow;
use super::operand_forms::{Dense, ModulationSource, WithTable};
use super::params::{NormParams, OperandForm};

/// Specifies whether a norm rounds to the element type after each step. The implementation [`Rounds`]
/// specifies this at compile time, and the implementation `bool` at run time.
pub(crate) trait RoundEach: Copy {
    /// Returns `true` to round after each step, `false` to round once at the end.
    fn get(self) -> bool;
}

/// Specifies at compile time whether a norm rounds after each step.
#[derive(Clone, Copy)]
pub(crate) struct Rounds<const EACH: bool>;

impl<const EACH: bool> RoundEach for Rounds<EACH> {
    #[inline(always)]
    fn get(self) -> bool {
        EACH
    }
}

impl RoundEach for bool {
    #[inline(always)]
    fn get(self) -> bool {
        self
    }
}

/// A kernel body that is generic over the form of its operands. The form says which dtypes the operands have,
/// and which operands are a sum `table + value`.
pub(crate) trait Formed<T: Elem, A: Access> {
    /// Runs the body with the loader `F` for scale, shift and gate, and the loader `P` for weight and bias.
    ///
    /// # Safety
    /// The operands have the dtypes that these loaders expect.
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R);
}

/// Runs the instantiation of the kernel body `part` that matches `p.form`. This form says which dtypes the
/// operands have, and which operands are a sum `table + value`. The access type `A` says how many elements
/// one load reads. If `A` allows rows of any length, there is only one instantiation, which tests the form at
/// run time.
///
/// If a kernel has two outputs and `A` requires whole tiles of 128 columns, the form must be
/// [`OperandForm::SAME`].
///
/// # Safety
/// `p.form` states the dtypes and tables of the operands correctly.
#[inline(always)]
pub(crate) unsafe fn in_form<T: Elem, const OUTPUTS: usize, A: Access>(
    part: impl Formed<T, A>,
    p: NormParams,
) {
    // For f32 rows, rounding after each step does not change the results. All f32 kernels therefore use the
    // instantiation that rounds after each step, and the compiler removes the other instantiation.
    let each = p.round_each != 0 || size_of::<T>() == 4;
    // SAFETY: `run` requires loaders for the dtypes of the operands. `p.form` states these dtypes, and each
    // branch uses loaders for them.
    unsafe {
        if known!(is_any_length::<A>()) {
            part.run::<ModulationRow<T, A>, AffineRow<T, A>, _>(each)
        } else if OUTPUTS == 1
            && let OperandForm::AFFINE = p.form
            && each
        {
            part.run::<Dense<T, A>, DenseAffine<T, A, true>, _>(Rounds::<true>)
        } else if OUTPUTS == 1
            && let OperandForm::AFFINE = p.form
        {
            part.run::<Dense<T, A>, DenseAffine<T, A, true>, _>(Rounds::<false>)
        } else if OUTPUTS == 1
            && let OperandForm::PARTLY_AFFINE = p.form
        {
            part.run::<Dense<T, A>, DenseAffine<T, A, false>, _>(each)
        } else if OUTPUTS == 1
            && let OperandForm::F32 = p.form
            && size_of::<T>() == 2
        {
            part.run::<Dense<f32, A>, (), _>(Rounds::<false>)
        } else if OUTPUTS == 1
            && let OperandForm::F32_AFFINE = p.form
            && size_of::<T>() == 2
        {
            part.run::<Dense<f32, A>, DenseAffine<f32, A, true>, _>(Rounds::<false>)
        } else if OUTPUTS == 1
            && let OperandForm::TABLED = p.form
            && each
        {
            part.run::<WithTable<T, A>, (), _>(Rounds::<true>)
        } else if OUTPUTS == 1
            && let OperandForm::TABLED = p.form
        {
            part.run::<WithTable<T, A>, (), _>(Rounds::<false>)
        } else if each {
            part.run::<Dense<T, A>, (), _>(Rounds::<true>)
        } else {
            part.run::<Dense<T, A>, (), _>(Rounds::<false>)
        }
    }
}
