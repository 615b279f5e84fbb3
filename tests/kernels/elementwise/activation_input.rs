//! Tests arguments that the activations reject, and the error texts. A rejected call must write nothing.
use half::bf16;
use oxiwarp::{
    Activation, Device, Error, Gate, GatedActivation, Roundings, Stream, View, ViewMut, activation,
    activation_backward, gated_activation, gated_activation_backward,
};

use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("activation::bad_input", activation_refuses),
    ("gated_activation::bad_input", gated_refuses),
    ("activation::no_elements", no_elements),
    ("gated_activation::thresholds", thresholds),
];

#[track_caller]
fn says(result: Result<(), Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "the error is: {error}\nexpected in it: {text}");
}

fn activation_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let brain = device.upload(&[bf16::ONE; 64]).unwrap();
    let mut y = device.alloc::<f32>(64).unwrap();
    let stream = Stream::default();
    let (silu, exact) = (Activation::Silu, Roundings::Exact);
    {
        let mut refuses = |x: View, bias: Option<View>, y_shape: &[i64], text: &str| {
            let view = y.view_mut(y_shape).unwrap();
            says(activation(device, x, bias, view, silu, exact, stream), &format!("activation: {text}"));
            let (dx, dy) = (y.view_mut(y_shape).unwrap(), x);
            let text = text.replace("out", "dx");
            says(
                activation_backward(device, dy, x, bias, dx, silu, exact, stream),
                &format!("activation_backward: {text}"),
            );
        };
        let of = |shape: &[i64]| x.view(shape).unwrap();
        refuses(of(&[4, 16]), None, &[4, 8], "out has shape [4, 8], expected [4, 16]");
        refuses(brain.view(&[4, 16]).unwrap(), None, &[4, 16], "out is f32, expected bf16");
        refuses(of(&[4, 16]), Some(of(&[8])), &[4, 16], "bias has shape [8], expected [16]");
        refuses(of(&[4, 16]), Some(of(&[4, 16])), &[4, 16], "bias has shape [4, 16], expected [16]");
        refuses(of(&[4, 16]), Some(brain.view(&[16]).unwrap()), &[4, 16], "bias is bf16, expected f32");
        refuses(of(&[]), Some(of(&[1])), &[], "x has shape [], expected at least one dimension");
        let every_other = x.view_strided(0, &[16], &[2]).unwrap();
        refuses(
            of(&[4, 16]),
            Some(every_other),
            &[4, 16],
            "bias of shape [16] has strides [2]: it must be cont",
        );
        let columns = x.view_strided(0, &[16, 4], &[1, 16]).unwrap();
        refuses(
            columns,
            None,
            &[16, 4],
            "x of shape [16, 4] has strides [1, 16]: its last dimension must be cont",
        );
        let three = x.view_strided(0, &[2, 2, 2, 2], &[3, 25, 9, 1]).unwrap();
        refuses(three, None, &[2, 2, 2, 2], "x of shape [2, 2, 2, 2] has strides");
    }
    let repeated = y.view_strided_mut(0, &[4, 16], &[0, 1]).unwrap();
    let result = activation(device, x.view(&[4, 16]).unwrap(), None, repeated, silu, exact, stream);
    says(result, "an output must not repeat its elements");
    let same = x.view(&[64]).unwrap();
    // SAFETY: this writable view covers the memory of `x`, which is alive. The op rejects the overlap before
    // it accesses the memory.
    let on_x = unsafe { ViewMut::from_raw(same.ptr().cast_mut(), same.dtype(), &[64], &[1]) }.unwrap();
    says(activation(device, same, None, on_x, silu, exact, stream), "activation: out overlaps x");
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
    activation(device, same, None, y.view_mut(&[64]).unwrap(), silu, exact, stream).expect("it still works");
}

