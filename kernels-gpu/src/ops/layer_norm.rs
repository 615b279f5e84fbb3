//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last dimension, weight and bias optional.
//!
//! Where torch vectorises (columns divisible by 4, aligned rows) the bits are those of `torch.nn.LayerNorm`.
use cuda_std::prelude::*;

use crate::affine::{Affine, AffineRow};
use crate::moments::LayerNorm;
use crate::passes::{Params, Passes};

/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements, weight and bias one row of the type that
/// their kind says, all `Rows::is_quads` if `VECTOR`, and that `y` overlaps nothing else.
#[inline(always)]
unsafe fn layer_norm<T: Elem, const VECTOR: bool>(x: Rows, affine: Affine, y: Rows, p: Params) {
    let mut memory = SharedMemory::of_launch();
    let passes = Passes::<T, VECTOR>::of_block(&mut memory, p);
    // SAFETY: as the caller promises.
    let x = unsafe { QuadRow::<T, VECTOR>::of(&x, passes.at, passes.columns) };
    let stats = passes.reduce::<LayerNorm>(x, &mut memory);
    // SAFETY: as the caller promises; a team's row is its own.
    let (affine, y) = unsafe {
        (
            AffineRow::<T, VECTOR>::of(&affine, passes.columns),
            QuadRowMut::<T, VECTOR>::of(&y, passes.at, passes.columns),
        )
    };
    for tile in passes.own_tiles() {
        let n = affine.apply::<LayerNorm>(tile, stats, passes.again(tile, x), false);
        y.store(tile, Quad::from_lanes(n), Store::Default);
    }
}

/// # Safety
/// As [`layer_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, affine: Affine, y: Rows, p: Params) {
    thread::launch_bounds::<128, 8>();
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
