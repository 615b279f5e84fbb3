//! Tests arguments that the ops reject, and the error texts. A rejected call must write nothing, and the
//! device must still work.
use half::{bf16, f16};
use oxiwarp::{
    Activation, Device, Error, LaunchOverride, Overridable as _, RmsNorm, Roundings, Rung, Stream, View,
    ViewMut, activation, add_rms_norm, rms_norm, rung, softmax,
};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("rms_norm::bad_input", rms_norm_refuses),
    ("add_rms_norm::bad_input", add_refuses),
    ("add_rms_norm::two_layouts", two_layouts),
    ("rungs::too_small", small_rung),
    ("buffer::bad_input", buffer_refuses),
];

fn rms_norm_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let (half, brain) = (device.upload(&[f16::ONE; 64]).unwrap(), device.upload(&[bf16::ONE; 64]).unwrap());
    let mut y = device.alloc::<f32>(64).unwrap();
    let params = RmsNorm::default();
    {
        let mut refuses = |x: View, weight: Option<View>, y_shape: &[i64], params: RmsNorm, text: &str| {
            let y = y.view_mut(y_shape).unwrap();
            says(rms_norm(device, x, weight, y, params, Stream::default()), text);
        };
        let x = |shape: &[i64]| x.view(shape).unwrap();
        refuses(x(&[4, 16]), None, &[4, 8], params, "rms_norm: out has shape [4, 8], expected [4, 16]");
        refuses(brain.view(&[4, 16]).unwrap(), None, &[4, 16], params, "rms_norm: out is f32, expected bf16");
        refuses(
            x(&[4, 0]),
            None,
            &[4, 0],
            params,
            "rms_norm: x has shape [4, 0], expected a last dimension between 1",
        );
        refuses(x(&[]), None, &[], params, "rms_norm: x has shape [], expected at least one dimension");
        let weight = half.view(&[16]).unwrap();
        refuses(x(&[4, 16]), Some(weight), &[4, 16], params, "rms_norm: weight is f16, expected f32");
        refuses(x(&[4, 16]), Some(x(&[8])), &[4, 16], params, "weight has shape [8], expected [16]");
        refuses(x(&[4, 16]), Some(x(&[1, 16])), &[4, 16], params, "weight has shape [1, 16], expected [16]");
        for eps in [-1e-6, f32::NAN, f32::INFINITY] {
            let params = RmsNorm { eps, ..params };
            refuses(x(&[4, 16]), None, &[4, 16], params, "rms_norm: eps is");
        }
        for (weight_offset, got) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let params = RmsNorm { weight_offset, ..params };
            let text = format!("rms_norm: weight_offset is {got}, expected a finite number");
            refuses(x(&[4, 16]), None, &[4, 16], params, &text);
        }
    }
    let columns = x.view_strided(0, &[16, 4], &[1, 16]).unwrap();
    let out = y.view_mut(&[16, 4]).unwrap();
    says(
        rms_norm(device, columns, None, out, params, Stream::default()),
        "its last dimension must be contiguous",
    );
    let three = x.view_strided(0, &[2, 2, 2, 2], &[3, 25, 9, 1]).unwrap();
    let out = y.view_mut(&[2, 2, 2, 2]).unwrap();
    says(
        rms_norm(device, three, None, out, params, Stream::default()),
        "two strides must reach all its rows",
    );
    for strides in [[0, 1], [8, 1]] {
        let (repeated, input) =
            (y.view_strided_mut(0, &[4, 16], &strides).unwrap(), x.view(&[4, 16]).unwrap());
        let result = rms_norm(device, input, None, repeated, params, Stream::default());
        says(result, "an output must not repeat its elements");
    }
    overlap(device, params);
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");

    let out = y.view_mut(&[4, 16]).unwrap();
    rms_norm(device, x.view(&[4, 16]).unwrap(), None, out, params, Stream::default())
        .expect("it still works");
}

