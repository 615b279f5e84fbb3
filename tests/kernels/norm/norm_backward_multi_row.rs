//! Tests two backward kernels of LayerNorm for rows that fill whole warps. In one kernel, a thread block
//! processes two rows at a time. In the other kernel, a thread block processes one row, with three packs
//! (16-byte vectors) per thread.
//!
//! Rows that a block processes together must not affect each other. The results must also be precise for rows
//! whose mean is far from 0.
use half::{bf16, f16};
use oxiwarp::{
    Affine, Device, Element, LaunchOverride, Overridable as _, ParameterGradients, Stream,
    layer_norm_backward, norm_backward_workspace,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};

use crate::support::norm_backward_case::{EPS, NormBackwardCase};
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("norm_backward::beside_f32_odd_rows", odd_rows::<f32>),
    ("norm_backward::beside_f16_odd_rows", odd_rows::<f16>),
    ("norm_backward::beside_bf16_odd_rows", odd_rows::<bf16>),
    ("norm_backward::beside_a_nan_stays_in_its_row", not_finite),
    ("norm_backward::beside_means_far_from_0", far_means),
    ("norm_backward::beside_outliers_among_the_first", outliers),
    ("norm_backward::beside_three_dimensions", three_dimensions),
];

/// Pairs of a number of columns and the kernel for f32 rows of this length. For 16-bit rows, the same kernel
/// processes twice as many columns.
const FORMS: [(i64, &str); 2] = [(512, "rows2_block2"), (1_536, "block3")];

/// Returns the number of columns for which a row of type `T` has as many bytes as an f32 row of `of_f32`
/// columns.
fn columns<T>(of_f32: i64) -> i64 {
    of_f32 * 4 / size_of::<T>() as i64
}

/// Calls `run` with a device that records launches. Asserts that the first launched kernel is
/// `layer_norm_backward_<kernel>`.
fn by_kernel<R>(device: &Device, kernel: &str, run: impl FnOnce(&Device) -> R) -> R {
    let device = device.with_override(LaunchOverride::default());
    let results = run(&device);
    let launches = device.take_launches();
    assert!(launches[0].starts_with(&format!("layer_norm_backward_{kernel} ")), "{launches:?}");
    results
}

/// Tests few and many rows, mostly odd numbers. A kernel that processes pairs of rows must handle a last pair
/// with only one row. With many rows, a block processes several pairs.
fn odd_rows<T: Element>(device: &Device) {
    for (cols, kernel) in FORMS {
        for rows in [1, 2, 3, 7, 1_323] {
            let case = NormBackwardCase::<T>::new(seed(), true, [rows, columns::<T>(cols)]);
            let dsum = (rows == 7).then(|| values(&mut random(seed()), case.x.len()));
            case!("{rows} rows of {cols}");
            by_kernel(device, kernel, |device| NormBackwardCase { dsum, ..case }.check(device));
        }
    }
}

/// Puts a NaN or an infinity into one of seven rows. The kernel first subtracts the mean of a row's first 16
/// elements. In some cases, the value is among these 16 elements, and in others it comes after them.
fn not_finite(device: &Device) {
    let rows = 7;
    for (cols, kernel) in FORMS {
        let cols = cols as usize;
        for (row, column) in (0..rows).flat_map(|row| [(row, 3), (row, 40)]) {
            for (in_x, bad) in [(true, f32::NAN), (false, f32::NAN), (true, f32::INFINITY)] {
                let mut case = NormBackwardCase::<f32>::new(seed(), true, [rows as i64, cols as i64]);
                let of = if in_x { &mut case.x } else { &mut case.dy };
                of[row * cols + column] = bad;
                let (dx, sums) = by_kernel(device, kernel, |device| case.run(device));
                let context = format!("{kernel}: {bad} in row {row}, column {column}, in x: {in_x}");
                for (at, dx) in dx.iter().enumerate() {
                    assert_eq!(dx.is_nan(), at / cols == row, "{context}: dx[{}, {}]", at / cols, at % cols);
                }
                let [dweight, dbias] = &sums[..] else { panic!("there are two") };
                for at in 0..cols {
                    assert_eq!(dweight[at].is_nan(), in_x || at == column, "{context}: dweight[{at}]");
                    assert_eq!(dbias[at].is_nan(), !in_x && at == column, "{context}: dbias[{at}]");
                }
            }
        }
    }
}

