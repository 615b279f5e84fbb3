//! Compares results with reference values in f64. Errors are in units in the last place (ulp) of the element
//! type.
use oxiwarp::{Dtype, Element};

/// Returns the ulp of `dtype` at `reference`: the distance between neighbouring values of this dtype around
/// `|reference|`.
pub fn ulp(dtype: Dtype, reference: f64) -> f64 {
    let (bits, min) = match dtype {
        Dtype::F32 => (23, -126),
        Dtype::F16 => (10, -14),
        Dtype::Bf16 => (7, -126),
        Dtype::E4m3 => (3, -6),
        Dtype::E5m2 => (2, -14),
        Dtype::I64 | Dtype::I32 | Dtype::Bool => unreachable!("integers are not rounded"),
    };
    let exponent = if reference == 0.0 { min } else { (reference.abs().log2().floor() as i32).max(min) };
    f64::from(exponent - bits).exp2()
}

/// Panics if the error of an element exceeds `bound` ulp of its reference value. The message names the
/// element with the largest error.
#[track_caller]
pub fn within_ulps<T: Element>(got: &[T], reference: &[f64], cols: usize, bound: f64) {
    assert_eq!(got.len(), reference.len());
    let error = |at: usize| {
        let value = f64::from(got[at].to_f32());
        let error = (value - reference[at]).abs() / ulp(T::DTYPE, reference[at]);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let Some(worst) = (0..got.len()).max_by(|a, b| error(*a).total_cmp(&error(*b))) else { return };
    assert!(
        error(worst) <= bound,
        "row {}, column {}: {:?}, expected {:e}: {:.2} ulp of {}, allowed {bound}",
        worst / cols,
        worst % cols,
        got[worst],
        reference[worst],
        error(worst),
        T::DTYPE,
    );
}

/// Panics and names the first different element if the bits differ.
#[track_caller]
pub fn same_bits<T: Element>(got: &[T], expected: &[T]) {
    assert_eq!(got.len(), expected.len());
    let differs = (0..got.len()).find(|&at| got[at].to_bits() != expected[at].to_bits());
    if let Some(at) = differs {
        panic!("element {at}: {:?} ({:#x}), expected {:?}", got[at], got[at].to_bits(), expected[at]);
    }
}
