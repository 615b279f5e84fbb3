//! The checked arguments of an attention call. The host code of all attention kernels uses this type.
use kernels_gpu::layout::heads::Heads;

use super::attention::{Attention, AttentionInputs, MaskLayout};
use super::attention_checks as checks;
use crate::operands::numbers::finite;
use crate::{Device, Dtype, Error, Result, View};

/// The checked arguments of one attention call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionLayout {
    pub q: Heads,
    pub k: Heads,
    pub v: Heads,
    pub out: Heads,
    /// The output `ln(sum(exp(scores)))` in f32, contiguous, of shape `[B, H, Sq]`. The pointer is null if
    /// the caller does not request this output.
    pub lse: *mut f32,
    /// Number of batches, or of packed sequences.
    pub batches: u32,
    /// Queries per batch. For packed sequences (several sequences in one tensor), the number of queries of
    /// all sequences.
    pub queries: u32,
    /// Keys per batch. For packed sequences (several sequences in one tensor), the number of keys of all
    /// sequences.
    pub keys: u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// Columns per head, 1 to 256.
    pub dim: u32,
    /// `F16` or `Bf16`.
    pub dtype: Dtype,
    pub scale: f32,
    pub causal: bool,
    /// Same as [`Attention::window`].
    pub window: [Option<u32>; 2],
    /// Softcap, or 0 for none.
    pub softcap: f32,
    pub mask: Option<MaskLayout>,
    /// Start offsets of packed sequences (several sequences in one tensor): the first pointer for queries,
    /// the second for keys.
    pub cu_seqlens: Option<[*const i32; 2]>,
    /// Whether kernels can access the query, key, value and output tensors in 16-byte vectors.
    pub vector: bool,
}

impl AttentionLayout {
    /// Checks all arguments of `op`. This function does not check whether outputs overlap other arguments.
    pub fn of(
        op: &'static str,
        device: &Device,
        inputs: &AttentionInputs,
        (out, lse): (&View, Option<&View>),
        params: &Attention,
    ) -> Result<Self> {
        let AttentionInputs { q, k, v, mask, cu_seqlens } = inputs;
        if !matches!(q.dtype(), Dtype::F16 | Dtype::Bf16) {
            let expected = "f16 or bf16 (for f32 there is torch's own attention)".into();
            return Err(Error::Dtype { op, arg: "q", got: q.dtype(), expected });
        }
        let packed = cu_seqlens.is_some();
        let heads_of = |arg, view| checks::heads(op, device, (arg, view), q.dtype(), params.order, packed);
        let (q_sizes, q_heads) = heads_of("q", q)?;
        let (k_sizes, k_heads) = heads_of("k", k)?;
        let ((_, v_heads), (_, out_heads)) = (heads_of("v", v)?, heads_of("out", out)?);
        checks::sizes(op, inputs, q_sizes, k_sizes, params.order)?;
        out.expect_shape(op, "out", q.shape())?;
        let ([batches, queries, heads, dim], [_, keys, kv_heads, _]) = (q_sizes, k_sizes);
        if let Some(lse) = lse {
            let sizes: &[i64] = &[batches, heads, queries];
            checks::contiguous(op, device, ("lse", lse), Dtype::F32, &sizes[usize::from(packed)..])?;
        }
        let sequences = checks::sequences(op, device, cu_seqlens.as_ref(), [queries, keys])?;
        // The kernels search for the packed sequence (one of several sequences in one tensor) that contains a
        // token. This search requires at least one sequence.
        if sequences == Some(0) && queries + keys > 0 {
            let expected = "one sequence at least: two numbers".into();
            return Err(Error::Shape { op, arg: "cu_seqlens_q", got: vec![1], expected });
        }
        let mask = mask.map(|mask| {
            let shape = [batches, heads, queries, keys];
            checks::mask(op, device, &mask, q.dtype(), sequences.is_none().then_some(shape))
        });
        let count = |arg, size| checks::count(op, arg, size);
        Ok(Self {
            q: q_heads,
            k: k_heads,
            v: v_heads,
            out: out_heads,
            lse: lse.map_or(std::ptr::null_mut(), |lse| lse.ptr().cast_mut().cast()),
            batches: count("q", sequences.unwrap_or(batches))?,
            queries: count("q", queries)?,
            keys: count("k", keys)?,
            heads: count("q", heads)?,
            kv_heads: count("k", kv_heads)?,
            dim: dim as u32,
            dtype: q.dtype(),
            scale: finite(op, "scale", params.scale.unwrap_or(1.0 / (dim as f32).sqrt()), f32::MIN)?,
            causal: params.causal,
            window: params.window,
            softcap: checks::softcap(op, params.softcap.unwrap_or(0.0))?,
            mask: mask.transpose()?,
            cu_seqlens: cu_seqlens.map(|starts| starts.map(|view| view.ptr().cast())),
            vector: dim % 8 == 0
                && [q_heads, k_heads, v_heads, out_heads].iter().all(|heads| heads.is_vec8s(2)),
        })
    }
}
