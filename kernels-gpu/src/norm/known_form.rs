//! The forms of operands that a kernel is compiled for: the part of it that depends on them, once for each.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, is_any_length};

use super::affine::{AffineRow, DenseAffine, Parameters};
use super::operand::ModulationRow;
use super::operand_forms::{Dense, ModulationSource, WithTable};
use super::params::{NormParams, OperandForm};

/// Is the result rounded after each step? Known when the kernel is compiled, or looked up.
pub(crate) trait RoundEach: Copy {
    /// The answer.
    fn get(self) -> bool;
}

/// It is known.
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

/// A part of a kernel that is compiled for each form of its operands.
pub(crate) trait Formed<T: Elem, A: Access> {
    /// Does it, with scale, shift and gate of the form `F` and weight and bias of `P`.
    ///
    /// # Safety
    /// The operands are of these forms.
    unsafe fn run<F: ModulationSource<T>, P: Parameters, R: RoundEach>(self, rounds: R);
}

/// Does `part` in the form that `p` says. Of two outputs only the simplest form is known when the kernel is compiled.
///
/// # Safety
/// `p.form` is that of the operands.
#[inline(always)]
pub(crate) unsafe fn in_form<T: Elem, const OUTPUTS: usize, A: Access>(
    part: impl Formed<T, A>,
    p: NormParams,
) {
    // f32 has no roundings between.
    let each = p.round_each != 0 || size_of::<T>() == 4;
    // SAFETY: as the caller promises.
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
