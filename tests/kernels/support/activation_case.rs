//! References of the activation functions in f64, and their allowed errors.
use oxiwarp::{Activation, Element, Roundings};

/// Computes the activation functions in f64.
pub fn reference(f: Activation, x: f64) -> f64 {
    let tanh = |x: f64| {
        x / 2.0 * (1.0 + libm::tanh((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))))
    };
    match f {
        Activation::Gelu | Activation::GeluCuda13_2 => x / 2.0 * libm::erfc(-x / std::f64::consts::SQRT_2),
        Activation::GeluTanh | Activation::GeluNew | Activation::GeluFast => tanh(x),
        Activation::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Fatrelu(threshold) => {
            if x <= f64::from(threshold) {
                0.0
            } else {
                x
            }
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Relu2 => x.max(0.0).powi(2),
        other => panic!("{other:?} has no reference"),
    }
}

/// Computes the derivative of an activation function. For `Relu2` this is the formula. For all other
/// functions, it is a difference quotient with a step of 2e-5 and an error of at most 1e-9.
pub fn slope(f: Activation, x: f64) -> f64 {
    if f == Activation::Relu2 {
        return 2.0 * x.max(0.0);
    }
    (reference(f, x + 1e-5) - reference(f, x - 1e-5)) / 2e-5
}

/// Returns the error that rounding a result of this size to the element type can cause: half an ulp, and at
/// least half of the distance between two subnormal numbers of float16.
pub fn rounding<T: Element>(size: f64) -> f64 {
    1.01 * epsilon::<T>() * size.abs() + 2.0_f64.powi(-25)
}

fn epsilon<T: Element>() -> f64 {
    match T::DTYPE {
        oxiwarp::Dtype::F16 => 2.0_f64.powi(-11),
        oxiwarp::Dtype::Bf16 => 2.0_f64.powi(-8),
        _ => 2.0_f64.powi(-24),
    }
}

/// Returns the allowed error of a result: its `rounding`, plus an error in proportion to `scale`.
/// `scale` is the size of the input. If the result is a product with further factors, `scale` includes these
/// factors.
///
/// For negative inputs, the terms of `1 + tanh(..)` or `1 + erf(..)` cancel. The absolute error is then
/// proportional to the input, not to the result. Approximate instructions contribute up to 2 ulp each. Some
/// functions reproduce a chain of torch operators in exact mode. Each operator of the chain then adds a
/// rounding error of the element type. The sigmoid of 0 is not 0, so `scale` is at least 1 for the sigmoid.
pub fn allowed<T: Element>(f: Activation, roundings: Roundings, expected: f64, scale: f64) -> f64 {
    let chain = matches!(f, Activation::GeluNew | Activation::GeluFast | Activation::GeluQuick);
    let scale = if f == Activation::Sigmoid { scale.abs().max(1.0) } else { scale };
    let lost =
        if chain && roundings == Roundings::Exact { 4.0 * epsilon::<T>() } else { 0.0 } + 2.0_f64.powi(-20);
    rounding::<T>(expected) + lost * scale.abs()
}

/// Panics if the error of element `i` exceeds `allowed(i)` for any `i`. The message names the element with
/// the largest ratio of error to allowed error.
#[track_caller]
pub fn within<T: Element>(got: &[T], expected: &[f64], allowed: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), expected.len());
    let excess = |at: usize| {
        let error = (f64::from(got[at].to_f32()) - expected[at]).abs() / allowed(at);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let Some(worst) = (0..got.len()).max_by(|a, b| excess(*a).total_cmp(&excess(*b))) else { return };
    let (value, right) = (got[worst], expected[worst]);
    assert!(
        excess(worst) <= 1.0,
        "element {worst}: {value:?}, expected {right:e}: {:.2} x allowed",
        excess(worst)
    );
}
