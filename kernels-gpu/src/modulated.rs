//! The second pass of a modulated norm, for whichever form its operands have.
use cuda_std::prelude::*;

use crate::affine::{Affine, AffineRow, Modulate, Modulated, Norm, Parameters, RoundEach, Rounds};
use crate::moments::Stats;
use crate::operand::ModulationRow;
use crate::passes::{Params, Passes, Source};
use crate::side::{Form, Plain};

/// Writes `norm * (1 + scale) + shift` of the rows of `source`.
///
/// # Safety
/// As [`Modulate::of`]; `p.form` is that of the operands.
#[inline(always)]
pub(crate) unsafe fn modulate<T: Elem, N: Norm, const OUTPUTS: usize, const VECTOR: bool>(
    passes: &Passes<T, VECTOR>,
    source: impl Source<T, VECTOR>,
    stats: Stats,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: Params,
) {
    let each = p.round_each != 0;
    // SAFETY: as the caller promises.
    unsafe {
        if VECTOR && p.form == Params::SAME && each {
            let rounds = Rounds::<true>;
            write::<T, N, Plain<T, VECTOR>, _, _, OUTPUTS, VECTOR>(passes, source, stats, (), outputs, rounds)
        } else if VECTOR && p.form == Params::SAME {
            let rounds = Rounds::<false>;
            write::<T, N, Plain<T, VECTOR>, _, _, OUTPUTS, VECTOR>(passes, source, stats, (), outputs, rounds)
        } else if VECTOR && size_of::<T>() == 2 && p.form == Params::SINGLE {
            let rounds = Rounds::<false>;
            write::<T, N, Plain<f32, VECTOR>, _, _, OUTPUTS, VECTOR>(
                passes,
                source,
                stats,
                (),
                outputs,
                rounds,
            )
        } else {
            let affine = AffineRow::<T, VECTOR>::of(&affine, passes.columns);
            write::<T, N, ModulationRow<T, VECTOR>, _, _, OUTPUTS, VECTOR>(
                passes, source, stats, affine, outputs, each,
            )
        }
    }
}

/// # Safety
/// As [`modulate`], for the form `F`.
#[inline(always)]
unsafe fn write<
    T: Elem,
    N: Norm,
    F: Form<T>,
    A: Parameters,
    R: RoundEach,
    const OUTPUTS: usize,
    const VECTOR: bool,
>(
    passes: &Passes<T, VECTOR>,
    source: impl Source<T, VECTOR>,
    stats: Stats,
    affine: A,
    outputs: [Modulated; OUTPUTS],
    rounds: R,
) {
    let (at, columns) = (passes.at, passes.columns);
    // SAFETY: as the caller promises.
    let sink = unsafe {
        Modulate::<T, N, F, A, R, OUTPUTS, VECTOR>::of(stats, affine, outputs, at, columns, rounds)
    };
    passes.write(source, sink);
}
