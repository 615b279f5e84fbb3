//! `y = (x + bias_x) * f(gate + bias_gate)`, element by element: see
//! [`Function`](crate::elementwise::activations::Function) for `f`.
//!
//! GEGLU, SwiGLU and their like; which half of a packed input is the gate, only the host knows.
//! `gated_activation_any_<dtype>` takes any layout; `gated_activation_block1_<dtype>` wants rows that can be read
//! 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::activations::{ActivationParams, GatedOperands as Operands};
use crate::elementwise::partition::{Extent, THREADS, ThreadElements, blocks};

/// # Safety
/// The host checked that `x`, gate and `y` have the extent's rows, all `Rows::is_vector` and the biases
/// aligned if `VECTOR`, and that `y` overlaps nothing else.
#[inline(always)]
unsafe fn gated_activation<T: Elem, const VECTOR: bool, const MIN_BLOCKS: u32>(
    operands: Operands,
    y: Rows,
    p: ActivationParams,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: as the caller promises.
    unsafe {
        let (gate, x) = (elements.load(&operands.gate), elements.load(&operands.x));
        let (bias_gate, bias_x) = (elements.bias(operands.bias_gate), elements.bias(operands.bias_x));
        let product = if p.exact != 0 {
            p.function.exact(bias_gate.plus(gate)).times(bias_x.plus(x)).pack()
        } else {
            let activated = p.function.fast::<T>(bias_gate.added(gate, false));
            Pack::from_lanes(bias_x.added(x, false).zip(activated, |x, f| x * f))
        };
        elements.store(&y, product);
    }
}

entry! {
    gated_activation_any<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, false, 6>(operands, y, p, extent);
    gated_activation_block1<T: [f32, f16, bf16]>(operands: Operands, y: Rows, p: ActivationParams, extent: Extent)
        => gated_activation::<T, true, { blocks(THREADS, 12) }>(operands, y, p, extent)
}
