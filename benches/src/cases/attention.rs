//! Benchmark calls of attention and its gradients, with as many heads as FLUX.1 has, and of decoding
//! attention. A benchmark gives its tensor size as `rows` and `cols`. Here, `rows` is the batch size, and
//! `cols` is the number of tokens.
use oxiwarp::{
    Attention, AttentionGradients, AttentionInputs, AttentionResult, Device, Result, Stream,
    attention_decode_workspace,
};

use super::{Operands, Width};

/// Head dimension.
pub(super) const HEAD: i64 = 128;
/// Number of heads of FLUX.1.
const HEADS: i64 = 24;
/// Query heads and key heads for decoding, as in Llama 8B.
const QUERY_HEADS: i64 = 32;
const KV_HEADS: i64 = 8;

/// Elements per batch of queries, keys or values.
pub(super) const TOKENS: Width = |tokens| tokens * (HEADS * HEAD) as usize;
/// Bytes per batch of the log-sum-exp values.
pub(super) const LOGARITHMS: Width = |tokens| tokens * HEADS as usize * size_of::<f32>();
/// Number of query elements of one decoded token.
pub(super) const QUERY: Width = |_| (QUERY_HEADS * HEAD) as usize;
/// Number of elements of the key tensor per sequence, for attention of one new token to `keys` earlier
/// tokens. The value tensor has the same number of elements.
pub(super) const KEYS: Width = |keys| keys * (KV_HEADS * HEAD) as usize;

pub(super) fn attention(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [out, ..]) = ([t.rows, t.cols, HEADS, HEAD], t.y);
    let [q, k, v] = [t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&shape)?];
    let inputs = AttentionInputs { q, k, v, mask: None, cu_seqlens: None };
    oxiwarp::attention(device, inputs, out.view_mut(&shape)?, None, Attention::default(), stream)
}

pub(super) fn attention_backward(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (shape, [dq, dk, dv]) = ([t.rows, t.cols, HEADS, HEAD], t.y);
    let sums = [t.rows, HEADS, t.cols];
    let [q, k, v] = [t.x[0].view(&shape)?, t.x[1].view(&shape)?, t.x[2].view(&shape)?];
    let inputs = AttentionInputs { q, k, v, mask: None, cu_seqlens: None };
    let result = AttentionResult {
        out: t.x[3].view(&shape)?,
        dout: t.x[4].view(&shape)?,
        lse: t.logarithms.view(&sums)?,
    };
    let gradients = AttentionGradients {
        dq: dq.view_mut(&shape)?,
        dk: dk.view_mut(&shape)?,
        dv: dv.view_mut(&shape)?,
        workspace: t.workspace.view_mut(&sums)?,
    };
    oxiwarp::attention_backward(device, inputs, result, gradients, Attention::default(), stream)
}

/// Runs attention for one new query token per sequence. In the operands `t`, `rows` is the number of
/// sequences, and `cols` is the number of keys per sequence.
pub(super) fn attention_decode(device: &Device, t: Operands, stream: Stream) -> Result<()> {
    let (q, kv, [out, ..]) = ([t.rows, 1, QUERY_HEADS, HEAD], [t.rows, t.cols, KV_HEADS, HEAD], t.y);
    let inputs = AttentionInputs {
        q: t.x[0].view(&q)?,
        k: t.x[1].view(&kv)?,
        v: t.x[2].view(&kv)?,
        mask: None,
        cu_seqlens: None,
    };
    let params = Attention::default();
    let needed = attention_decode_workspace(&inputs, &params).unwrap_or(0);
    let workspace = Some(t.workspace.view_mut(&[needed])?);
    oxiwarp::attention_decode(device, inputs, out.view_mut(&q)?, None, workspace, params, stream)
}
