//! `dx = dy * f(gate)` and `dgate = dy * x * f'(gate)`, element by element. Both results are rounded once.
//! These results are the gradients of [`gated_activation`](super::gated_activation). As in the forward pass,
//! the kernel first adds the biases to `x` and to the gate.
//!
//! If the name of a kernel contains `sigmoid` or `relu2`, the kernel supports only this activation function.
use cuda_std::prelude::*;

use crate::elementwise::activations::{ActivationParams, GatedOperands as Operands};
use crate::elementwise::functions::{Functions, Relu2, Selected, Sigmoid};
use crate::elementwise::partition::{Extent, THREADS, ThreadElements, blocks};

/// # Safety
/// The host checked that all operands have the rows that the kernel argument `extent` describes. If `VECTOR`
/// is true, all these operands allow 16-byte accesses (`Rows::is_vector`), and the biases are aligned to 16
/// bytes. `dx` and `dgate` overlap no other operand.
#[inline(always)]
unsafe fn gated_activation_backward<T: Elem, F: Functions, const VECTOR: bool, const MIN_BLOCKS: u32>(
    dy: Rows,
    operands: Operands,
    dx: Rows,
    dgate: Rows,
    p: ActivationParams,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    let round = p.exact != 0;
    // SAFETY: the kernel accesses only its operands. The host checked all of them, and the kernel argument
    // `extent` describes their rows.
    unsafe {
        let (gate, x, dy) = (elements.load(&operands.gate), elements.load(&operands.x), elements.load(&dy));
        let (bias_gate, bias_x) = (elements.bias(operands.bias_gate), elements.bias(operands.bias_x));
        let (f, slope) = F::values_and_slopes::<T>(p.function, bias_gate.added(gate, round));
        elements.store(&dx, Pack::from_lanes(dy.lanes().zip(f, |dy, f| dy * f)));
        let product = dy.lanes().zip(bias_x.added(x, round), |dy, x| dy * x);
        elements.store(&dgate, Pack::from_lanes(product.zip(slope, |dyx, slope| dyx * slope)));
    }
}

entry! {
    gated_activation_backward_any<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Selected, false, 6>(dy, operands, dx, dgate, p, extent);
    gated_activation_backward_block1<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Selected, true, { blocks(THREADS, 8) }>(dy, operands, dx, dgate, p, extent);
    gated_activation_backward_sigmoid_any<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Sigmoid, false, 6>(dy, operands, dx, dgate, p, extent);
    gated_activation_backward_sigmoid_block1<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Sigmoid, true, { blocks(THREADS, 8) }>(dy, operands, dx, dgate, p, extent);
    gated_activation_backward_relu2_any<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Relu2, false, 6>(dy, operands, dx, dgate, p, extent);
    gated_activation_backward_relu2_block1<T: [f32, f16, bf16]>
        (dy: Rows, operands: Operands, dx: Rows, dgate: Rows, p: ActivationParams, extent: Extent)
        => gated_activation_backward::<T, Relu2, true, { blocks(THREADS, 8) }>(dy, operands, dx, dgate, p, extent)
}
