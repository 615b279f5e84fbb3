//! `y = (x + bias_x) * f(gate + bias_gate)`, element by element: see [`Function`](crate::activations::Function) for `f`.
//!
//! GEGLU, SwiGLU and their like; which half of a packed input is the gate, only the host knows. A thread loads its
//! packs before it computes any. `gated_activation_<dtype>` takes any layout; `gated_activation_hold2_<dtype>` wants
//! rows that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::activations::{GatedOperands as Operands, GatedParams as Params};
use crate::elementwise::{Bias, MAX_THREADS};

/// # Safety
/// The host checked that `x`, gate and `y` have the extent's rows, all `Rows::is_vector` and the biases aligned if
/// `VECTOR`, and that `y` overlaps nothing else.
#[inline(always)]
unsafe fn gated_activation<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    operands: Operands,
    y: Rows,
    p: Params,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let team = Team::of_block();
    let (at, cols) = p.extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, gate, bias_x, bias_gate, y) = unsafe {
        (
            Row::<T, VECTOR>::of(&operands.x, team, at, cols),
            Row::<T, VECTOR>::of(&operands.gate, team, at, cols),
            Bias::<T, VECTOR>::of(operands.bias_x, team, cols),
            Bias::<T, VECTOR>::of(operands.bias_gate, team, cols),
            RowMut::<T, VECTOR>::of(&y, team, at, cols),
        )
    };
    for first in p.extent.parts::<HELD>() {
        let mut held = [[Pack::<T>::ZERO; 2]; HELD];
        for i in 0..HELD {
            let tile = first + i as u32;
            held[i] = [gate.load(tile, Load::ReadOnly), x.load(tile, Load::ReadOnly)];
        }
        for i in 0..HELD {
            let (tile, [gate, x]) = (first + i as u32, held[i]);
            let product = if p.exact != 0 {
                p.function.exact(bias_gate.plus(gate, tile)).times(bias_x.plus(x, tile)).pack()
            } else {
                let activated = p.function.fast::<T>(bias_gate.added(gate, tile, false));
                Pack::from_lanes(bias_x.added(x, tile, false).zip(activated, |x, f| x * f))
            };
            y.store(tile, product, Store::Default);
        }
    }
}

entry! {
    gated_activation<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: Params)
        => gated_activation::<T, 1, false, 3>(operands, y, p);
    gated_activation_hold2<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: Params)
        => gated_activation::<T, 2, true, 4>(operands, y, p)
}
