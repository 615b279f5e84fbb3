//! Tests arguments that `attention` and its gradient reject, and the error texts.
use half::{bf16, f16};
use oxiwarp::{
    Attention, AttentionGradients, AttentionInputs, AttentionResult, Device, Dtype, Error, Stream, View,
    ViewMut, attention, attention_backward, attention_decode, attention_decode_workspace,
};

use crate::support::errors::says;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention::bad_input", refuses),
    ("attention::bad_options", refuses_options),
    ("attention::bad_packed_input", refuses_packed),
    ("attention_backward::bad_input", backward_refuses),
    ("attention::overlap_with_packed_starts", overlaps_starts),
    ("attention_decode::overlap", decode_overlaps),
    ("attention_backward::overlap", backward_overlaps),
];

/// Makes inputs with an optional mask and an optional `cu_seqlens`, the starts of packed sequences. Packed
/// sequences are several sequences in one tensor.
fn inputs<'a>(
    tensors: [View<'a>; 3],
    mask: Option<View<'a>>,
    cu_seqlens: Option<[View<'a>; 2]>,
) -> AttentionInputs<'a> {
    let [q, k, v] = tensors;
    AttentionInputs { q, k, v, mask, cu_seqlens }
}

fn call(device: &Device, inputs: AttentionInputs, out: ViewMut, params: Attention) -> Result<(), Error> {
    attention(device, inputs, out, None, params, Stream::default())
}

fn refuses(device: &Device) {
    let (half, other) =
        (device.upload(&[f16::ONE; 4096]).unwrap(), device.upload(&[bf16::ONE; 4096]).unwrap());
    let single = device.upload(&[1.0_f32; 4096]).unwrap();
    let mut out = device.upload(&[f16::ONE; 4096]).unwrap();
    let x = |shape: &[i64]| half.view(shape).unwrap();
    let (q, k) = ([1, 2, 4, 64], [1, 3, 2, 64]);
    let mut says_of = |tensors: [View; 3], text: &str| {
        let out = out.view_mut(&q).unwrap();
        says(call(device, inputs(tensors, None, None), out, Attention::default()), text);
    };
    let f32s = single.view(&q).unwrap();
    says_of([f32s, x(&k), x(&k)], "attention: q is f32, expected f16 or bf16 (for f32 there is torch's own");
    says_of([x(&q), other.view(&k).unwrap(), x(&k)], "attention: k is bf16, expected f16");
    says_of([x(&q), x(&[1, 3, 3, 64]), x(&[1, 3, 3, 64])], "expected heads that divide the 4 of q");
    says_of([x(&[1, 2, 0, 64]), x(&k), x(&k)], "expected heads that divide the 0 of q");
    says_of([x(&q), x(&[1, 3, 2, 32]), x(&k)], "k has shape [1, 3, 2, 32], expected [1, 3, 2, 64]");
    says_of([x(&q), x(&k), x(&[1, 4, 2, 64])], "v has shape [1, 4, 2, 64], expected [1, 3, 2, 64]");
    says_of([x(&q), x(&k[1..]), x(&k)], "k has shape [3, 2, 64], expected four dimensions");
    let columns = half.view_strided(0, &q, &[512, 256, 64, 2]).unwrap();
    says_of([columns, x(&k), x(&k)], "its last dimension must be contiguous");
    let wide = [1, 1, 1, 257];
    says_of([x(&wide), x(&wide), x(&wide)], "q has shape [1, 1, 1, 257], expected heads of 1 to 256 columns");
}

