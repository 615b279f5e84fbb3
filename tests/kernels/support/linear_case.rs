//! Test cases of `linear`: the operands, the call, and the comparison with f64 results.
use oxiwarp::{Buffer, Device, Element, Stream, linear};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

/// The position of an operand in its buffer: the index of its first element, and the number of unused
/// elements after each row.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    pub offset: usize,
    pub gap: i64,
}

pub const DENSE: Placement = Placement { offset: 0, gap: 0 };

/// A matrix product to test. `x` has the shape `[m, k]`, and `weight` has the shape `[n, k]`.
#[derive(Clone, Copy, Debug)]
pub struct LinearCase {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub bias: bool,
    pub x: Placement,
    pub weight: Placement,
    pub y: Placement,
    /// First element of the bias in its buffer.
    pub bias_offset: usize,
}

impl LinearCase {
    /// Returns a product of dense operands.
    pub fn of([m, n, k]: [i64; 3], bias: bool) -> Self {
        Self { m, n, k, bias, x: DENSE, weight: DENSE, y: DENSE, bias_offset: 0 }
    }
}

/// The operands of a product on a device.
pub struct LinearInputs<T> {
    pub x: Matrix<T>,
    pub weight: Matrix<T>,
    pub bias: Buffer<T>,
    pub expected: Vec<(f64, f64)>,
}

impl<T: Element> LinearInputs<T> {
    /// Uploads random operands. The elements outside of the operands are NaN.
    pub fn new(device: &Device, p: &LinearCase) -> Self {
        let mut rng = random(seed());
        let [m, n, k] = [p.m, p.n, p.k].map(|size| size as usize);
        let (x, weight): (Vec<T>, Vec<T>) = (values(&mut rng, m * k), values(&mut rng, n * k));
        let bias: Vec<T> = values(&mut rng, n);
        let expected = expected(p, &wide(&x), &wide(&weight), &wide(&bias));
        let nan = T::from_bits(u32::MAX);
        let mut around = vec![nan; p.bias_offset + n + 8];
        around[p.bias_offset..][..n].copy_from_slice(&bias);
        let upload = |values: &[T], shape: [i64; 2], place: Placement| {
            let layout = Layout { offset: place.offset, stride: shape[1] + place.gap };
            Matrix::upload(device, values, shape, layout)
        };
        Self {
            x: upload(&x, [p.m, p.k], p.x),
            weight: upload(&weight, [p.n, p.k], p.weight),
            bias: device.upload(&around).expect("memory"),
            expected,
        }
    }

    /// Runs the op and returns its result.
    pub fn run(&self, device: &Device, p: &LinearCase) -> Vec<T> {
        let layout = Layout { offset: p.y.offset, stride: p.n + p.y.gap };
        let mut y = Matrix::<T>::poisoned(device, [p.m, p.n], layout);
        let bias = self.bias.view_strided(p.bias_offset, &[p.n], &[1]).expect("inside");
        let bias = p.bias.then_some(bias);
        linear(device, self.x.view(), self.weight.view(), bias, y.view_mut(), Stream::default())
            .expect("a launch");
        y.download()
    }
}

/// Returns each result in f64, and the sum of the magnitudes of its terms.
fn expected(p: &LinearCase, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<(f64, f64)> {
    let k = p.k as usize;
    let one = |x: &[f64], weight: &[f64], bias: f64| {
        let terms = x.iter().zip(weight).map(|(x, w)| x * w).chain([bias]);
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    let bias = |column: usize| if p.bias { bias[column] } else { 0.0 };
    x.chunks(k)
        .flat_map(|x| weight.chunks(k).enumerate().map(move |(at, weight)| one(x, weight, bias(at))))
        .collect()
}

/// Compares results with f64. The tensor cores add products in f32 and may truncate the sums. The error of
/// each addition is therefore at most 2^-22 times the sum of the magnitudes of all terms. The result is
/// rounded once.
#[track_caller]
pub fn close<T: Element>(got: &[T], expected: &[(f64, f64)], p: &LinearCase) {
    assert_eq!(got.len(), expected.len());
    for (at, (got, &(value, size))) in got.iter().zip(expected).enumerate() {
        let inner = size * (p.k as f64 / 16.0 + 2.0) * 2.0_f64.powi(-22);
        let allowed = inner + 0.5 * ulp(T::DTYPE, value.abs() + inner);
        let got = f64::from(got.to_f32());
        assert!(
            (got - value).abs() <= allowed,
            "{p:?}, row {}, column {}: {got:e}, expected {value:e} within {allowed:e}",
            at / p.n as usize,
            at % p.n as usize
        );
    }
}
