//! `y = (x + bias_x) * f(gate + bias_gate)`, element by element: GEGLU, SwiGLU and similar activations.
//! [`Function`](crate::elementwise::activations::Function) lists the functions `f`. The biases are optional,
//! and each bias is one row.
//!
//! If `x` and the gate are the two halves of one tensor, the host chooses which half is the gate.
//! `gated_activation_any_<dtype>` takes any layout. `gated_activation_block1_<dtype>` needs rows that allow
//! 16-byte accesses ([`Rows::is_vector`]).
//!
//! If the name of a kernel contains `sigmoid` or `relu2`, the kernel supports only this activation function.
use cuda_std::prelude::*;

use crate::elementwise::activations::{ActivationParams, GatedOperands as Operands};
use crate::elementwise::functions::{Functions, Relu2, Selected, Sigmoid};
use crate::elementwise::partition::{Extent, THREADS, ThreadElements, blocks};

/// # Safety
/// The host checked that `x`, `gate` and `y` have the rows that the kernel argument `extent` describes. If
/// `VECTOR` is true, all these operands allow 16-byte accesses (`Rows::is_vector`), and the biases are
/// aligned to 16 bytes. `y` overlaps no other operand.
#[inline(always)]
unsafe fn gated_activation<T: Elem, F: Functions, const VECTOR: bool, const MIN_BLOCKS: u32>(
    operands: Operands,
    y: Rows,
    p: ActivationParams,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the kernel accesses only its operands. The host checked all of them, and the kernel argument
    // `extent` describes their rows.
    unsafe {
        let (gate, x) = (elements.load(&operands.gate), elements.load(&operands.x));
        let (bias_gate, bias_x) = (elements.bias(operands.bias_gate), elements.bias(operands.bias_x));
        let product = if p.exact != 0 {
            F::exact(p.function, bias_gate.plus(gate)).times(bias_x.plus(x)).pack()
        } else {
            let activated = F::fast::<T>(p.function, bias_gate.added(gate, false));
            Pack::from_lanes(bias_x.added(x, false).zip(activated, |x, f| x * f))
        };
        elements.store(&y, product);
    }
}

entry! {
    gated_activation_any<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Selected, false, 6>(operands, y, p, extent);
    gated_activation_block1<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Selected, true, { blocks(THREADS, 12) }>(operands, y, p, extent);
    gated_activation_sigmoid_any<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Sigmoid, false, 6>(operands, y, p, extent);
    gated_activation_sigmoid_block1<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Sigmoid, true, { blocks(THREADS, 12) }>(operands, y, p, extent);
    gated_activation_relu2_any<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Relu2, false, 6>(operands, y, p, extent);
    gated_activation_relu2_block1<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, Relu2, true, { blocks(THREADS, 12) }>(operands, y, p, extent)
}