/// Tests that the op rejects an output that overlaps an input. The op accepts an output that is next to the
/// input in the same buffer.
fn overlap(device: &Device, params: RmsNorm) {
    let memory = device.upload(&[2.0_f32; 128]).unwrap();
    let raw = memory.view(&[1]).unwrap().ptr().cast_mut();
    let at = |offset: usize, shape: &[i64], strides: &[i64]| {
        let ptr = raw.cast::<f32>().wrapping_add(offset).cast();
        // SAFETY: both views cover memory of the buffer, which is alive. If the two views overlap, the op
        // rejects them before it accesses the memory.
        unsafe {
            let x = View::from_raw(ptr, oxiwarp::Dtype::F32, shape, strides).unwrap();
            (x, ViewMut::from_raw(ptr, oxiwarp::Dtype::F32, shape, strides).unwrap())
        }
    };
    let (shape, dense, wide) = ([4, 16], [16, 1], [32, 1]);
    let run = |x: View, y: ViewMut| rms_norm(device, x, None, y, params, Stream::default());
    says(run(at(0, &shape, &dense).0, at(0, &shape, &dense).1), "rms_norm: out overlaps x");
    says(run(at(0, &shape, &dense).0, at(32, &shape, &dense).1), "rms_norm: out overlaps x");
    says(run(at(0, &shape, &wide).0, at(8, &shape, &wide).1), "rms_norm: out overlaps x");
    // In torch, a dimension of size 1 may have any stride.
    let far = [1 << 62, 1];
    says(run(at(0, &[1, 4], &far).0, at(2, &[1, 4], &far).1), "rms_norm: out overlaps x");
    run(at(0, &shape, &wide).0, at(16, &shape, &wide).1).expect("halves of a row do not overlap");
    let row = &memory.download().unwrap()[..32];
    assert_eq!(row[..16], [2.0; 16], "x is as it was");
    assert!(row[16..].iter().all(|y| (y - 1.0).abs() < 1e-5), "y is x, normalised");
}

fn add_refuses(device: &Device) {
    let (x, short) = (device.upload(&[1.0_f32; 64]).unwrap(), device.upload(&[1.0_f32; 32]).unwrap());
    let (mut y, mut sum) = (device.alloc::<f32>(64).unwrap(), device.alloc::<f32>(64).unwrap());
    let shape = [4, 16];
    let mut run = |residual: View, sum: ViewMut| {
        let (x, y) = (x.view(&shape).unwrap(), y.view_mut(&shape).unwrap());
        add_rms_norm(device, x, residual, None, y, sum, RmsNorm::default(), Stream::default())
    };
    let text = "add_rms_norm: residual has shape [2, 16], expected [4, 16]";
    says(run(short.view(&[2, 16]).unwrap(), sum.view_mut(&shape).unwrap()), text);
    assert!(sum.download().unwrap().iter().all(|sum| sum.is_nan()), "something was written");
    run(x.view(&shape).unwrap(), sum.view_mut(&shape).unwrap()).expect("it still works");
    assert!(y.download().unwrap().iter().all(|y| !y.is_nan()));
}

/// Tests two tensors whose rows are evenly spaced only within groups, so that each tensor needs two strides.
/// The first has 12 groups of 5 rows, and the second has 4 groups of 15 rows. The op supports two such
/// tensors only if their groups have the same size.
fn two_layouts(device: &Device) {
    let memory = device.upload(&[1.0_f32; 1_000]).unwrap();
    let (mut y, mut sum) = (device.alloc::<f32>(1_000).unwrap(), device.alloc::<f32>(480).unwrap());
    let (shape, twelve, four) = ([4, 3, 5, 8], [240, 80, 8, 1], [240, 40, 8, 1]);
    let input = |strides: &[i64]| memory.view_strided(0, &shape, strides).unwrap();
    let (params, stream) = (RmsNorm::default(), Stream::default());
    let text = "of shape [4, 3, 5, 8] have strides [240, 40, 8, 1] and [240, 80, 8, 1]: two strides must reach the rows \
                of both in the same groups: make one of them contiguous in this shape";
    let mut add = |strides: [&[i64]; 2]| {
        let (y, sum) = (y.view_mut(&shape).unwrap(), sum.view_mut(&shape).unwrap());
        add_rms_norm(device, input(strides[0]), input(strides[1]), None, y, sum, params, stream)
    };
    says(add([&twelve, &four]), &format!("add_rms_norm: residual and x {text}"));
    for strides in [twelve, four] {
        add([&strides, &strides]).expect("one way for both");
        add([&strides, &[120, 40, 8, 1]]).expect("a contiguous one has them all");
    }
    let out = y.view_strided_mut(0, &shape, &four).unwrap();
    says(rms_norm(device, input(&twelve), None, out, params, stream), &format!("rms_norm: out and x {text}"));
    let out = y.view_strided_mut(0, &shape, &four).unwrap();
    let gelu = activation(device, input(&twelve), None, out, Activation::Gelu, Roundings::Exact, stream);
    says(gelu, &format!("activation: out and x {text}"));
}

