//! `dx = dy * f'(x + bias)`, element by element, rounded once: the gradient of [`activation`](super::activation). The
//! bias's gradient is `dx`, summed over the rows.
use cuda_std::prelude::*;

use crate::activations::Params;
use crate::elementwise::{Bias, MAX_THREADS};

/// # Safety
/// The host checked that `dy`, `x` and `dx` have the extent's rows and that `bias` is null or one row, all
/// `Rows::is_vector` if `VECTOR`, and that `dx` overlaps nothing else.
#[inline(always)]
unsafe fn activation_backward<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    dy: Rows,
    x: Rows,
    bias: *const u8,
    dx: Rows,
    p: Params,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let team = Team::of_block();
    let (at, cols) = p.extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (dy, x, bias, dx) = unsafe {
        (
            Row::<T, VECTOR>::of(&dy, team, at, cols),
            Row::<T, VECTOR>::of(&x, team, at, cols),
            Bias::<T, VECTOR>::of(bias, team, cols),
            RowMut::<T, VECTOR>::of(&dx, team, at, cols),
        )
    };
    for first in p.extent.parts::<HELD>() {
        let mut held = [[Pack::<T>::ZERO; 2]; HELD];
        for i in 0..HELD {
            let tile = first + i as u32;
            held[i] = [x.load(tile, Load::ReadOnly), dy.load(tile, Load::ReadOnly)];
        }
        for i in 0..HELD {
            let (tile, [x, dy]) = (first + i as u32, held[i]);
            let (_, slope) = p.function.values_and_slopes::<T>(bias.added(x, tile, p.exact != 0));
            dx.store(tile, Pack::from_lanes(dy.lanes().zip(slope, |dy, slope| dy * slope)), Store::Default);
        }
    }
}

entry! {
    activation_backward<T: [f32, f16, bf16]>(dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: Params)
        => activation_backward::<T, 1, false, 3>(dy, x, bias, dx, p);
    activation_backward_hold2<T: [f32, f16, bf16]>(dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: Params)
        => activation_backward::<T, 2, true, 4>(dy, x, bias, dx, p)
}
