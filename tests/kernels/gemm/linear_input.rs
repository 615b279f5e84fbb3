//! Tests arguments that `linear` rejects, and empty results.
use half::{bf16, f16};
use oxiwarp::{Device, Stream, View, ViewMut, linear};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("linear::bad_shapes", refuses_shapes),
    ("linear::bad_dtypes", refuses_dtypes),
    ("linear::bad_strides", refuses_strides),
    ("linear::overlap", refuses_overlap),
    ("linear::empty", empty),
];

/// Checks that the call with these tensors has an error whose message contains `text`.
#[track_caller]
fn says_of(device: &Device, [x, weight]: [View; 2], bias: Option<View>, y: ViewMut, text: &str) {
    says(linear(device, x, weight, bias, y, Stream::default()), text);
}

fn refuses_shapes(device: &Device) {
    let half = device.upload(&[f16::ONE; 1024]).unwrap();
    let mut out = device.upload(&[f16::ONE; 1024]).unwrap();
    let x = |shape: &[i64]| half.view(shape).unwrap();
    let mut wrong = |tensors: [View; 2], bias: Option<View>, y: &[i64], text: &str| {
        says_of(device, tensors, bias, out.view_mut(y).unwrap(), text);
    };
    let (good_x, good_w) = (x(&[2, 3, 16]), x(&[24, 16]));
    let multiple = "linear: x has shape [4, 12], expected [..., K] with K a positive multiple of 8";
    wrong([x(&[4, 12]), x(&[8, 12])], None, &[4, 8], multiple);
    wrong([x(&[4, 0]), x(&[8, 0])], None, &[4, 8], "expected [..., K] with K a positive multiple of 8");
    wrong([x(&[]), x(&[8, 1])], None, &[8], "expected [..., K] with K a positive multiple of 8");
    wrong([good_x, x(&[24])], None, &[2, 3, 24], "linear: weight has shape [24], expected [N, 16]");
    wrong([good_x, x(&[24, 8])], None, &[2, 3, 24], "weight has shape [24, 8], expected [24, 16]");
    wrong([good_x, x(&[4, 16])], None, &[2, 3, 4], "expected [N, 16] with N a multiple of 8");
    wrong([good_x, good_w], None, &[2, 3, 16], "out has shape [2, 3, 16], expected [2, 3, 24]");
    wrong([good_x, good_w], None, &[6, 24], "out has shape [6, 24], expected [2, 3, 24]");
    wrong([good_x, good_w], Some(x(&[16])), &[2, 3, 24], "bias has shape [16], expected [24]");
}

fn refuses_dtypes(device: &Device) {
    let half = device.upload(&[f16::ONE; 512]).unwrap();
    let other = device.upload(&[bf16::ONE; 512]).unwrap();
    let single = device.upload(&[1.0_f32; 512]).unwrap();
    let mut out = device.upload(&[f16::ONE; 512]).unwrap();
    let mut other_out = device.upload(&[bf16::ONE; 512]).unwrap();
    let mut single_out = device.upload(&[1.0_f32; 512]).unwrap();
    let (x, w, y) = (half.view(&[4, 16]).unwrap(), half.view(&[8, 16]).unwrap(), [4, 8]);
    let (x32, w32) = (single.view(&[4, 16]).unwrap(), single.view(&[8, 16]).unwrap());
    let text = "linear: x is f32, expected f16 or bf16";
    says_of(device, [x32, w32], None, single_out.view_mut(&y).unwrap(), text);
    let text = "linear: weight is bf16, expected f16";
    says_of(device, [x, other.view(&[8, 16]).unwrap()], None, out.view_mut(&y).unwrap(), text);
    let text = "linear: bias is f32, expected f16";
    says_of(device, [x, w], single.view(&[8]).ok(), out.view_mut(&y).unwrap(), text);
    let text = "linear: out is bf16, expected f16";
    says_of(device, [x, w], None, other_out.view_mut(&y).unwrap(), text);
}

fn refuses_strides(device: &Device) {
    let half = device.upload(&[f16::ONE; 2048]).unwrap();
    let mut out = device.upload(&[f16::ONE; 2048]).unwrap();
    let (x, w) = (half.view(&[4, 16]).unwrap(), half.view(&[8, 16]).unwrap());
    let columns = half.view_strided(0, &[4, 16], &[32, 2]).unwrap();
    let contiguous = "its last dimension must be contiguous";
    says_of(device, [columns, w], None, out.view_mut(&[4, 8]).unwrap(), contiguous);
    let weight = half.view_strided(0, &[8, 16], &[1, 8]).unwrap();
    says_of(device, [x, weight], None, out.view_mut(&[4, 8]).unwrap(), contiguous);
    let bias = half.view_strided(0, &[8], &[2]).unwrap();
    says_of(device, [x, w], Some(bias), out.view_mut(&[4, 8]).unwrap(), "it must be contiguous");
    let y = out.view_strided_mut(0, &[4, 8], &[1, 4]).unwrap();
    says_of(device, [x, w], None, y, contiguous);
    let rows = half.view_strided(0, &[2, 2, 16], &[100, 16, 1]).unwrap();
    let text = "its rows must have one distance";
    says_of(device, [rows, w], None, out.view_mut(&[2, 2, 8]).unwrap(), text);
}

fn refuses_overlap(device: &Device) {
    let half = device.upload(&[f16::ONE; 512]).unwrap();
    let (x, w) = (half.view(&[4, 16]).unwrap(), half.view_strided(256, &[8, 16], &[16, 1]).unwrap());
    // SAFETY: this writable view covers the memory of input `x`, which is alive. The op rejects an output
    // that overlaps an input, so nothing writes through it.
    let y = unsafe { ViewMut::from_raw(x.ptr().cast_mut(), x.dtype(), &[4, 8], &[8, 1]) }.unwrap();
    says_of(device, [x, w], None, y, "out");
}

fn empty(device: &Device) {
    let half = device.upload(&[f16::ONE; 256]).unwrap();
    let mut out = device.upload(&[f16::ONE; 8]).unwrap();
    let nothing = |shape: &[i64]| half.view(shape).unwrap();
    for (x, w, y) in [([0, 16], [8, 16], [0, 8]), ([4, 16], [0, 16], [4, 0])] {
        let y = out.view_mut(&y).unwrap();
        linear(device, nothing(&x), nothing(&w), None, y, Stream::default()).expect("nothing to do");
    }
    assert!(out.download().unwrap().iter().all(|y| *y == f16::ONE), "an empty call wrote");
}
