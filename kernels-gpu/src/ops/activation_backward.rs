//! `dx = dy * f'(x + bias)`, element by element. The result is the gradient of
//! [`activation`](super::activation) with respect to `x`, rounded once. The gradient of the bias is the sum
//! of `dx` over the rows, which the caller computes with a separate operator.
//!
//! If the name of a kernel contains `sigmoid` or `relu2`, the kernel supports only this activation function.
use cuda_std::prelude::*;

use crate::elementwise::activations::ActivationParams;
use crate::elementwise::functions::{Functions, Relu2, Selected, Sigmoid};
use crate::elementwise::partition::{Extent, THREADS, ThreadElements, blocks};

/// # Safety
/// The host checked these facts. `dy`, `x` and `dx` have the rows that the kernel argument `extent`
/// describes. `bias` is null or points to one row. If `VECTOR` is true, all these operands allow 16-byte
/// accesses (`Rows::is_vector`). `dx` overlaps no other operand.
#[inline(always)]
unsafe fn activation_backward<T: Elem, F: Functions, const VECTOR: bool, const MIN_BLOCKS: u32>(
    dy: Rows,
    x: Rows,
    bias: *const u8,
    dx: Rows,
    p: ActivationParams,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the kernel reads `dy`, `x` and `bias` and writes `dx`. The host checked all four, and the
    // kernel argument `extent` describes their rows.
    unsafe {
        let (x, dy, bias) = (elements.load(&x), elements.load(&dy), elements.bias(bias));
        let (_, slope) = F::values_and_slopes::<T>(p.function, bias.added(x, p.exact != 0));
        elements.store(&dx, Pack::from_lanes(dy.lanes().zip(slope, |dy, slope| dy * slope)));
    }
}

entry! {
    @overlap(Plain) activation_backward_any<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Selected, false, 6>(dy, x, bias, dx, p, extent);
    @overlap(Plain) activation_backward_block1<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Selected, true, { blocks(THREADS, 10) }>(dy, x, bias, dx, p, extent);
    @overlap(Plain) activation_backward_sigmoid_any<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Sigmoid, false, 6>(dy, x, bias, dx, p, extent);
    @overlap(Plain) activation_backward_sigmoid_block1<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Sigmoid, true, { blocks(THREADS, 10) }>(dy, x, bias, dx, p, extent);
    @overlap(Plain) activation_backward_relu2_any<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Relu2, false, 6>(dy, x, bias, dx, p, extent);
    @overlap(Plain) activation_backward_relu2_block1<T: [f32, f16, bf16]>
        (dy: Rows, x: Rows, bias: *const u8, dx: Rows, p: ActivationParams, extent: Extent)
        => activation_backward::<T, Relu2, true, { blocks(THREADS, 10) }>(dy, x, bias, dx, p, extent)
}
