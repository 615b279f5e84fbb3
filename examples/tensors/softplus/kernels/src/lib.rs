//! The kernel `y[i] = ln(1 + exp(x[i]))`, as `torch.nn.functional.softplus` computes it.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::libdevice::exp;
use cuda_std::prelude::*;

/// Each thread computes one element in f32 and rounds the result once to the element type.
///
/// # Safety
/// `x` and `y` have `len` elements. `y` overlaps no other memory that the kernel uses.
#[inline(always)]
unsafe fn softplus<T: Elem>(x: *const T, y: *mut T, len: u64) {
    let at = thread::global_index();
    if at >= len {
        return;
    }
    // SAFETY: the index `at` is less than `len`, and each thread accesses a different element.
    unsafe {
        let x = x.add(at as usize).read().to_f32();
        y.add(at as usize).write(T::from_f32(f32::max(x, 0.0) + ln_1p(exp(-x.abs()))));
    }
}

/// Returns `ln(1 + p)` for `p` in the range from 0 to 1.
///
/// The logarithm of the rounded sum `1 + p` would lose the low bits of a small `p`. The function therefore
/// uses the series `2 (z + z^3 / 3 + z^5 / 5 + ...)` with `z = p / (2 + p)`. Because `z` is at most 1 / 3,
/// the first omitted term is less than 2^-29 of the result.
fn ln_1p(p: f32) -> f32 {
    let z = p / (2.0 + p);
    let square = z * z;
    let mut sum = 1.0 / 15.0;
    for term in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        sum = fma(sum, square, term);
    }
    2.0 * z * sum
}

entry!(softplus<T: [f32, f16, bf16]>(x: *const T, y: *mut T, len: u64) => softplus::<T>(x, y, len));
