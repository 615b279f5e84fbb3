//! Selects the instantiation of a kernel body for the form of its operands.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_any_length};

use super::affine::{AffineRow, DenseAffine, Parameters};
use super::operand::ModulationRow;
use super::operand_forms::{Dense, ModulationSource, WithTable};
use super::params::{NormParams, OperandForm};

/// The choice to round after each step: a compile-time constant ([`Rounds`]) or a run-time value (`bool`).
pub(crate) trait RoundEach: Copy {
    /// Returns `true` to round after each step, `false` to round once at the end.
    fn get(self) -> bool;
}

/// The choice as a compile-time constant.
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

/// A kernel body that is generic over the forms of its operands.
pub(crate) trait Formed<T: Elem, A: Access> {
    /// Runs the body. Scale, shift and gate have the form `F`, weight and bias have the form `P`.
    ///
    /// # Safety
    /// The operands have these forms.
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R);
}

/// Runs `part` in the instantiation for `p.form`. Accesses for rows of any length use one instantiation for
/// all forms.
///
/// With two outputs, rows of whole tiles are instantiated only for [`OperandForm::SAME`].
///
/// # Safety
/// `p.form` is the form of the operands.
#[inline(always)]
pub(crate) unsafe fn in_form<T: Elem, const OUTPUTS: usize, A: Access>(
    part: impl Formed<T, A>,
    p: NormParams,
) {
    // In f32, rounding a step changes nothing. So f32 uses the instantiation that rounds each step.
    let each = p.round_each != 0 || size_of::<T>() == 4;
    // SAFETY: the caller passes the form of the operands as `p.form`, and each branch below matches the form.
    unsafe {
        if is_any_length::<A>() {
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
