//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension, weight and bias optional.
//!
//! Where torch vectorises (columns divisible by 4, aligned rows) the bits are those of `torch.nn.LayerNorm`.
use cuda_std::prelude::*;
use cuda_std::quad::{SCALAR, WHOLE};

use crate::affine::{Affine, Norm};
use crate::moments::{LayerNorm, Stats};
use crate::operand::{Modulation, ModulationRow, Operand};
use crate::passes::{Params, Passes, Sink, with_access};
use crate::side::{Form, Plain};

/// `y = norm * weight + bias`, as the second pass.
struct Scale<T, F, const ACCESS: u32> {
    stats: Stats,
    weight: F,
    bias: F,
    y: QuadRowMut<T, ACCESS>,
}

impl<T: Elem, F: Form<T>, const ACCESS: u32> Sink<T> for Scale<T, F, ACCESS> {
    const GROUPED: bool = F::GROUPED;
    type Fetched = (F::Fetched, F::Fetched);
    const EMPTY: Self::Fetched = (F::EMPTY, F::EMPTY);

    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        (self.weight.fetch(tile), self.bias.fetch(tile))
    }

    #[inline(always)]
    fn put(&self, tile: u32, quad: Quad<T>, (weight, bias): Self::Fetched) {
        let weight = if self.weight.exists() { Some(F::lanes(weight)) } else { None };
        let bias = if self.bias.exists() { Some(F::lanes(bias)) } else { None };
        self.y.put(tile, Quad::from_lanes(LayerNorm::apply(self.stats, quad.lanes(), weight, bias)));
    }
}

/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements, weight and bias one row of the type that
/// their kind says, all as `ACCESS` says, that `y` overlaps nothing else, and that `p.form` is theirs.
#[inline(always)]
unsafe fn layer_norm<T: Elem, const ACCESS: u32>(x: Rows, affine: Affine, y: Rows, p: Params) {
    let Some(passes) = Passes::<T, ACCESS>::of_warp(p) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let x = QuadRow::<T, ACCESS>::of(&x, passes.at, passes.columns);
        let stats = passes.reduce::<LayerNorm, _>(x);
        if ACCESS != SCALAR && p.form == Params::SAME {
            write::<T, Plain<T, ACCESS>, ACCESS>(&passes, x, stats, affine, y)
        } else if ACCESS == WHOLE && size_of::<T>() == 2 && p.form == Params::SINGLE {
            write::<T, Plain<f32, ACCESS>, ACCESS>(&passes, x, stats, affine, y)
        } else {
            write::<T, ModulationRow<T, ACCESS>, ACCESS>(&passes, x, stats, affine, y)
        }
    }
}

/// # Safety
/// As [`layer_norm`], for the form `F`.
#[inline(always)]
unsafe fn write<T: Elem, F: Form<T>, const ACCESS: u32>(
    passes: &Passes<T, ACCESS>,
    x: QuadRow<T, ACCESS>,
    stats: Stats,
    affine: Affine,
    y: Rows,
) {
    let without_table = |value| Modulation { value, table: Operand::ABSENT };
    let columns = passes.columns;
    // SAFETY: as the caller promises.
    let scale = unsafe {
        Scale {
            stats,
            weight: F::of(&without_table(affine.weight), RowAt::FIRST, columns),
            bias: F::of(&without_table(affine.bias), RowAt::FIRST, columns),
            y: QuadRowMut::<T, ACCESS>::of(&y, passes.at, columns),
        }
    };
    passes.write(x, scale);
}

/// # Safety
/// As [`layer_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, affine: Affine, y: Rows, p: Params) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host sets `p.access` to what every operand is.
    unsafe { with_access!(p, ACCESS => layer_norm::<T, ACCESS>(x, affine, y, p)) }
}

entry! {
    layer_norm<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: Params) => any_layout::<T>(x, affine, y, p)
}
