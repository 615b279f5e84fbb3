//! Tests arguments that `quantize_fp8` rejects, and the error texts. A rejected call must write nothing, and
//! the device must still work.
use half::f16;
use oxiwarp::{Device, Dtype, E4m3, Fp8Scaling, Stream, View, ViewMut, quantize_fp8};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[("quantize_fp8::bad_input", refuses)];

fn refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 512]).unwrap();
    let (mut values, mut scales) = (device.alloc::<E4m3>(512).unwrap(), device.alloc::<f32>(512).unwrap());
    let mut half = device.alloc::<f16>(512).unwrap();
    let rows = x.view(&[2, 256]).unwrap();
    let call = |x: View, scaling, values: ViewMut, scales: ViewMut| {
        quantize_fp8(device, x, scaling, values, scales, Stream::default())
    };
    let [per_row, per_block] = [Fp8Scaling::PerRow, Fp8Scaling::PerBlock];
    let mut refuses = |x: View, scaling, values_shape: &[i64], scales_shape: &[i64], text: &str| {
        let (values, scales) =
            (values.view_mut(values_shape).unwrap(), scales.view_mut(scales_shape).unwrap());
        says(call(x, scaling, values, scales), text);
    };
    let wrong = "quantize_fp8: scales has shape [2, 2], expected [2, 1]";
    refuses(rows, per_row, &[2, 256], &[2, 2], wrong);
    refuses(rows, per_block, &[2, 256], &[2, 1], "quantize_fp8: scales has shape [2, 1], expected [2, 2]");
    refuses(rows, per_row, &[256, 2], &[2, 1], "quantize_fp8: values has shape [256, 2], expected [2, 256]");
    refuses(
        x.view(&[2, 0]).unwrap(),
        per_row,
        &[2, 0],
        &[2, 1],
        "x has shape [2, 0], expected a last dimension",
    );
    refuses(x.view(&[]).unwrap(), per_row, &[], &[], "x has shape [], expected at least one dimension");
    let columns = x.view_strided(0, &[256, 2], &[1, 256]).unwrap();
    refuses(columns, per_row, &[256, 2], &[256, 1], "its last dimension must be contiguous");

    let (to, other) = (values.view_mut(&[2, 256]).unwrap(), half.view_mut(&[2, 1]).unwrap());
    says(call(rows, per_row, to, other), "quantize_fp8: scales is f16, expected f32");
    let (to, other) = (half.view_mut(&[2, 256]).unwrap(), scales.view_mut(&[2, 1]).unwrap());
    says(call(rows, per_row, to, other), "values is f16, expected float8_e4m3fn or float8_e5m2");
    let bytes = values.view(&[2, 256]).unwrap();
    let (to, other) = (half.view_mut(&[2, 256]).unwrap(), scales.view_mut(&[2, 1]).unwrap());
    says(call(bytes, per_row, to, other), "quantize_fp8: x is float8_e4m3fn, expected f32, f16 or bf16");
    let (to, other) =
        (values.view_mut(&[2, 256]).unwrap(), scales.view_strided_mut(0, &[2, 2], &[1, 1]).unwrap());
    says(call(rows, per_block, to, other), "an output must not repeat its elements");
    let on_x = |dtype: Dtype, shape: [i64; 2]| {
        let ptr = x.as_ptr().cast_mut().cast();
        // SAFETY: this writable view covers memory of `x`, which is alive. The op rejects the overlap before
        // it accesses the memory.
        unsafe { ViewMut::from_raw(ptr, dtype, &shape, &[shape[1], 1]) }.unwrap()
    };
    let (values_on_x, scales_on_x) = (on_x(Dtype::E4m3, [2, 256]), on_x(Dtype::F32, [2, 1]));
    says(call(rows, per_row, values_on_x, scales.view_mut(&[2, 1]).unwrap()), "values overlaps x");
    says(call(rows, per_row, values.view_mut(&[2, 256]).unwrap(), scales_on_x), "scales overlaps x");
    assert!(scales.download().unwrap().iter().all(|scale| scale.is_nan()), "something was written");

    let (to, other) = (values.view_mut(&[2, 256]).unwrap(), scales.view_mut(&[2, 1]).unwrap());
    call(rows, per_row, to, other).expect("it still works");
}