/// Tests rows whose mean has a much larger magnitude than their standard deviation. Consecutive rows have
/// different means.
fn far_means(device: &Device) {
    for (cols, kernel) in FORMS {
        for mean in [-3_000.0, 40_000.0] {
            let mut case = NormBackwardCase::<f32>::new(seed(), true, [5, cols]);
            let means = [mean, 0.0, -mean, mean, 10.0 * mean];
            case.x.iter_mut().enumerate().for_each(|(at, x)| *x += means[at / cols as usize]);
            by_kernel(device, kernel, |device| case.check(device));
        }
    }
}

/// Tests outliers among the first 16 elements of a row. The kernel first subtracts the mean of the first 16
/// elements. With outliers, this mean is far from the mean of the whole row, so the sums that the kernel
/// computes lose accuracy.
fn outliers(device: &Device) {
    for (cols, kernel) in FORMS {
        for (outliers, size) in [(0..1, 1e4), (15..16, -1e6), (3..9, 1e3), (0..16, 1e4), (0..16, -300.0)] {
            let mut case =
                NormBackwardCase { sampled: true, ..NormBackwardCase::<f32>::new(seed(), true, [3, cols]) };
            // Only the middle row is changed. Its neighbours keep their values.
            case.x[cols as usize..][outliers].iter_mut().for_each(|x| *x += size);
            by_kernel(device, kernel, |device| case.check(device));
        }
    }
}

/// Tests batches of five rows with a gap of one row after each batch. A kernel that processes two rows at a
/// time may then pair the last row of a batch with the first row of the next.
fn three_dimensions(device: &Device) {
    let (batches, tokens) = (3, 5);
    for (cols, kernel) in FORMS {
        let case = NormBackwardCase::<f32>::new(seed(), true, [batches * tokens, cols]);
        let (dx, sums) = by_kernel(device, kernel, |device| case.run(device));
        let (shape, strides) = ([batches, tokens, cols], [(tokens + 1) * cols, cols, 1]);
        let spread = |values: &[f32]| {
            let batches = values.chunks((tokens * cols) as usize);
            let memory = batches.flat_map(|batch| batch.iter().copied().chain(vec![f32::NAN; cols as usize]));
            device.upload(&memory.collect::<Vec<_>>()).expect("memory")
        };
        let (x, dy, mut out) = (spread(&case.x), spread(&case.dy), spread(&vec![f32::NAN; dx.len()]));
        let Some(Ok(weight)) = &case.weight else { panic!("there is one") };
        let weight = device.upload(weight).expect("memory");
        let [mut dweight, mut dbias] = [(); 2].map(|()| device.alloc::<f32>(cols as usize).expect("memory"));
        let [x, dy] = [&x, &dy].map(|of| of.view_strided(0, &shape, &strides).expect("inside"));
        let needed = norm_backward_workspace(device, &x, &[cols], 2);
        let mut workspace = device.alloc::<f32>(needed).expect("memory");
        by_kernel(device, kernel, |device| {
            let gradients = ParameterGradients {
                dweight: dweight.view_mut(&[cols]).ok(),
                dbias: dbias.view_mut(&[cols]).ok(),
                workspace: workspace.view_mut(&[needed as i64]).ok(),
            };
            let out = out.view_strided_mut(0, &shape, &strides).expect("inside");
            let affine = Affine { weight: weight.view(&[cols]).ok(), bias: None };
            layer_norm_backward(device, dy, x, affine, None, out, gradients, EPS, Stream::default())
                .expect("valid arguments");
        });
        let out = out.download().expect("a kernel that ran");
        let (rows, gaps): (Vec<_>, Vec<_>) =
            out.chunks(cols as usize).enumerate().partition(|(row, _)| row % (tokens as usize + 1) < 5);
        same_bits(&rows.iter().flat_map(|(_, row)| row.iter().copied()).collect::<Vec<_>>(), &dx);
        assert!(gaps.iter().all(|(_, gap)| gap.iter().all(|x| x.is_nan())), "a gap was written");
        for (ours, theirs) in [&dweight, &dbias].into_iter().zip(&sums) {
            let ours: Vec<_> =
                ours.download().expect("a kernel that ran").into_iter().map(f64::from).collect();
            assert_eq!(&ours, theirs);
        }
    }
}
