//! Compares `attention_decode` with f64 results, for few queries and many keys. The op splits the keys among
//! blocks. In some tests all splits are full, and in others the last split has fewer keys.
use half::{bf16, f16};
use oxiwarp::{
    Attention, AttentionInputs, Device, Result, Stream, ViewMut, attention_decode, attention_decode_workspace,
};

use crate::support::attention_case::{AttentionCase, check_by};
use crate::support::errors::says;
use crate::support::heads::Layout;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention_decode::sizes", sizes),
    ("attention_decode::what_is_seen", what_is_seen),
    ("attention_decode::layouts", layouts),
    ("attention_decode::other_calls", other_calls),
    ("attention_decode::bad_input", refuses),
];

/// Runs the op with a workspace of the required size. The workspace contains NaN, so that a read of an
/// unwritten element gives a wrong result.
fn run(
    device: &Device,
    inputs: AttentionInputs,
    out: ViewMut,
    lse: Option<ViewMut>,
    params: Attention,
) -> Result<()> {
    let numbers = attention_decode_workspace(&inputs, &params).expect("a call for it");
    let mut workspace = device.upload(&vec![f32::NAN; numbers as usize])?;
    let workspace = Some(workspace.view_mut(&[numbers])?);
    attention_decode(device, inputs, out, lse, workspace, params, Stream::default())
}

fn both(device: &Device, case: AttentionCase) {
    check_by::<f16>(device, &case, run);
    check_by::<bf16>(device, &case, run);
}

fn sizes(device: &Device) {
    // A split has 512 keys. A tile has 16 rows: one row per query and query head that use the same key head.
    // The numbers of keys are two whole splits, or more. The numbers of rows are less than a tile, more than
    // one tile, or two tiles.
    for (sq, sk, heads, kv_heads) in [(1, 1024, 2, 2), (1, 1025, 4, 1), (3, 1100, 6, 1), (2, 1600, 16, 1)] {
        both(device, AttentionCase::of([2, sq, sk, heads, kv_heads, 64]));
    }
    for d in [8, 72, 128, 256] {
        both(device, AttentionCase::of([1, 1, 1030, 4, 2, d]));
    }
    both(device, AttentionCase::of([1, 2, 1030, 2, 1, 64]).sharp(30.0));
}

fn what_is_seen(device: &Device) {
    both(device, AttentionCase::of([1, 5, 1100, 4, 2, 64]).causal());
    // Some splits (parts of 512 keys) contain no key to which a query attends.
    both(device, AttentionCase::of([1, 3, 1700, 2, 1, 64]).window(Some(100), None).causal());
    both(device, AttentionCase::of([1, 2, 1100, 2, 1, 64]).window(Some(20), Some(3)));
}

fn layouts(device: &Device) {
    for layout in [Layout::HeadsFirst, Layout::At { offset: 1, gap: 0 }] {
        both(device, AttentionCase::of([2, 1, 1050, 2, 2, 64]).laid_out(layout));
    }
}

fn other_calls(device: &Device) {
    let half = device.upload(&[f16::ONE; 2048 * 8]).unwrap();
    let wanted = |queries: i64, keys: i64, params: Attention| {
        let (q, k) = (half.view(&[1, queries, 1, 8]).unwrap(), half.view(&[1, keys, 1, 8]).unwrap());
        attention_decode_workspace(&AttentionInputs { q, k, v: k, mask: None, cu_seqlens: None }, &params)
    };
    let plain = Attention::default();
    assert_eq!(wanted(1, 1024, plain), Some(2 * 16 * 9), "two parts, with a number for each row");
    assert_eq!(wanted(1, 1023, plain), None, "few keys");
    assert_eq!(wanted(33, 1024, plain), None, "many queries");
    assert_eq!(wanted(1, 1024, Attention { softcap: Some(2.0), ..plain }), None);
    assert_eq!(wanted(1, 1024, Attention { scale: Some(-1.0), ..plain }), None);
}

fn refuses(device: &Device) {
    let half = device.upload(&[f16::ONE; 1024 * 8]).unwrap();
    let mut out = device.upload(&[f16::ONE; 8]).unwrap();
    let mut workspace = device.alloc::<f32>(64).unwrap();
    let (q, k) = (half.view(&[1, 1, 1, 8]).unwrap(), half.view(&[1, 1024, 1, 8]).unwrap());
    let inputs = AttentionInputs { q, k, v: k, mask: None, cu_seqlens: None };
    let (out, workspace) = (out.view_mut(&[1, 1, 1, 8]).unwrap(), workspace.view_mut(&[64]).ok());
    let result =
        attention_decode(device, inputs, out, None, workspace, Attention::default(), Stream::default());
    says(result, "attention_decode: workspace has shape [64], expected [288]");
}