/// Tests rungs (launch configurations) that an op rejects. With the first two, a kernel would leave the end
/// of the row unwritten, or would read 16 bytes at an unaligned address.
fn small_rung(device: &Device) {
    let (x, mut y) = (device.upload(&[1.0_f32; 64]).unwrap(), device.alloc::<f32>(64).unwrap());
    for (shape, in_registers) in [([1, 64], 2), ([9, 7], 2)] {
        let (x, y) = (x.view(&shape).unwrap(), y.view_mut(&shape).unwrap());
        let small = device.with_override(LaunchOverride {
            rung: Some(rung(0, in_registers, 4, 64)),
            ..LaunchOverride::default()
        });
        let result = rms_norm(&small, x, None, y, RmsNorm::default(), Stream::default());
        says(result, "rms_norm: rung is 2, expected packs that hold an aligned row");
    }
    // Some of these rungs (launch configurations) have 0 or more than 1024 threads per block. In others, the
    // number of threads per row is neither a power of two nor a multiple of the warp size.
    for (team, teams) in [(64, 0), (48, 2), (3, 32), (2_048, 1), (0, 64)] {
        let made = Rung { threads_per_row: team, rows_per_block: teams, ..rung(u32::MAX, 0, 64, 64) };
        let device = device.with_override(LaunchOverride { rung: Some(made), ..LaunchOverride::default() });
        let (x, y) = (x.view(&[1, 64]).unwrap(), y.view_mut(&[1, 64]).unwrap());
        says(softmax(&device, x, y, false, Stream::default()), "softmax: rung is 0, expected");
    }
    assert!(y.download().unwrap().iter().all(|y| y.is_nan()), "something was written");
}

/// Tests views that a buffer rejects. In some, products or sums of sizes and strides do not fit into 64 bits.
/// Others end outside the buffer.
fn buffer_refuses(device: &Device) {
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let outside =
        |result: Result<View, Error>| says(result.map(|_| ()), "expected a tensor inside the buffer");
    outside(x.view_strided(0, &[3, 16], &[i64::MAX, 1]));
    outside(x.view_strided(usize::MAX, &[1, 1], &[1, 1]));
    // The index of the last element is 2^128.
    let [max, strides] = [
        [i64::MAX, i64::MAX, i64::MAX, i64::MAX, 13, 5],
        [i64::MAX, i64::MAX, i64::MAX, i64::MAX, i64::MAX, 1],
    ];
    outside(x.view_strided(0, &max, &strides));
    outside(x.view_strided(0, &[2, 2], &[-1, 1]));
    outside(x.view(&[1 << 34, 1 << 30]));
    outside(x.view(&[65]));
    x.view(&[64]).expect("all of it");
    // One size is 0, so a view of this shape has no elements. The buffer still rejects it, because the
    // product of the other sizes overflows.
    let empty = device.reserve::<f32>(8).unwrap();
    for shape in [[0, 1 << 40, 1 << 40], [1 << 40, 0, 1 << 40]] {
        says(empty.view(&shape).map(|_| ()), "expected at most 8 sizes of less than 2^63 elements");
    }
    assert!(matches!(device.reserve::<f32>(1 << 62), Err(Error::OutOfMemory { .. })));
}
