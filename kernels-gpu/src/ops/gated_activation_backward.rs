//! `dx = dy * f(gate)` and `dgate = dy * x * f'(gate)`, element by element, each rounded once: the gradients of
//! [`gated_activation`](super::gated_activation), whose biases are added first here too.
use cuda_std::prelude::*;

use crate::activations::{GatedOperands as Operands, GatedParams as Params};
use crate::elementwise::{Bias, MAX_THREADS};

/// # Safety
/// The host checked that all operands have the extent's rows, all `Rows::is_vector` and the biases aligned if
/// `VECTOR`, and that `dx` and `dgate` overlap nothing else.
#[inline(always)]
unsafe fn gated_activation_backward<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    dy: Rows,
    operands: Operands,
    dx: Rows,
    dgate: Rows,
    p: Params,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let team = Team::of_block();
    let (at, cols) = p.extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (dy, x, gate, bias_x, bias_gate, dx, dgate) = unsafe {
        (
            Row::<T, VECTOR>::of(&dy, team, at, cols),
            Row::<T, VECTOR>::of(&operands.x, team, at, cols),
            Row::<T, VECTOR>::of(&operands.gate, team, at, cols),
            Bias::<T, VECTOR>::of(operands.bias_x, team, cols),
            Bias::<T, VECTOR>::of(operands.bias_gate, team, cols),
            RowMut::<T, VECTOR>::of(&dx, team, at, cols),
            RowMut::<T, VECTOR>::of(&dgate, team, at, cols),
        )
    };
    let round = p.exact != 0;
    for first in p.extent.parts::<HELD>() {
        let mut held = [[Pack::<T>::ZERO; 3]; HELD];
        for i in 0..HELD {
            let tile = first + i as u32;
            held[i] = [
                gate.load(tile, Load::ReadOnly),
                x.load(tile, Load::ReadOnly),
                dy.load(tile, Load::ReadOnly),
            ];
        }
        for i in 0..HELD {
            let (tile, [gate, x, dy]) = (first + i as u32, held[i]);
            let (f, slope) = p.function.values_and_slopes::<T>(bias_gate.added(gate, tile, round));
            dx.store(tile, Pack::from_lanes(dy.lanes().zip(f, |dy, f| dy * f)), Store::Default);
            let product = dy.lanes().zip(bias_x.added(x, tile, round), |dy, x| dy * x);
            dgate.store(tile, Pack::from_lanes(product.zip(slope, |dyx, slope| dyx * slope)), Store::Default);
        }
    }
}

entry! {
    gated_activation_backward<T: [f32, f16, bf16]>(dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: Params)
        => gated_activation_backward::<T, 1, false, 3>(dy, operands, dx, dgate, p);
    gated_activation_backward_hold2<T: [f32, f16, bf16]>(dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: Params)
        => gated_activation_backward::<T, 2, true, 4>(dy, operands, dx, dgate, p)
}
