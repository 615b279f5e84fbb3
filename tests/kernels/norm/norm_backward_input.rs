//! Tests arguments that the backward ops of the norms reject. A rejected call must write nothing.
use half::f16;
use oxiwarp::{
    Affine, Buffer, Device, ParameterGradients, RmsNorm, Stream, View, ViewMut, layer_norm_backward,
    norm_backward_workspace, rms_norm_backward,
};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("norm_backward::bad_operands", bad_operands),
    ("norm_backward::bad_gradients", bad_gradients),
    ("norm_backward::no_rows", no_rows),
];

fn bad_operands(device: &Device) {
    let (x, half) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[f16::ONE; 64]).unwrap());
    let mut dx = device.alloc::<f32>(64).unwrap();
    let mut refuses = |dy: View, weight: Option<View>, dsum: Option<View>, eps: f32, text: &str| {
        let (x, dx, params) = (
            x.view(&[4, 16]).unwrap(),
            dx.view_mut(&[4, 16]).unwrap(),
            RmsNorm { eps, ..RmsNorm::default() },
        );
        let gradients = ParameterGradients::default();
        says(rms_norm_backward(device, dy, x, weight, dsum, dx, gradients, params, Stream::default()), text);
    };
    let dy = x.view(&[4, 16]).unwrap();
    let short = x.view(&[2, 16]).unwrap();
    refuses(short, None, None, 0.0, "rms_norm_backward: dy has shape [2, 16], expected [4, 16]");
    refuses(half.view(&[4, 16]).unwrap(), None, None, 0.0, "rms_norm_backward: dy is f16, expected f32");
    refuses(dy, None, Some(short), 0.0, "rms_norm_backward: dsum has shape [2, 16], expected [4, 16]");
    refuses(dy, None, None, -1.0, "rms_norm_backward: eps is -1, expected a finite number of 0 or more");
    refuses(dy, None, None, f32::NAN, "rms_norm_backward: eps is NaN");
    refuses(dy, None, None, f32::INFINITY, "rms_norm_backward: eps is inf");
    let weight = |shape: &[i64]| Some(x.view(shape).unwrap());
    refuses(
        dy,
        weight(&[8]),
        None,
        0.0,
        "rms_norm_backward: weight has shape [8], expected [16], or [groups, 16]",
    );
    refuses(
        dy,
        weight(&[3, 16]),
        None,
        0.0,
        "rms_norm_backward: weight has shape [3, 16], expected [16], or",
    );
    refuses(dy, weight(&[2, 2, 16]), None, 0.0, "weight has shape [2, 2, 16], expected [16], or");
    refuses(dy, Some(half.view(&[16]).unwrap()), None, 0.0, "weight is f16, expected f32");
    let strided = Some(x.view_strided(0, &[16], &[2]).unwrap());
    refuses(dy, strided, None, 0.0, "weight of shape [16] has strides [2]: it must be contiguous");
    let apart = Some(x.view_strided(0, &[2, 16], &[32, 1]).unwrap());
    refuses(dy, apart, None, 0.0, "weight of shape [2, 16] has strides [32, 1]: it must be contiguous");
    assert!(dx.download().unwrap().iter().all(|dx| dx.is_nan()), "something was written");
}

/// Makes a writable view of the memory of `view`. The tests pass this view to calls that the op rejects.
fn writable<'a>(view: View<'a>) -> ViewMut<'a> {
    // SAFETY: the writable view covers the memory of a valid view. The op rejects every call that gets the
    // writable view, so it does not write to this memory.
    unsafe { ViewMut::from_raw(view.ptr().cast_mut(), view.dtype(), view.shape(), view.strides()) }.unwrap()
}

fn own<'a>(buffer: &'a Buffer<f32>, shape: &[i64]) -> ViewMut<'a> {
    writable(buffer.view(shape).unwrap())
}

