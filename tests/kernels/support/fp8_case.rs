//! Calls of `quantize_fp8`, and its formulas in f32 and f64.
use oxiwarp::{Device, Element, Fp8, Fp8Scaling, Scalar, Stream, quantize_fp8};
use oxiwarp_tests::compare::ulp;
use oxiwarp_tests::tensor::{Layout, Matrix};

/// The memory layouts of the operands of a call.
#[derive(Clone, Copy, Debug)]
pub struct Layouts {
    pub x: Layout,
    pub values: Layout,
    /// Strides of the scales: from row to row, and from block to block.
    pub scales: [i64; 2],
}

impl Layouts {
    /// Returns operands without gaps, and scales in the layout that products read.
    pub fn dense(shape: [i64; 2], scaling: Fp8Scaling) -> Self {
        let (_, strides) = scaling.layout(&shape);
        let dense = Layout::dense(shape[1]);
        Self { x: dense, values: dense, scales: [strides[0], strides[1]] }
    }
}

/// Quantized rows: the bits of the values, and the scales, both row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    pub values: Vec<u8>,
    pub scales: Vec<f32>,
}

/// Runs the op with newly allocated memory. Panics if it wrote an element outside of the outputs.
pub fn run<T: Element, E: Fp8 + Scalar>(
    device: &Device,
    x: &[T],
    shape: [i64; 2],
    scaling: Fp8Scaling,
    layouts: Layouts,
) -> Quantized {
    let x = Matrix::upload(device, x, shape, layouts.x);
    let blocks = scaling.layout(&shape).0[1];
    let ([rows, cols], values) = (shape, layouts.values);
    let places = |[rows, cols]: [i64; 2], offset: usize, [row, col]: [i64; 2]| {
        let of_row = move |r: i64| (0..cols).map(move |c| offset + (r * row + c * col) as usize);
        (0..rows).flat_map(of_row).collect::<Vec<_>>()
    };
    let of_values = places(shape, values.offset, [values.stride, 1]);
    let of_scales = places([rows, blocks], 0, layouts.scales);
    let len = |places: &[usize]| places.iter().max().map_or(1, |last| last + 2);
    let mut bytes = device.upload(&vec![E::POISON; len(&of_values)]).expect("device memory");
    let mut floats = device.upload(&vec![f32::POISON; len(&of_scales)]).expect("device memory");
    quantize_fp8(
        device,
        x.view(),
        scaling,
        bytes.view_strided_mut(values.offset, &[rows, cols], &[values.stride, 1]).expect("inside"),
        floats.view_strided_mut(0, &[rows, blocks], &layouts.scales).expect("inside"),
        Stream::default(),
    )
    .expect("valid arguments");
    let bytes: Vec<u8> = bytes.download().expect("a kernel that ran").iter().map(|v| v.to_bits()).collect();
    let floats = floats.download().expect("a kernel that ran");
    Quantized {
        values: taken(&bytes, &of_values, |byte| byte == E::POISON.to_bits()),
        scales: taken(&floats, &of_scales, |scale| scale.to_bits() == f32::POISON.to_bits()),
    }
}

/// Returns the elements of `memory` at the indices in `places`. Panics if another element is not poisoned.
fn taken<V: Copy>(memory: &[V], places: &[usize], poisoned: impl Fn(V) -> bool) -> Vec<V> {
    let mut inside = vec![false; memory.len()];
    places.iter().for_each(|&at| inside[at] = true);
    let hit = (0..memory.len()).find(|&at| !inside[at] && !poisoned(memory[at]));
    assert_eq!(hit, None, "an element outside the output was written");
    places.iter().map(|&at| memory[at]).collect()
}

/// Returns the number of columns that share a scale.
pub fn group(scaling: Fp8Scaling, cols: usize) -> usize {
    if scaling == Fp8Scaling::PerRow { cols } else { 128 }
}

/// Computes the formulas in f32. The code of a value is found among the decoded values of all codes.
pub fn reference<T: Element, E: Fp8>(x: &[T], cols: usize, scaling: Fp8Scaling) -> Quantized {
    let positive: Vec<f32> = (0..=u8::MAX).map(|code| E::from_bits(code).to_f32()).collect();
    let largest = (0..0x80).rev().find(|&code| positive[code].is_finite()).expect("a finite value");
    let nearest = |value: f32| -> u8 {
        if value.is_nan() {
            return 0x7f;
        }
        let wanted = value.abs().min(positive[largest]);
        let above = positive[..=largest].partition_point(|code| *code < wanted);
        let below = above.saturating_sub(1);
        let [to_below, to_above] =
            [below, above].map(|code| (f64::from(positive[code]) - f64::from(wanted)).abs());
        let even = if below % 2 == 0 { below } else { above };
        let code = match to_below.total_cmp(&to_above) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => even,
        };
        code as u8 | u8::from(value.is_sign_negative()) << 7
    };
    let mut result = Quantized { values: vec![], scales: vec![] };
    for part in x.chunks(cols).flat_map(|row| row.chunks(group(scaling, cols))) {
        let wide = || part.iter().map(|x| x.to_f32());
        let peak =
            if wide().any(f32::is_nan) { f32::NAN } else { wide().fold(0.0_f32, |a, b| a.max(b.abs())) };
        let quotient = peak / E::MAX;
        let scale = if quotient < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { quotient };
        let inverse = 1.0 / scale;
        result.values.extend(wide().map(|x| nearest(x * inverse)));
        result.scales.push(scale);
    }
    result
}

/// Panics if the results differ in a bit. All NaN scales are equal.
#[track_caller]
pub fn same(got: &Quantized, expected: &Quantized, cols: usize) {
    assert_eq!(got.values.len(), expected.values.len());
    let differs = (0..got.values.len()).find(|&at| got.values[at] != expected.values[at]);
    if let Some(at) = differs {
        let (row, column) = (at / cols, at % cols);
        panic!("row {row}, column {column}: {:#x}, expected {:#x}", got.values[at], expected.values[at]);
    }
    let bits = |scales: &[f32]| {
        scales.iter().map(|scale| if scale.is_nan() { u32::MAX } else { scale.to_bits() }).collect::<Vec<_>>()
    };
    assert_eq!(bits(&got.scales), bits(&expected.scales), "scales");
}

/// Compares finite results with f64. The scale has one rounding error, unless it has the smallest value. The
/// quotient of an element and the scale has three rounding errors of f32, and the rounding to 8 bits.
#[track_caller]
pub fn close<T: Element, E: Fp8 + Scalar>(got: &Quantized, x: &[T], cols: usize, scaling: Fp8Scaling) {
    let parts = x.chunks(cols).flat_map(|row| row.chunks(group(scaling, cols)));
    let mut values = got.values.iter();
    for (part, &scale) in parts.zip(&got.scales) {
        let scale = f64::from(scale);
        let wide: Vec<f64> = part.iter().map(|x| f64::from(x.to_f32())).collect();
        let peak = wide.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
        let exact = (peak / f64::from(E::MAX)).max(f64::from(f32::MIN_POSITIVE));
        assert!((scale - exact).abs() <= exact * 2f64.powi(-24), "scale {scale:e}, expected {exact:e}");
        for (x, &code) in wide.iter().zip(&mut values) {
            let (value, quotient) = (f64::from(E::from_bits(code).to_f32()), x / scale);
            let allowed = 0.5 * ulp(E::DTYPE, quotient) + 3.0 * 2f64.powi(-24) * quotient.abs();
            let error = (value - quotient).abs();
            assert!(error <= allowed, "{value} for {x:e} / {scale:e}: error {error:e}, allowed {allowed:e}");
        }
    }
}
