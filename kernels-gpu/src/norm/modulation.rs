//! What follows a norm's reduction where it is modulated: scale and shift, in whichever form the operands have.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::WHOLE;

use super::affine::{Affine, AffineRow, Modulated, Norm, Parameters, PlainAffine};
use super::io::{Sink, Source};
use super::operand::{ModulationRow, zip};
use super::operand_forms::{Form, Plain, Tabled};
use super::params::Params;
use super::passes::Passes;
use super::reduce::stats::Stats;

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

/// `y = norm * (1 + scale) + shift`, once or twice, as the second pass of a norm.
#[derive(Clone, Copy)]
pub(crate) struct Modulate<T, N, F, A, R, const OUTPUTS: usize, const ACCESS: u32> {
    affine: A,
    outputs: [(F, F, QuadRowMut<T, ACCESS>); OUTPUTS],
    round_each: R,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, F: Form<T>, A: Parameters, R: RoundEach, const OUTPUTS: usize, const ACCESS: u32>
    Modulate<T, N, F, A, R, OUTPUTS, ACCESS>
{
    /// # Safety
    /// As [`Form::of`] for scales and shifts, [`Parameters::of`] for weight and bias, as [`QuadRowMut::of`] for each `y`.
    #[inline(always)]
    pub unsafe fn of(
        affine: &Affine,
        outputs: [Modulated; OUTPUTS],
        (at, columns): (RowAt, QuadColumns),
        round_each: R,
    ) -> Self {
        // SAFETY: as the caller promises.
        let affine = unsafe { A::of(affine, columns) };
        // SAFETY: as the caller promises.
        let outputs = outputs.map(|Modulated { by, y }| unsafe {
            (
                F::of(&by.scale, at, columns).there(),
                F::of(&by.shift, at, columns),
                QuadRowMut::<T, ACCESS>::of(&y, at, columns),
            )
        });
        Self { affine, outputs, round_each, norm: PhantomData }
    }
}

impl<T: Elem, N: Norm, F: Form<T>, A: Parameters, R: RoundEach, const OUTPUTS: usize, const ACCESS: u32>
    Sink<T> for Modulate<T, N, F, A, R, OUTPUTS, ACCESS>
{
    const GROUPED: bool = F::GROUPED && A::GROUPED && OUTPUTS == 1;
    const EARLY: bool = F::EARLY && size_of::<A::Fetched>() == 0 && OUTPUTS == 1;
    // Four operands of four quads would have the registers of a tenth block.
    const AHEAD: usize = if size_of::<A::Fetched>() == 0 { 4 } else { 1 };
    type Fetched = (A::Fetched, [(F::Fetched, F::Fetched); OUTPUTS]);
    const EMPTY: Self::Fetched = (A::EMPTY, [(F::EMPTY, F::EMPTY); OUTPUTS]);

    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        let (_, mut fetched) = Self::EMPTY;
        for i in 0..OUTPUTS {
            let (scale, shift, _) = &self.outputs[i];
            fetched[i] = (scale.fetch(tile), shift.fetch(tile));
        }
        (self.affine.fetch(tile), fetched)
    }

    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, quad: Quad<T>, (parameters, fetched): Self::Fetched) {
        let (weight, bias) = self.affine.values(parameters);
        let x = quad.lanes();
        if self.round_each.get() {
            let n = N::rounded::<T>(stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = n.times(Quad::splat(1.0).plus(F::quad(scale)));
                y.put(tile, if has_shift.exists() { scaled.plus(F::quad(shift)) } else { scaled });
            }
        } else {
            let n = N::apply(stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = zip(n, F::lanes(scale), |n, scale| n * (1.0 + scale));
                let shifted = zip(scaled, F::lanes(shift), |n, shift| n + shift);
                y.put(tile, Quad::from_lanes(if has_shift.exists() { shifted } else { scaled }));
            }
        }
    }
}

/// A part of a kernel that is compiled for each form of its operands.
pub(crate) trait Formed<T: Elem, const ACCESS: u32> {
    /// Does it, with scale, shift and gate of the form `F` and weight and bias of `A`.
    ///
    /// # Safety
    /// The operands are of these forms.
    unsafe fn run<F: Form<T>, A: Parameters, R: RoundEach>(self, rounds: R);
}

/// Does `part` in the form that `p` says. Of two outputs only the simplest form is known when the kernel is compiled.
///
/// # Safety
/// `p.form` is that of the operands.
#[inline(always)]
pub(crate) unsafe fn in_form<T: Elem, const OUTPUTS: usize, const ACCESS: u32>(
    part: impl Formed<T, ACCESS>,
    p: Params,
) {
    // f32 has no roundings between.
    let each = p.round_each != 0 || size_of::<T>() == 4;
    // SAFETY: as the caller promises.
    unsafe {
        if ACCESS < WHOLE {
            part.run::<ModulationRow<T, ACCESS>, AffineRow<T, ACCESS>, _>(each)
        } else if OUTPUTS == 1 && p.form == Params::AFFINE && each {
            part.run::<Plain<T, ACCESS>, PlainAffine<T, ACCESS, true>, _>(Rounds::<true>)
        } else if OUTPUTS == 1 && p.form == Params::AFFINE {
            part.run::<Plain<T, ACCESS>, PlainAffine<T, ACCESS, true>, _>(Rounds::<false>)
        } else if OUTPUTS == 1 && p.form == Params::PARTLY_AFFINE {
            part.run::<Plain<T, ACCESS>, PlainAffine<T, ACCESS, false>, _>(each)
        } else if OUTPUTS == 1 && p.form == Params::SINGLE && size_of::<T>() == 2 {
            part.run::<Plain<f32, ACCESS>, (), _>(Rounds::<false>)
        } else if OUTPUTS == 1 && p.form == Params::SINGLE_AFFINE && size_of::<T>() == 2 {
            part.run::<Plain<f32, ACCESS>, PlainAffine<f32, ACCESS, true>, _>(Rounds::<false>)
        } else if OUTPUTS == 1 && p.form == Params::TABLED && each {
            part.run::<Tabled<T, ACCESS>, (), _>(Rounds::<true>)
        } else if OUTPUTS == 1 && p.form == Params::TABLED {
            part.run::<Tabled<T, ACCESS>, (), _>(Rounds::<false>)
        } else if each {
            part.run::<Plain<T, ACCESS>, (), _>(Rounds::<true>)
        } else {
            part.run::<Plain<T, ACCESS>, (), _>(Rounds::<false>)
        }
    }
}

/// `norm * (1 + scale) + shift` of the rows of `source`.
pub(crate) struct Normed<N, S, const OUTPUTS: usize> {
    pub source: S,
    pub affine: Affine,
    pub outputs: [Modulated; OUTPUTS],
    pub norm: PhantomData<N>,
}

impl<N: Norm, S, const OUTPUTS: usize> Normed<N, S, OUTPUTS> {
    /// # Safety
    /// As [`Modulate::of`].
    #[inline(always)]
    pub unsafe fn run<T: Elem, F: Form<T>, A: Parameters, R: RoundEach, const ACCESS: u32>(
        self,
        passes: &Passes<T, ACCESS>,
        rounds: R,
    ) where
        S: Source<T, ACCESS>,
    {
        let at = (passes.row.at, passes.row.columns);
        // SAFETY: as the caller promises.
        let sink =
            unsafe { Modulate::<T, N, F, A, R, OUTPUTS, ACCESS>::of(&self.affine, self.outputs, at, rounds) };
        passes.run::<N, _, _>(self.source, sink);
    }
}