fn bad_gradients(device: &Device) {
    let (x, half) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[f16::ONE; 64]).unwrap());
    let [mut dx, mut dweight, mut dbias, mut floats] =
        [64, 16, 16, 4096].map(|len| device.alloc::<f32>(len).unwrap());
    let (rows, columns) = (x.view(&[4, 16]).unwrap(), x.view(&[16]).unwrap());
    let needed = norm_backward_workspace(device, &rows, &[16], 2);
    assert!((32..=4096).contains(&needed), "{needed}");
    let call = |dweight: ViewMut, dbias: Option<ViewMut>, workspace: Option<ViewMut>| {
        let gradients = ParameterGradients { dweight: Some(dweight), dbias, workspace };
        let (dx, stream) = (own(&dx, &[4, 16]), Stream::default());
        let affine = Affine { weight: Some(columns), bias: None };
        layer_norm_backward(device, rows, rows, affine, None, dx, gradients, 1e-5, stream)
    };
    let of = |len: i64| Some(own(&floats, &[len]));
    let name = "layer_norm_backward";
    says(call(own(&dweight, &[16]), None, None), &format!("{name}: workspace has shape [], expected ["));
    says(call(own(&dweight, &[16]), None, of(8)), &format!("{name}: workspace has shape [8], expected ["));
    says(
        call(own(&dweight, &[2, 8]), None, of(4096)),
        &format!("{name}: dweight has shape [2, 8], expected [16]"),
    );
    says(
        call(writable(half.view(&[16]).unwrap()), None, of(4096)),
        &format!("{name}: dweight is f16, expected f32"),
    );
    says(call(writable(columns), None, of(4096)), &format!("{name}: dweight overlaps x"));
    let twice = Some(own(&dweight, &[16]));
    says(call(own(&dweight, &[16]), twice, of(4096)), &format!("{name}: dbias overlaps dweight"));
    let (same, workspace) = (floats.view(&[16]).unwrap(), floats.view(&[4096]).unwrap());
    says(
        call(writable(same), None, Some(writable(workspace))),
        &format!("{name}: workspace overlaps dweight"),
    );
    for buffer in [&dx, &dweight, &dbias] {
        assert!(buffer.download().unwrap().iter().all(|value| value.is_nan()), "something was written");
    }
    let gradients = ParameterGradients { dbias: Some(dbias.view_mut(&[16]).unwrap()), ..Default::default() };
    let (out, params) = (dx.view_mut(&[4, 16]).unwrap(), RmsNorm::default());
    let result = rms_norm_backward(device, rows, rows, None, None, out, gradients, params, Stream::default());
    says(result, "rms_norm_backward: dbias has shape [16], expected none: there is no bias");
    let gradients = ParameterGradients {
        dweight: Some(dweight.view_mut(&[16]).unwrap()),
        dbias: Some(dbias.view_mut(&[16]).unwrap()),
        workspace: Some(floats.view_mut(&[needed as i64]).unwrap()),
    };
    let out = dx.view_mut(&[4, 16]).unwrap();
    layer_norm_backward(device, rows, rows, Affine::default(), None, out, gradients, 1e-5, Stream::default())
        .expect("it still works");
    assert_eq!(dbias.download().unwrap(), [4.0; 16]);
}

/// Tests tensors without rows. The gradient of the weight must then be all zeros.
fn no_rows(device: &Device) {
    let (x, mut dx) = (device.alloc::<f32>(0).unwrap(), device.alloc::<f32>(0).unwrap());
    let (mut dweight, mut workspace) = (device.alloc::<f32>(16).unwrap(), device.alloc::<f32>(1).unwrap());
    let gradients = ParameterGradients {
        dweight: Some(dweight.view_mut(&[16]).unwrap()),
        dbias: None,
        workspace: Some(workspace.view_mut(&[1]).unwrap()),
    };
    let (rows, out) = (x.view(&[0, 16]).unwrap(), dx.view_mut(&[0, 16]).unwrap());
    rms_norm_backward(device, rows, rows, None, None, out, gradients, RmsNorm::default(), Stream::default())
        .expect("no rows are fine");
    assert_eq!(dweight.download().unwrap(), [0.0; 16]);
}