fn gated_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let mut y = device.alloc::<f32>(64).unwrap();
    let stream = Stream::default();
    let of = |shape: &[i64]| x.view(shape).unwrap();
    let up = GatedActivation { activation: Activation::Gelu, gate: Gate::First, roundings: Roundings::Exact };
    let gate = GatedActivation { gate: Gate::Second, ..up };
    {
        let mut refuses =
            |x: View, second: Option<View>, bias: Option<View>, params, shape: &[i64], text: &str| {
                let view = y.view_mut(shape).unwrap();
                says(gated_activation(device, x, second, bias, view, params, stream), text);
            };
        let odd = "gated_activation: x has shape [4, 15], expected an even last dimension";
        refuses(of(&[4, 15]), None, None, up, &[4, 7], odd);
        refuses(
            of(&[]),
            None,
            None,
            up,
            &[],
            "gated_activation: x has shape [], expected an even last dimension",
        );
        let text = "gated_activation: out has shape [4, 16], expected [4, 8]";
        refuses(of(&[4, 16]), None, None, up, &[4, 16], text);
        let text = "has shape [2, 16], expected [4, 16]";
        refuses(
            of(&[4, 16]),
            Some(of(&[2, 16])),
            None,
            up,
            &[4, 16],
            &format!("gated_activation: up {text}"),
        );
        refuses(
            of(&[4, 16]),
            Some(of(&[2, 16])),
            None,
            gate,
            &[4, 16],
            &format!("gated_activation: gate {text}"),
        );
        let text = "gated_activation: bias has shape [8], expected [16]";
        refuses(of(&[4, 16]), None, Some(of(&[8])), up, &[4, 8], text);
        let text = "gated_activation: bias has shape [16], expected [32]";
        refuses(of(&[4, 16]), Some(of(&[4, 16])), Some(of(&[16])), up, &[4, 16], text);
    }
    let (packed, dx) = (of(&[4, 16]), y.view_mut(&[4, 8]).unwrap());
    let result = gated_activation_backward(device, of(&[4, 8]), packed, None, None, dx, up, stream);
    says(result, "gated_activation_backward: dx has shape [4, 4], expected [4, 8]");
    let dx = y.view_mut(&[4, 16]).unwrap();
    let result = gated_activation_backward(device, of(&[4, 16]), packed, None, None, dx, up, stream);
    says(result, "gated_activation_backward: dy has shape [4, 16], expected [4, 8]");
    // SAFETY: this writable view covers memory of `packed`, which is alive. The op rejects the overlap before
    // it accesses the memory.
    let on_x =
        unsafe { ViewMut::from_raw(packed.ptr().cast_mut(), packed.dtype(), &[4, 8], &[16, 1]) }.unwrap();
    let result = gated_activation(device, packed, None, None, on_x, up, stream);
    says(result, "gated_activation: out overlaps x");
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
    gated_activation(device, packed, None, None, y.view_mut(&[4, 8]).unwrap(), up, stream)
        .expect("it still works");
}

/// Tests that the op accepts tensors without elements, with any number of dimensions. A tensor without
/// dimensions (a scalar) has one element, which the op must process.
fn no_elements(device: &Device) {
    let x = device.upload(&[0.0_f32, 3.0]).unwrap();
    let mut y = device.alloc::<f32>(2).unwrap();
    let (exact, stream) = (Roundings::Exact, Stream::default());
    for shape in [&[0][..], &[0, 8], &[8, 0], &[2, 0, 8]] {
        let (x, y) = (x.view(shape).unwrap(), y.view_mut(shape).unwrap());
        activation(device, x, None, y, Activation::Gelu, exact, stream).expect("nothing to do");
    }
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
    let (x, view) = (x.view_strided(1, &[], &[]).unwrap(), y.view_mut(&[]).unwrap());
    activation(device, x, None, view, Activation::Fatrelu(1.0), exact, stream).expect("one element");
    assert_eq!(y.download().unwrap()[0], 3.0);
}

/// Tests the threshold of `Fatrelu`, whose result is `x` above the threshold and otherwise 0. Infinite
/// thresholds are valid: with `inf` every result is 0, and with `-inf` every value passes unchanged. A NaN
/// threshold is rejected.
fn thresholds(device: &Device) {
    let (x, up) =
        (device.upload(&[1.0_f32, f32::MAX, -2.0, 0.0]).unwrap(), device.upload(&[3.0_f32; 4]).unwrap());
    let run = |threshold: f32| {
        let (mut y, mut dx) = (device.alloc::<f32>(4).unwrap(), device.alloc::<f32>(8).unwrap());
        let (activation, gate) = (Activation::Fatrelu(threshold), Gate::First);
        let params = GatedActivation { activation, gate, roundings: Roundings::Exact };
        let (x, second, stream) =
            (x.view(&[1, 4]).unwrap(), Some(up.view(&[1, 4]).unwrap()), Stream::default());
        gated_activation_backward(device, x, x, second, None, dx.view_mut(&[1, 8]).unwrap(), params, stream)
            .map_err(|error| says(Err(error), "gated_activation_backward: threshold is NaN"))
            .ok();
        gated_activation(device, x, second, None, y.view_mut(&[1, 4]).unwrap(), params, stream)?;
        Ok::<_, Error>(y.download().unwrap())
    };
    assert_eq!(run(f32::INFINITY).unwrap(), [0.0; 4]);
    assert_eq!(run(f32::NEG_INFINITY).unwrap(), [3.0, f32::INFINITY, -6.0, 0.0]);
    says(run(f32::NAN).map(|_| ()), "gated_activation: threshold is NaN, expected a number or an infinity");
}
