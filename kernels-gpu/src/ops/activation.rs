//! `y = f(x + bias)`, element by element. [`Function`](crate::elementwise::activations::Function) lists the
//! functions `f`. The optional bias is one row.
//!
//! `activation_any_<dtype>` takes any layout. `activation_block1_<dtype>` needs rows that allow 16-byte
//! accesses ([`Rows::is_vector`]).
//!
//! If the name of a kernel contains `sigmoid` or `relu2`, the kernel supports only this activation function.
use cuda_std::prelude::*;

use crate::elementwise::activations::ActivationParams;
use crate::elementwise::functions::{Functions, Relu2, Selected, Sigmoid};
use crate::elementwise::partition::{Extent, THREADS, ThreadElements, blocks};

/// # Safety
/// The host checked these facts. `x` and `y` have the rows that the kernel argument `extent` describes.
/// `bias` is null or points to one row. If `VECTOR` is true, all these operands allow 16-byte accesses
/// (`Rows::is_vector`). `y` overlaps no other operand.
#[inline(always)]
unsafe fn activation<T: Elem, F: Functions, const VECTOR: bool, const MIN_BLOCKS: u32>(
    x: Rows,
    bias: *const u8,
    y: Rows,
    p: ActivationParams,
    extent: Extent,
) {
    thread::launch_bounds::<THREADS, MIN_BLOCKS>();
    let Some(elements) = ThreadElements::<T, VECTOR>::of_thread(extent) else { return };
    // SAFETY: the kernel reads `x` and `bias` and writes `y`. The host checked all three, and the kernel
    // argument `extent` describes their rows.
    unsafe {
        let (x, bias) = (elements.load(&x), elements.bias(bias));
        let value = if p.exact != 0 {
            F::exact(p.function, bias.plus(x)).pack()
        } else {
            Pack::from_lanes(F::fast::<T>(p.function, bias.added(x, false)))
        };
        elements.store(&y, value);
    }
}

entry! {
    @overlap(Plain) activation_any<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Selected, false, 6>(x, bias, y, p, extent);
    @overlap(Plain) activation_block1<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Selected, true, { blocks(THREADS, 16) }>(x, bias, y, p, extent);
    @overlap(Plain) activation_sigmoid_any<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Sigmoid, false, 6>(x, bias, y, p, extent);
    @overlap(Plain) activation_sigmoid_block1<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Sigmoid, true, { blocks(THREADS, 16) }>(x, bias, y, p, extent);
    @overlap(Plain) activation_relu2_any<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Relu2, false, 6>(x, bias, y, p, extent);
    @overlap(Plain) activation_relu2_block1<T: [f32, f16, bf16]>(x: Rows, bias: *const u8, y: Rows, p: ActivationParams, extent: Extent)
        => activation::<T, Relu2, true, { blocks(THREADS, 16) }>(x, bias, y, p, extent)
}
