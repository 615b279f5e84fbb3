//! Compares the loss and the log-sum-exp (`lse`) of `cross_entropy` with f64 results, for the shapes of
//! `tests/shapes.json`. Targets are i64 or i32, and some are ignored or invalid.
use half::{bf16, f16};
use oxiwarp::{CrossEntropy, Device, Element, RmsNorm, Stream, View, cross_entropy, rms_norm};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::shapes::shapes;
use oxiwarp_tests::tensor::{Layout, Matrix, random, values, wide};

use crate::support::cross_entropy_case::{ClassWeights, KINDS, check, classes, expected, run};
use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("cross_entropy::f32_against_f64", against_f64::<f32>),
    ("cross_entropy::f16_against_f64", against_f64::<f16>),
    ("cross_entropy::bf16_against_f64", against_f64::<bf16>),
    ("cross_entropy::layouts", layouts),
    ("cross_entropy::large_logits_do_not_blur_the_loss", large_logits),
    ("cross_entropy::rows_do_not_depend_on_each_other", batch_invariance),
    ("cross_entropy::ignored_and_wrong_targets", targets),
    ("cross_entropy::masked_classes", masked),
    ("cross_entropy::bad_input", refuses),
];

fn against_f64<T: Element>(device: &Device) {
    let seed = seed();
    for shape in shapes() {
        case!("{} x {} ({})", shape.rows, shape.cols, shape.why);
        check::<T>(device, seed, [shape.rows, shape.cols], Layout::dense(shape.cols));
    }
}

fn layouts(device: &Device) {
    let seed = seed();
    for cols in [1, 64, 129, 2048, 5001] {
        for layout in [
            Layout { offset: 16, stride: cols + 64 },
            Layout { offset: 0, stride: cols + 1 },
            Layout { offset: 1, stride: cols },
        ] {
            case!("{cols} columns, {layout:?}");
            check::<f32>(device, seed, [5, cols], layout);
            check::<bf16>(device, seed, [5, cols], layout);
        }
    }
}

/// Tests logits near 1e4. An f32 log-sum-exp near 1e4 has a rounding error of 5e-4. The loss must
/// nevertheless be as precise as for logits near 0.
fn large_logits(device: &Device) {
    let x = [10_000.0_f32, 9_998.0, 9_990.0, -1e4];
    let matrix = Matrix::upload(device, &x, [1, 4], Layout::dense(4));
    for target in 0..4 {
        let [loss, _] = run(device, &matrix, &[target], None, CrossEntropy::default());
        let [(right, allowed), _] = expected(&wide(&x), target, None, CrossEntropy::default());
        assert!((f64::from(loss[0]) - right).abs() <= allowed, "{}, expected {right}", loss[0]);
    }
}

fn batch_invariance(device: &Device) {
    for cols in [5_usize, 128, 3072, 50_257] {
        let rows = if cols > 10_000 { 7 } else { 300 };
        let random = &mut random(seed());
        let x: Vec<bf16> = values(random, rows * cols);
        let target = classes(random, rows as i64, cols as i64, -100);
        let weight = ClassWeights::random(device, random, cols as i64, false, true);
        let upload = |x: &[bf16], rows: usize| {
            Matrix::upload(device, x, [rows as i64, cols as i64], Layout::dense(cols as i64))
        };
        let all = run(device, &upload(&x, rows), &target, Some(&weight), KINDS[2]);
        for row in [0, 1, rows - 1] {
            let alone = upload(&x[row * cols..(row + 1) * cols], 1);
            for (alone, all) in
                run(device, &alone, &target[row..=row], Some(&weight), KINDS[2]).iter().zip(&all)
            {
                same_bits(alone, &all[row..=row]);
            }
        }
    }
}

/// Tests ignored and invalid targets. A row whose target is ignored has loss 0, even if its logits are NaN.
/// If the target is a class that does not exist, the loss is NaN, and the kernel reads no logit outside the
/// row.
fn targets(device: &Device) {
    let cols = 40;
    let mut x = vec![1.0_f32; 9 * cols];
    x[..cols].fill(f32::NAN);
    let matrix = Matrix::upload(device, &x, [9, cols as i64], Layout { offset: 3, stride: cols as i64 });
    let wrong = [-1, cols as i64, i64::MIN, i64::MAX, 1 << 32, -(1 << 32) + 3];
    let target = [&[-100, 39][..], &wrong, &[0]].concat();
    let [loss, lse] = run(device, &matrix, &target, None, CrossEntropy::default());
    let right = (cols as f32).ln();
    assert_eq!(loss[0], 0.0, "ignored");
    assert!((loss[1] - right).abs() < 1e-6 && (loss[8] - right).abs() < 1e-6, "{loss:?}");
    assert!(loss[2..8].iter().all(|loss| loss.is_nan()), "{loss:?}");
    assert!(lse[0].is_nan() && lse[1..].iter().all(|lse| (lse - 1.0 - right).abs() < 1e-6), "{lse:?}");
}

