//! Calls of attention and of its gradients: FLUX.1's heads, a row for each batch and a column for each token.
use oxiwarp::{
    Attention, AttentionGradients, AttentionInputs, AttentionResult, Device, Result, Stream,
    attention_decode_workspace,
};

use super::{Operands, Width};

/// Columns of a head.
pub(super) const HEAD: i64 = 128;
/// Heads of FLUX.1.
const HEADS: i64 = 24;
/// Heads of the queries of a decoded token, and of its keys: Llama 8B's.
const QUERY_HEADS: i64 = 32;
const KV_HEADS: i64 = 8;

/// Elements of a batch of queries, keys or values.
pub(super) const TOKENS: Width = |tokens| tokens * (HEADS * HEAD) as usize;
/// Bytes of the logarithms of a batch's sums of exponentials.
pub(super) const LOGARITHMS: Width = |tokens| tokens * HEADS as usize * size_of::<f32>();
/// Elements of a decoded token's queries.
pub(super) const QUERY: Width = |_| (QUERY_HEADS * HEAD) as usize;
/// Elements of the keys, or values, that it sees.
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

/// A batch for each row, a key for each column.
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
