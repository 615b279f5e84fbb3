//! The forms of operands as types: a kernel is compiled for one of them, or takes that of its launch.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::affine::{AffineRow, Parameters, PlainAffine};
use super::operand::ModulationRow;
use super::operand_forms::{Form, Plain, Tabled as TabledRow};
use super::params::{OperandForm, Params};

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
    unsafe fn run<F: Form<T>, P: Parameters, R: RoundEach>(self, rounds: R);
}

/// Which form the operands have, as a type: one for each [`OperandForm`] that a kernel may be compiled for,
/// and [`OfLaunch`].
pub(crate) trait KnownForm {
    /// Does `part` in this form.
    ///
    /// # Safety
    /// It is that of the operands.
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, p: Params);
}

/// That of the launch, [`Params::form`]. Of two outputs only the simplest form is known when the kernel is
/// compiled.
pub(crate) struct OfLaunch;
/// [`OperandForm::Same`].
pub(crate) struct Same;
/// [`OperandForm::Single`].
pub(crate) struct Single;
/// [`OperandForm::Tabled`].
pub(crate) struct Tabled;
/// [`OperandForm::Affine`].
pub(crate) struct WithAffine;

/// Is the result rounded after each step? In f32 there are no roundings between.
#[inline(always)]
fn each<T>(p: Params) -> bool {
    p.round_each != 0 || size_of::<T>() == 4
}

/// Does `part` with what is known of roundings.
///
/// # Safety
/// As [`Formed::run`].
#[inline(always)]
unsafe fn rounding<T: Elem, F: Form<T>, P: Parameters, A: Access>(part: impl Formed<T, A>, p: Params) {
    // SAFETY: as the caller promises.
    unsafe {
        if each::<T>(p) { part.run::<F, P, _>(Rounds::<true>) } else { part.run::<F, P, _>(Rounds::<false>) }
    }
}

impl KnownForm for Same {
    #[inline(always)]
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, p: Params) {
        // SAFETY: as the caller promises.
        unsafe { rounding::<T, Plain<T, A>, (), A>(part, p) }
    }
}

impl KnownForm for WithAffine {
    #[inline(always)]
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, p: Params) {
        // SAFETY: as the caller promises.
        unsafe { rounding::<T, Plain<T, A>, PlainAffine<T, A, true>, A>(part, p) }
    }
}

impl KnownForm for Tabled {
    #[inline(always)]
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, p: Params) {
        // SAFETY: as the caller promises.
        unsafe { rounding::<T, TabledRow<T, A>, (), A>(part, p) }
    }
}

impl KnownForm for Single {
    #[inline(always)]
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, _: Params) {
        // SAFETY: as the caller promises.
        unsafe { part.run::<Plain<f32, A>, (), _>(Rounds::<false>) }
    }
}

impl KnownForm for OfLaunch {
    #[inline(always)]
    unsafe fn run<T: Elem, const OUTPUTS: usize, A: Access>(part: impl Formed<T, A>, p: Params) {
        let is_half = size_of::<T>() == 2;
        // SAFETY: as the caller promises.
        unsafe {
            match p.form {
                _ if !A::WHOLE => part.run::<ModulationRow<T, A>, AffineRow<T, A>, _>(each::<T>(p)),
                _ if OUTPUTS > 1 => Same::run::<T, OUTPUTS, A>(part, p),
                OperandForm::Affine => WithAffine::run::<T, OUTPUTS, A>(part, p),
                OperandForm::PartlyAffine => {
                    part.run::<Plain<T, A>, PlainAffine<T, A, false>, _>(each::<T>(p))
                }
                OperandForm::Single if is_half => Single::run::<T, OUTPUTS, A>(part, p),
                OperandForm::SingleAffine if is_half => {
                    part.run::<Plain<f32, A>, PlainAffine<f32, A, true>, _>(Rounds::<false>)
                }
                OperandForm::Tabled => Tabled::run::<T, OUTPUTS, A>(part, p),
                _ => Same::run::<T, OUTPUTS, A>(part, p),
            }
        }
    }
}
