//! `y = norm(x) * (1 + scale) + shift`: the second pass of the adaptive norms of diffusion transformers
//! (adaLN).
//!
//! A kernel has one or two pairs of scale and shift, and one output `y` for each pair.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::affine::{Affine, Modulated, Norm, Parameters};
use super::io::{Sink, Source};
use super::known_form::RoundEach;
use super::operand::zip;
use super::operand_forms::ModulationSource;
use super::reduce::stats::Stats;
use super::row_context::RowContext;

/// The operands of `y = norm(x) * (1 + scale) + shift`, for the columns of the calling thread. Each of the
/// `OUTPUTS` outputs has its own scale and shift.
#[derive(Clone, Copy)]
pub(crate) struct Modulate<T, N, F, P, R, const OUTPUTS: usize, A> {
    affine: P,
    outputs: [(F, F, Vec4RowMut<T, A>); OUTPUTS],
    round_each: R,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, F: ModulationSource<T>, P: Parameters, R: RoundEach, const OUTPUTS: usize, A: Access>
    Modulate<T, N, F, P, R, OUTPUTS, A>
{
    /// Returns the operands for the thread's `columns` of row `at`. Scales and shifts have the index
    /// `by_row`.
    ///
    /// # Safety
    /// The requirements of [`ModulationSource::of`] apply to scales and shifts. The requirements of
    /// [`Parameters::of`] apply to weight and bias. The requirements of [`Vec4RowMut::of`] apply to each `y`.
    #[inline(always)]
    pub unsafe fn of(
        affine: &Affine,
        outputs: [Modulated; OUTPUTS],
        ([at, by_row], columns): ([RowIndex; 2], Vec4Columns),
        round_each: R,
    ) -> Self {
        // SAFETY: the loader `P` requires a weight and a bias with the dtypes that it expects. The caller
        // passes such operands.
        let affine = unsafe { P::of(affine, columns) };
        // SAFETY: the loader `F` requires scales and shifts with the dtypes that it expects. The caller
        // passes such operands. The caller also guarantees that row `at` of each output `y` is writable.
        let outputs = outputs.map(|Modulated { by, y }| unsafe {
            (
                F::of(&by.scale, by_row, columns).assume_present(),
                F::of(&by.shift, by_row, columns),
                Vec4RowMut::<T, A>::of(&y, at, columns),
            )
        });
        Self { affine, outputs, round_each, norm: PhantomData }
    }
}

impl<T: Elem, N: Norm, F: ModulationSource<T>, P: Parameters, R: RoundEach, const OUTPUTS: usize, A: Access>
    Sink<T> for Modulate<T, N, F, P, R, OUTPUTS, A>
{
    const GROUPED: bool = F::GROUPED && P::GROUPED && OUTPUTS == 1;
    const EARLY: bool = F::EARLY && size_of::<P::Fetched>() == 0 && OUTPUTS == 1;
    // With weight and bias, each vec4 (four columns) has four operands: weight, bias, scale and shift.
    // Loading these operands for four vec4s at a time would take more registers per thread, and an SM would
    // run one block fewer.
    const PREFETCH: usize = if size_of::<P::Fetched>() == 0 { 4 } else { 1 };
    type Fetched = (P::Fetched, [(F::Fetched, F::Fetched); OUTPUTS]);
    const EMPTY: Self::Fetched = (P::EMPTY, [(F::EMPTY, F::EMPTY); OUTPUTS]);

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
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, (parameters, fetched): Self::Fetched) {
        let (weight, bias) = self.affine.values(parameters);
        let x = vec4.lanes();
        if self.round_each.get() {
            let n = N::rounded::<T>(stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = n.times(Vec4::splat(1.0).plus(F::vec4(scale)));
                y.put(tile, if has_shift.exists() { scaled.plus(F::vec4(shift)) } else { scaled });
            }
        } else {
            let n = N::apply(stats, x, weight, bias);
            for i in 0..OUTPUTS {
                let ((scale, shift), (_, has_shift, y)) = (fetched[i], &self.outputs[i]);
                let scaled = zip(n, F::lanes(scale), |n, scale| n * (1.0 + scale));
                let shifted = zip(scaled, F::lanes(shift), |n, shift| n + shift);
                y.put(tile, Vec4::from_lanes(if has_shift.exists() { shifted } else { scaled }));
            }
        }
    }
}

/// The computation `y = norm(x) * (1 + scale) + shift`, with one or more outputs `y`. The field `source`
/// provides the rows `x`.
pub(crate) struct ModulatedNorm<N, S, const OUTPUTS: usize> {
    pub source: S,
    pub affine: Affine,
    pub outputs: [Modulated; OUTPUTS],
    pub norm: PhantomData<N>,
}

impl<N: Norm, S, const OUTPUTS: usize> ModulatedNorm<N, S, OUTPUTS> {
    /// Runs both passes over `row`: reduces the row, then writes the outputs. Scales and shifts have the row
    /// index `row.at`.
    ///
    /// # Safety
    /// The requirements of [`Modulate::of`] apply.
    #[inline(always)]
    pub unsafe fn run<T: Elem, F: ModulationSource<T>, P: Parameters, R: RoundEach, A: Access>(
        self,
        row: &RowContext<T, A>,
        rounds: R,
    ) where
        S: Source<T, A>,
    {
        // SAFETY: the requirements of `run_by` are those of this function.
        unsafe { self.run_by::<T, F, P, R, A>(row, row.at, rounds) }
    }

    /// Does the same as [`ModulatedNorm::run`], with the row index `by_row` for scales and shifts.
    ///
    /// # Safety
    /// The requirements of [`Modulate::of`] apply.
    #[inline(always)]
    pub unsafe fn run_by<T: Elem, F: ModulationSource<T>, P: Parameters, R: RoundEach, A: Access>(
        self,
        row: &RowContext<T, A>,
        by_row: RowIndex,
        rounds: R,
    ) where
        S: Source<T, A>,
    {
        let at = ([row.at, by_row], row.columns);
        // SAFETY: the loaders `F` and `P` require operands with the dtypes that they expect. The caller
        // passes such operands. Each output `y` has a writable row `row.at`.
        let sink =
            unsafe { Modulate::<T, N, F, P, R, OUTPUTS, A>::of(&self.affine, self.outputs, at, rounds) };
        row.run::<N, _, _>(self.source, sink);
    }
}