fn refuses_options(device: &Device) {
    let (half, other) = (device.upload(&[f16::ONE; 512]).unwrap(), device.upload(&[bf16::ONE; 8]).unwrap());
    let truth = device.upload(&[1_u8; 64]).unwrap();
    let mut out = device.upload(&[f16::ONE; 512]).unwrap();
    let x = |shape: &[i64]| half.view(shape).unwrap();
    let (q, k) = ([1, 2, 4, 64], [1, 3, 2, 64]);
    let (good, plain) = ([x(&q), x(&k), x(&k)], Attention::default());
    let mut says_of = |mask: Option<View>, params: Attention, text: &str| {
        let out = out.view_mut(&q).unwrap();
        says(call(device, inputs(good, mask, None), out, params), text);
    };
    let mask = truth.view(&[2, 2]).unwrap();
    says_of(Some(mask), plain, "mask has shape [2, 2], expected one that broadcasts to [1, 4, 2, 3]");
    says_of(other.view(&[2, 3]).ok(), plain, "mask is bf16, expected bool, f32 or f16 (as q)");
    let scale = Attention { scale: Some(f32::NAN), ..plain };
    says_of(None, scale, "attention: scale is NaN, expected a finite number");
    let softcap = Attention { softcap: Some(-1.0), ..plain };
    says_of(None, softcap, "attention: softcap is -1, expected a finite number of 0 or more");
    let softcap = Attention { softcap: Some(1e4), ..plain };
    says_of(None, softcap, "attention: softcap is 10000, expected at most 1000");
    // SAFETY: this writable view covers the memory of input `q`, which is alive. The op rejects an output
    // that overlaps `q` before it writes anything.
    let same = unsafe {
        ViewMut::from_raw(half.view(&q).unwrap().ptr().cast_mut(), Dtype::F16, &q, &[512, 256, 64, 1])
    };
    says(call(device, inputs(good, None, None), same.unwrap(), plain), "attention: out overlaps q");
    let mut lse = device.alloc::<f32>(16).unwrap();
    let lse = Some(lse.view_mut(&[1, 2, 4]).unwrap());
    let result =
        attention(device, inputs(good, None, None), out.view_mut(&q).unwrap(), lse, plain, Stream::default());
    says(result, "attention: lse has shape [1, 2, 4], expected [1, 4, 2]");
}

fn refuses_packed(device: &Device) {
    let half = device.upload(&[f16::ONE; 1024]).unwrap();
    let (starts, long) = (device.upload(&[0_i32, 2]).unwrap(), device.upload(&[0_i64, 2]).unwrap());
    let mut out = device.upload(&[f16::ONE; 1024]).unwrap();
    let shape = [2, 2, 64];
    let x = half.view(&shape).unwrap();
    let mut says_of = |mask: Option<View>, starts: [View; 2], text: &str| {
        let out = out.view_mut(&shape).unwrap();
        says(call(device, inputs([x; 3], mask, Some(starts)), out, Attention::default()), text);
    };
    let (two, one) = (starts.view(&[2]).unwrap(), starts.view(&[1]).unwrap());
    says_of(None, [long.view(&[2]).unwrap(), two], "cu_seqlens_q is i64, expected i32");
    says_of(None, [two, one], "cu_seqlens_k has shape [1], expected [2]");
    says_of(None, [one, one], "cu_seqlens_q has shape [1], expected one sequence at least: two numbers");
    says_of(
        Some(half.view(&[2]).unwrap()),
        [two, two],
        "mask has shape [2], expected none for packed sequences",
    );
}

fn backward_refuses(device: &Device) {
    let (half, single) = (device.upload(&[f16::ONE; 256]).unwrap(), device.upload(&[0.0_f32; 4]).unwrap());
    let mut made: Vec<_> = (0..3).map(|_| device.upload(&[f16::ONE; 256]).unwrap()).collect();
    let mut workspace = device.alloc::<f32>(4).unwrap();
    let shape = [1, 2, 2, 64];
    let x = half.view(&shape).unwrap();
    let mut says_of = |dout: View, dq_shape: &[i64], rows: &[i64], text: &str| {
        let [dq, dk, dv] = &mut made[..] else { unreachable!("three were made") };
        let gradients = AttentionGradients {
            dq: dq.view_mut(dq_shape).unwrap(),
            dk: dk.view_mut(&shape).unwrap(),
            dv: dv.view_mut(&shape).unwrap(),
            workspace: workspace.view_mut(rows).unwrap(),
        };
        let result = AttentionResult { out: x, lse: single.view(&[1, 2, 2]).unwrap(), dout };
        let params = Attention::default();
        let inputs = inputs([x; 3], None, None);
        says(attention_backward(device, inputs, result, gradients, params, Stream::default()), text);
    };
    let short = half.view(&[1, 1, 2, 64]).unwrap();
    says_of(
        short,
        &shape,
        &[1, 2, 2],
        "attention_backward: dout has shape [1, 1, 2, 64], expected [1, 2, 2, 64]",
    );
    says_of(
        x,
        &[1, 2, 1, 64],
        &[1, 2, 2],
        "attention_backward: dq has shape [1, 2, 1, 64], expected [1, 2, 2, 64]",
    );
    says_of(x, &shape, &[1, 2, 1], "attention_backward: workspace has shape [1, 2, 1], expected [1, 2, 2]");
}

