//! The kernel `y[i] = ln(1 + exp(x[i]))`, as `torch.nn.functional.softplus` computes it.
use cuda_std::libdevice::exp;
use cuda_std::mem;
use cuda_std::prelude::*;

/// Computes softplus in f32 and rounds each result once to the element type.
///
/// A pack is a 16-byte vector of elements. The first `packs` threads of the grid process one pack each. Each
/// following thread processes one of the elements after the packs. The blocks are one-dimensional, and the
/// grid has at least `packs + (len - packs * Pack::LEN)` threads. If `x` or `y` is not aligned to 16 bytes,
/// the host passes 0 for `packs`.
///
/// # Safety
/// `x` and `y` have `len` elements, and `packs` whole packs (16-byte vectors) fit in `len` elements. If
/// `packs` is not 0, both addresses are aligned to 16 bytes. `y` does not overlap `x`.
#[inline(always)]
unsafe fn softplus<T: Elem>(x: *const T, y: *mut T, len: u64, packs: u64) {
    let thread = thread::global_index();
    if thread < packs {
        let at = (thread * u64::from(Pack::<T>::LEN)) as usize;
        // SAFETY: the pack lies inside `x` and `y`, which are aligned to 16 bytes. Each thread accesses a
        // different pack.
        unsafe {
            let pack = Pack::<T>::from_words(mem::load_u32x4(x.add(at).cast(), Load::Once));
            let result = Pack::<T>::from_lanes(pack.lanes().map(softplus_f32));
            mem::store_u32x4(y.add(at).cast(), result.words(), Store::Default);
        }
        return;
    }
    let at = packs * u64::from(Pack::<T>::LEN) + (thread - packs);
    if at < len {
        // SAFETY: `at` is less than `len`, and each thread accesses a different element.
        unsafe { y.add(at as usize).write(T::from_f32(softplus_f32(x.add(at as usize).read().to_f32()))) };
    }
}

/// Returns `ln(1 + exp(x))`, computed so that `exp` does not overflow.
#[inline(always)]
fn softplus_f32(x: f32) -> f32 {
    f32::max(x, 0.0) + ln_1p(exp(-x.abs()))
}

/// Returns `ln(1 + p)` for `p` in the range from 0 to 1.
///
/// The logarithm of the rounded sum `1 + p` would lose the low bits of a small `p`. The function therefore
/// uses the series `2 (z + z^3 / 3 + z^5 / 5 + ...)` with `z = p / (2 + p)`. Because `z` is at most 1 / 3,
/// the first omitted term is less than 2^-29 of the result.
#[inline(always)]
fn ln_1p(p: f32) -> f32 {
    let z = p / (2.0 + p);
    let square = z * z;
    let mut sum = 1.0 / 15.0;
    for term in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        sum = fma(sum, square, term);
    }
    2.0 * z * sum
}

entry!(softplus<T: [f32, f16, bf16]>(x: *const T, y: *mut T, len: u64, packs: u64)
    => softplus::<T>(x, y, len, packs));