/// Tests masked classes, whose logit is -inf or the lowest finite number. Masked classes contribute nothing
/// to the sum of exponentials. If the target is a masked class, or label smoothing averages over masked
/// classes, the loss is infinite or huge.
fn masked(device: &Device) {
    for cols in [5_usize, 33, 1024, 20_000] {
        let mask = |c: usize, low: f32| if c >= 4 { low } else { c as f32 };
        for low in [f32::NEG_INFINITY, f32::MIN] {
            let x: Vec<f32> = (0..cols).map(|c| mask(c, low)).collect();
            let matrix = Matrix::upload(device, &x, [1, cols as i64], Layout::dense(cols as i64));
            let [loss, lse] = run(device, &matrix, &[3_i64], None, CrossEntropy::default());
            let right = [1.0_f32, 0.1353353, 0.3678795, 0.0497871].iter().sum::<f32>().ln();
            assert!(
                (loss[0] - right).abs() < 1e-6 && (lse[0] - 3.0 - right).abs() < 1e-6,
                "{loss:?} {lse:?}"
            );
            assert!(run(device, &matrix, &[4_i64], None, CrossEntropy::default())[0][0] > 1e38);
            let smoothed = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
            assert!(
                run(device, &matrix, &[3_i64], None, smoothed)[0][0] > 1e32,
                "no padding is smoothed over"
            );
        }
        // With the softcap, the logit of a masked class is -2, so the class contributes to the sum of
        // exponentials. The padding after the end of the row must still contribute nothing.
        let x: Vec<f32> = (0..cols).map(|c| mask(c, f32::NEG_INFINITY)).collect();
        let matrix = Matrix::upload(device, &x, [1, cols as i64], Layout::dense(cols as i64));
        let params = CrossEntropy { softcap: 2.0, ..CrossEntropy::default() };
        let [loss, _] = run(device, &matrix, &[3_i64], None, params);
        let cap = |x: f64| 2.0 * (x / 2.0).tanh();
        let right = x.iter().map(|&x| (cap(x.into()) - cap(3.0)).exp()).sum::<f64>().ln();
        assert!((f64::from(loss[0]) - right).abs() < 1e-5, "{loss:?}, expected {right}");
        let x = vec![f32::MIN; cols];
        let matrix = Matrix::upload(device, &x, [1, cols as i64], Layout::dense(cols as i64));
        let [loss, _] = run(device, &matrix, &[3_i64], None, CrossEntropy::default());
        assert!((loss[0] - (cols as f32).ln()).abs() < 1e-5, "all equally unlikely: {loss:?}");
    }
}

fn refuses(device: &Device) {
    let (x, classes) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[1_i64; 64]).unwrap());
    let half = device.upload(&[f16::ONE; 64]).unwrap();
    let (mut loss, mut lse) = (device.alloc::<f32>(4).unwrap(), device.alloc::<f32>(4).unwrap());
    let plain = CrossEntropy::default();
    let mut run = |x: View, target: View, rows: &[i64], params: CrossEntropy| {
        let (loss, lse) = (loss.view_mut(rows).unwrap(), lse.view_mut(rows).unwrap());
        cross_entropy(device, x, target, None, loss, lse, params, Stream::default())
    };
    let (logits, target) = (x.view(&[4, 16]).unwrap(), classes.view(&[4]).unwrap());
    let says_of = |result, text: &str| says(result, &format!("cross_entropy: {text}"));
    says_of(run(target, target, &[4], plain), "logits is i64, expected f32, f16 or bf16");
    says_of(run(logits, x.view(&[4]).unwrap(), &[4], plain), "target is f32, expected i64 or i32");
    says_of(run(logits, half.view(&[4]).unwrap(), &[4], plain), "target is f16, expected i64 or i32");
    says_of(run(logits, classes.view(&[3]).unwrap(), &[4], plain), "target has shape [3], expected [4]");
    says_of(run(logits, classes.view(&[4, 1]).unwrap(), &[4], plain), "target has shape [4, 1]");
    says_of(run(logits, target, &[2], plain), "loss has shape [2], expected [4]");
    let strided = classes.view_strided(0, &[4], &[2]).unwrap();
    says_of(run(logits, strided, &[4], plain), "target of shape [4] has strides [2]: it must be contiguous");
    for label_smoothing in [-0.1, 1.5, f32::NAN] {
        let params = CrossEntropy { label_smoothing, ..plain };
        says_of(run(logits, target, &[4], params), "label_smoothing is");
    }
    for (z_loss, got) in [(-1.0, "-1"), (f32::INFINITY, "inf"), (f32::NAN, "NaN")] {
        let text = format!("z_loss is {got}, expected a finite number of 0 or more");
        says_of(run(logits, target, &[4], CrossEntropy { z_loss, ..plain }), &text);
    }
    for softcap in [-1.0, f32::INFINITY, f32::NAN] {
        let params = CrossEntropy { softcap, ..plain };
        says_of(run(logits, target, &[4], params), "softcap is");
    }
    run(logits, target, &[4], plain).expect("it still works");
    let mut run = |weight: View| {
        let (loss, lse) = (loss.view_mut(&[4]).unwrap(), lse.view_mut(&[4]).unwrap());
        cross_entropy(device, logits, target, Some(weight), loss, lse, plain, Stream::default())
    };
    says_of(run(x.view(&[15]).unwrap()), "weight has shape [15], expected [16]");
    says_of(run(half.view(&[16]).unwrap()), "weight is f16, expected f32");
    let strided = x.view_strided(0, &[16], &[2]).unwrap();
    says_of(run(strided), "weight of shape [16] has strides [2]: it must be contiguous");
    run(x.view(&[16]).unwrap()).expect("it still works");
    assert!(loss.download().unwrap().iter().all(|loss| !loss.is_nan()));
    let integers = rms_norm(
        device,
        classes.view(&[4, 16]).unwrap(),
        None,
        loss.view_mut(&[4]).unwrap(),
        RmsNorm::default(),
        Stream::default(),
    );
    says(integers, "rms_norm: x is i64, expected f32, f16 or bf16");
}
