//! The second pass of a modulated norm, for whichever form its operands have.
use cuda_std::prelude::*;
use cuda_std::quad::{SCALAR, WHOLE};

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
pub(crate) unsafe fn modulate<T: Elem, N: Norm, const OUTPUTS: usize, const ACCESS: u32>(
    passes: &Passes<T, ACCESS>,
    source: impl Source<T, ACCESS>,
    stats: Stats,
    affine: Affine,
    outputs: [Modulated; OUTPUTS],
    p: Params,
) {
    let each = p.round_each != 0;
    // SAFETY: as the caller promises.
    unsafe {
        if ACCESS != SCALAR && p.form == Params::SAME && each {
            let rounds = Rounds::<true>;
            write::<T, N, Plain<T, ACCESS>, _, _, OUTPUTS, ACCESS>(passes, source, stats, (), outputs, rounds)
        } else if ACCESS == WHOLE && p.form == Params::SAME {
            let rounds = Rounds::<false>;
            write::<T, N, Plain<T, ACCESS>, _, _, OUTPUTS, ACCESS>(passes, source, stats, (), outputs, rounds)
        } else if ACCESS == WHOLE && size_of::<T>() == 2 && p.form == Params::SINGLE {
            let rounds = Rounds::<false>;
            write::<T, N, Plain<f32, ACCESS>, _, _, OUTPUTS, ACCESS>(
                passes,
                source,
                stats,
                (),
                outputs,
                rounds,
            )
        } else {
            let affine = AffineRow::<T, ACCESS>::of(&affine, passes.columns);
            write::<T, N, ModulationRow<T, ACCESS>, _, _, OUTPUTS, ACCESS>(
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
    const ACCESS: u32,
>(
    passes: &Passes<T, ACCESS>,
    source: impl Source<T, ACCESS>,
    stats: Stats,
    affine: A,
    outputs: [Modulated; OUTPUTS],
    rounds: R,
) {
    let (at, columns) = (passes.at, passes.columns);
    // SAFETY: as the caller promises.
    let sink = unsafe {
        Modulate::<T, N, F, A, R, OUTPUTS, ACCESS>::of(stats, affine, outputs, at, columns, rounds)
    };
    passes.write(source, sink);
}
