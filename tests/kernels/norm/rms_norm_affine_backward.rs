//! Tests `rms_norm_affine_backward`: the gradients of a norm with a weight per head. They must have the bits
//! of `rms_norm_backward` for the same rows in another order, in which the rows of a head are a group.
use half::bf16;
use oxiwarp::{
    Device, Element, ParameterGradients, RmsNorm, Stream, norm_backward_workspace, rms_norm_affine_backward,
    rms_norm_backward,
};
use oxiwarp_tests::case;
use oxiwarp_tests::case::seed;
use oxiwarp_tests::compare::same_bits;
use oxiwarp_tests::tensor::{random, values};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rms_norm_affine_backward::f32", heads::<f32>),
    ("rms_norm_affine_backward::bf16", heads::<bf16>),
    ("rms_norm_affine_backward::bad_input", refuses),
];

fn heads<T: Element>(device: &Device) {
    let rng = &mut random(seed());
    for [rows, heads, cols] in [[1, 1, 7], [5, 3, 24], [37, 4, 128], [9, 2, 640], [600, 3, 64]] {
        case!("{rows} rows of {heads} heads of {cols}");
        let len = rows * heads * cols;
        let [x, dy]: [Vec<T>; 2] = [values(rng, len), values(rng, len)];
        let weight: Vec<T> = values(rng, heads * cols);
        // Moves the heads before the rows.
        let by_head = |values: &[T]| -> Vec<T> {
            let at = |i: usize| (i / cols % rows * heads + i / cols / rows) * cols + i % cols;
            (0..len).map(|i| values[at(i)]).collect()
        };
        let run = |x: &[T], dy: &[T], is_affine: bool| {
            let [x, dy, weight] = [x, dy, &weight[..]].map(|values| device.upload(values).unwrap());
            let poison = vec![T::from_bits(u32::MAX); len];
            let mut dx = device.upload(&poison).unwrap();
            let mut dweight = device.upload(&poison[..heads * cols]).unwrap();
            let sizes = if is_affine { [rows, heads, cols] } else { [heads, rows, cols] }.map(|n| n as i64);
            let of_weight = [heads as i64, cols as i64];
            let (x, dy, weight) =
                (x.view(&sizes).unwrap(), dy.view(&sizes).unwrap(), weight.view(&of_weight).unwrap());
            let numbers = norm_backward_workspace(device, &x, &of_weight, 1);
            let mut workspace = device.upload(&vec![f32::NAN; numbers]).unwrap();
            let gradients = ParameterGradients {
                dweight: Some(dweight.view_mut(&of_weight).unwrap()),
                dbias: None,
                workspace: Some(workspace.view_mut(&[numbers as i64]).unwrap()),
            };
            let (out, params, stream) = (dx.view_mut(&sizes).unwrap(), RmsNorm::default(), Stream::default());
            if is_affine {
                rms_norm_affine_backward(device, dy, x, weight, out, gradients, params, stream).unwrap();
            } else {
                rms_norm_backward(device, dy, x, Some(weight), None, out, gradients, params, stream).unwrap();
            }
            (dx.download().unwrap(), dweight.download().unwrap())
        };
        let (dx, dweight) = run(&x, &dy, true);
        let (grouped, of_groups) = run(&by_head(&x), &by_head(&dy), false);
        same_bits(&by_head(&dx), &grouped);
        same_bits(&dweight, &of_groups);
    }
}

fn refuses(device: &Device) {
    let (x, mut dx) = (device.upload(&[1.0_f32; 48]).unwrap(), device.upload(&[7.0_f32; 48]).unwrap());
    for (shape, weight, text) in [
        (&[6, 8][..], &[8][..], "x has shape [6, 8], expected [rows, heads, columns]"),
        (&[2, 3, 8], &[2, 8], "weight has shape [2, 8], expected [3, 8]"),
        (&[2, 3, 8], &[7], "weight has shape [7], expected [8]"),
    ] {
        let at = |shape: &[i64]| x.view(shape).unwrap();
        let out = dx.view_mut(shape).unwrap();
        let (gradients, params) = (ParameterGradients::default(), RmsNorm::default());
        let stream = Stream::default();
        says(
            rms_norm_affine_backward(
                device,
                at(shape),
                at(shape),
                at(weight),
                out,
                gradients,
                params,
                stream,
            ),
            &format!("rms_norm_backward: {text}"),
        );
    }
    assert!(dx.download().unwrap().iter().all(|x| *x == 7.0), "something was written");
}
