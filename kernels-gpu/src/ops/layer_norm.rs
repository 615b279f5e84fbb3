//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension, weight and bias optional.
//!
//! Where torch vectorises (columns divisible by 4, aligned rows) the bits are those of `torch.nn.LayerNorm`.
use cuda_std::prelude::*;

use crate::affine::{Affine, Norm};
use crate::moments::{LayerNorm, Stats};
use crate::operand::{Modulation, ModulationRow, Operand};
use crate::passes::{Params, Passes, Sink};
use crate::side::{Form, Plain};

/// `y = norm * weight + bias`, as the second pass.
struct Scale<T, F, const VECTOR: bool> {
    stats: Stats,
    weight: F,
    bias: F,
    y: QuadRowMut<T, VECTOR>,
}

impl<T: Elem, F: Form<T>, const VECTOR: bool> Sink<T> for Scale<T, F, VECTOR> {
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
/// their kind says, all `Rows::is_quads` if `VECTOR`, that `y` overlaps nothing else, and that `p.form` is theirs.
#[inline(always)]
unsafe fn layer_norm<T: Elem, const VECTOR: bool>(x: Rows, affine: Affine, y: Rows, p: Params) {
    let Some(passes) = Passes::<T, VECTOR>::of_warp(p, 1) else { return };
    // SAFETY: as the caller promises; a warp's row is its own.
    unsafe {
        let x = QuadRow::<T, VECTOR>::of(&x, passes.at, passes.columns);
        passes.stage(0, &x);
        passes.wait();
        let stats = passes.reduce::<LayerNorm>(x, false);
        if VECTOR && p.form == Params::SAME {
            write::<T, Plain<T, VECTOR>, VECTOR>(&passes, x, stats, affine, y)
        } else if VECTOR && size_of::<T>() == 2 && p.form == Params::SINGLE {
            write::<T, Plain<f32, VECTOR>, VECTOR>(&passes, x, stats, affine, y)
        } else {
            write::<T, ModulationRow<T, VECTOR>, VECTOR>(&passes, x, stats, affine, y)
        }
    }
}

/// # Safety
/// As [`layer_norm`], for the form `F`.
#[inline(always)]
unsafe fn write<T: Elem, F: Form<T>, const VECTOR: bool>(
    passes: &Passes<T, VECTOR>,
    x: QuadRow<T, VECTOR>,
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
            y: QuadRowMut::<T, VECTOR>::of(&y, passes.at, columns),
        }
    };
    passes.write(x, scale);
}

/// # Safety
/// As [`layer_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, affine: Affine, y: Rows, p: Params) {
    thread::launch_bounds::<128, 6>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            layer_norm::<T, true>(x, affine, y, p)
        } else {
            layer_norm::<T, false>(x, affine, y, p)
        }
    }
}

entry! {
    layer_norm<T: [f32, f16, bf16]>(x: Rows, affine: Affine, y: Rows, p: Params) => any_layout::<T>(x, affine, y, p)
}