/// Makes a writable view of the memory of `other`. The tests pass it as an output and check that the op
/// rejects it.
fn same_memory<'a>(other: &View<'a>, dtype: Dtype, shape: &[i64]) -> ViewMut<'a> {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|dim| strides[dim - 1] = strides[dim] * shape[dim]);
    // SAFETY: the view covers memory of another tensor. The op rejects this view, so no kernel reads or
    // writes through it.
    unsafe { ViewMut::from_raw(other.ptr().cast_mut(), dtype, shape, &strides) }.unwrap()
}

fn overlaps_starts(device: &Device) {
    let half = device.upload(&[f16::ONE; 256]).unwrap();
    let starts: Vec<_> = (0..2).map(|_| device.upload(&[0_i32; 256]).unwrap()).collect();
    let (shape, x) = ([2, 2, 64], half.view(&[2, 2, 64]).unwrap());
    let mut lse = device.alloc::<f32>(4).unwrap();
    let packed = [0, 1].map(|at| starts[at].view(&[256]).unwrap());
    for (at, text) in ["attention: out overlaps cu_seqlens_q", "attention: out overlaps cu_seqlens_k"]
        .into_iter()
        .enumerate()
    {
        let (out, lse) = (same_memory(&packed[at], Dtype::F16, &shape), lse.view_mut(&[2, 2]).unwrap());
        let inputs = inputs([x; 3], None, Some(packed));
        says(attention(device, inputs, out, Some(lse), Attention::default(), Stream::default()), text);
    }
}

fn decode_overlaps(device: &Device) {
    let tensors: Vec<_> = (0..3).map(|_| device.upload(&[f16::ONE; 1024 * 8]).unwrap()).collect();
    let mut out = device.upload(&[f16::ONE; 8]).unwrap();
    let [q, k, v] = [(0, 1), (1, 1024), (2, 1024)].map(|(at, s)| tensors[at].view(&[1, s, 1, 8]).unwrap());
    for (other, name) in [(&q, "q"), (&k, "k"), (&v, "v")] {
        let (inputs, params) = (inputs([q, k, v], None, None), Attention::default());
        let numbers = attention_decode_workspace(&inputs, &params).unwrap();
        let workspace = Some(same_memory(other, Dtype::F32, &[numbers]));
        let out = out.view_mut(&[1, 1, 1, 8]).unwrap();
        let result = attention_decode(device, inputs, out, None, workspace, params, Stream::default());
        says(result, &format!("attention_decode: workspace overlaps {name}"));
    }
}

fn backward_overlaps(device: &Device) {
    let halves: Vec<_> = (0..8).map(|_| device.upload(&[f16::ONE; 256]).unwrap()).collect();
    let (lse, own) = (device.upload(&[0.0_f32; 4]).unwrap(), device.alloc::<f32>(4).unwrap());
    let starts: Vec<_> = (0..2).map(|_| device.upload(&[0_i32; 256]).unwrap()).collect();
    let (shape, rows) = ([2, 2, 64], [2, 2]);
    let half = |at: usize| halves[at].view(&shape).unwrap();
    let [q, k, v, out, dout] = [0, 1, 2, 3, 4].map(half);
    let (lse, own) = (lse.view(&rows).unwrap(), own.view(&rows).unwrap());
    let [q_starts, k_starts] = [0, 1].map(|at| starts[at].view(&[256]).unwrap());
    let says_of = |workspace: &View, dq: &View, text: &str| {
        let gradients = AttentionGradients {
            dq: same_memory(dq, Dtype::F16, &shape),
            dk: same_memory(&half(6), Dtype::F16, &shape),
            dv: same_memory(&half(7), Dtype::F16, &shape),
            workspace: same_memory(workspace, Dtype::F32, &rows),
        };
        let inputs = inputs([q, k, v], None, Some([q_starts, k_starts]));
        let result = AttentionResult { out, lse, dout };
        let params = Attention::default();
        says(attention_backward(device, inputs, result, gradients, params, Stream::default()), text);
    };
    for (other, name) in [
        (&q, "q"),
        (&k, "k"),
        (&v, "v"),
        (&out, "out"),
        (&lse, "lse"),
        (&dout, "dout"),
        (&q_starts, "cu_seqlens_q"),
        (&k_starts, "cu_seqlens_k"),
    ] {
        says_of(other, &half(5), &format!("attention_backward: workspace overlaps {name}"));
    }
    says_of(&own, &q_starts, "attention_backward: dq overlaps cu_seqlens_q");
    says_of(&own, &k_starts, "attention_backward: dq overlaps cu_seqlens_k");
}
