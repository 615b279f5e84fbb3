//! Tests `attention` of packed sequences (several sequences in one tensor, separated by `cu_seqlens`). Each
//! sequence is compared with its own f64 reference.
use half::bf16;
use oxiwarp::{Attention, AttentionInputs, Device, HeadsOrder, Stream, attention};
use oxiwarp_tests::case::seed;
use oxiwarp_tests::tensor::{random, values, wide};

use crate::support::attention_case::row_is_close;
use crate::support::test::Test;

pub const TESTS: &[Test] = &[
    ("attention::packed_sequences", packed),
    ("attention::packed_heads_first", packed_heads_first),
    ("attention::packed_starts_that_are_wrong", wrong_starts),
];

/// `[queries, keys]` of each sequence. Some sequences fill several tiles or exactly one tile. Others have no
/// queries, no keys, or only one query.
const LENGTHS: &[[usize; 2]] = &[[130, 70], [0, 9], [17, 0], [1, 140], [5, 5], [0, 0], [128, 64], [3, 2]];
/// Number of queries and keys after the last sequence. These queries and keys are padding that belongs to no
/// sequence.
const REST: [usize; 2] = [150, 80];
const HEADS: usize = 2;
const DIM: usize = 64;

fn packed(device: &Device) {
    check(device, HeadsOrder::TokensFirst, false);
    check(device, HeadsOrder::TokensFirst, true);
}

fn packed_heads_first(device: &Device) {
    check(device, HeadsOrder::HeadsFirst, true);
}

fn starts(side: usize) -> Vec<i32> {
    let ends = LENGTHS.iter().scan(0, |end, length| {
        *end += length[side] as i32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

fn check(device: &Device, order: HeadsOrder, causal: bool) {
    let (seed, [q_starts, k_starts]) = (seed(), [starts(0), starts(1)]);
    let end = |starts: &[i32]| *starts.last().expect("one") as usize;
    let (queries, keys) = (end(&q_starts) + REST[0], end(&k_starts) + REST[1]);
    let mut rng = random(seed);
    let q: Vec<bf16> = values(&mut rng, queries * HEADS * DIM);
    let [k, v]: [Vec<bf16>; 2] = [(); 2].map(|()| values(&mut rng, keys * DIM));
    let buffers = [&q, &k, &v].map(|values| device.upload(values).expect("memory"));
    let starts = [&q_starts, &k_starts].map(|starts| device.upload(starts).expect("memory"));
    let mut out = device.upload(&vec![bf16::NAN; q.len()]).expect("memory");
    let mut lse = device.upload(&vec![f32::NAN; HEADS * queries]).expect("memory");
    let (t, s, h, d) = (queries as i64, keys as i64, HEADS as i64, DIM as i64);
    let (q_shape, k_shape) = match order {
        HeadsOrder::TokensFirst => ([t, h, d], [s, 1, d]),
        HeadsOrder::HeadsFirst => ([h, t, d], [1, s, d]),
    };
    let number = starts[0].len() as i64;
    let inputs = AttentionInputs {
        q: buffers[0].view(&q_shape).expect("dense"),
        k: buffers[1].view(&k_shape).expect("dense"),
        v: buffers[2].view(&k_shape).expect("dense"),
        mask: None,
        cu_seqlens: Some([
            starts[0].view(&[number]).expect("dense"),
            starts[1].view(&[number]).expect("dense"),
        ]),
    };
    let params = Attention { order, causal, ..Attention::default() };
    let (out_view, lse_view) =
        (out.view_mut(&q_shape).expect("dense"), lse.view_mut(&[h, t]).expect("dense"));
    attention(device, inputs, out_view, Some(lse_view), params, Stream::default()).expect("a launch");
    let (out, lse) = (out.download().expect("ran"), lse.download().expect("ran"));
    let [q, k, v] = [wide(&q), wide(&k), wide(&v)];
    let line = |token: usize, head: usize| match order {
        HeadsOrder::TokensFirst => (token * HEADS + head) * DIM,
        HeadsOrder::HeadsFirst => (head * queries + token) * DIM,
    };
    for (sequence, &[length, keys]) in LENGTHS.iter().enumerate() {
        let (first, key) = (q_starts[sequence] as usize, k_starts[sequence] as usize);
        for (i, head) in (0..length).flat_map(|i| (0..HEADS).map(move |head| (i, head))) {
            let row = &q[line(first + i, head)..][..DIM];
            let score = |j: usize| {
                let product: f64 = row.iter().zip(&k[(key + j) * DIM..]).map(|(q, k)| q * k).sum();
                let hidden = causal && j + length > i + keys;
                if hidden { f64::NEG_INFINITY } else { product / (DIM as f64).sqrt() }
            };
            let scores: Vec<f64> = (0..keys).map(score).collect();
            let context =
                format!("seed {seed}, sequence {sequence}, query {i}, head {head}, causal {causal}");
            let got = &out[line(first + i, head)..][..DIM];
            let lse = f64::from(lse[head * queries + first + i]);
            row_is_close(got, &scores, |j| &v[(key + j) * DIM..][..DIM], lse, &context);
        }
    }
    for (i, head) in (queries - REST[0]..queries).flat_map(|i| (0..HEADS).map(move |head| (i, head))) {
        let got = &out[line(i, head)..][..DIM];
        assert!(got.iter().all(|x| x.to_bits() == 0), "seed {seed}, query {i}, in no sequence: {got:?}");
        let lse = lse[head * queries + i];
        assert_eq!(lse, f32::NEG_INFINITY, "seed {seed}, query {i}, in no sequence");
    }
}

/// Tests invalid `cu_seqlens` (the starts of the sequences). The first start must be 0, and no start may be
/// smaller than the one before it or larger than the number of rows. With decreasing starts, two sequences
/// would share rows.
///
/// The CPU executor rejects invalid starts. On a GPU, the host does not read the starts and cannot reject
/// them. There, the test only runs with valid starts.
fn wrong_starts(device: &Device) {
    const TOKENS: i64 = 64;
    let mut rng = random(seed());
    let x: Vec<bf16> = values(&mut rng, TOKENS as usize * 16);
    let x = device.upload(&x).expect("memory");
    let run = |starts: &[i32]| {
        let starts = device.upload(starts).expect("memory");
        let mut out = device.upload(&vec![bf16::NAN; x.len()]).expect("memory");
        let view = || x.view(&[TOKENS, 1, 16]).expect("dense");
        let of_starts = || starts.view(&[starts.len() as i64]).expect("dense");
        let cu_seqlens = Some([of_starts(), of_starts()]);
        let inputs = AttentionInputs { q: view(), k: view(), v: view(), mask: None, cu_seqlens };
        let out_view = out.view_mut(&[TOKENS, 1, 16]).expect("dense");
        attention(device, inputs, out_view, None, Attention::default(), Stream::default())?;
        out.download()
    };
    run(&[0, 64]).expect("right");
    if device.arch().is_some() {
        return;
    }
    let wrong = [
        (vec![5, 64], "attention: cu_seqlens_q[0] is 5, expected 0"),
        (vec![-5, 64], "attention: cu_seqlens_q[0] is -5, expected 0"),
        (vec![0, 60, 0, 60], "attention: cu_seqlens_q[2] is 0, expected 60 to 64"),
        (vec![0, 65], "attention: cu_seqlens_q[1] is 65, expected 0 to 64"),
    ];
    for (starts, message) in wrong {
        assert_eq!(run(&starts).expect_err(message).to_string(), message);
    }
}
