//! What attention reads and writes: the arguments of the public functions, checked once for all of its kernels.
use std::ffi::c_void;

use kernels_gpu::heads::Heads;

use crate::rows::{Operand, expect_disjoint};
use crate::{Device, Dtype, Error, HeadsOrder, Result, View, ViewMut};

/// The parameters of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// How the heads of all tensors lie: `[B, S, H, D]`, or `[B, H, S, D]`.
    pub order: HeadsOrder,
    /// The factor of `q k`; `None`: `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Does a query see no key after its own position? The last query stands at the last key.
    pub causal: bool,
    /// The most keys that a query sees before its position, and after it; `None`: all.
    pub window: [Option<u32>; 2],
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

/// The inputs of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// `[B, Sq, H, D]`, or in the order that the parameters say; f16 or bf16, the last dimension contiguous.
    pub q: View<'a>,
    /// `[B, Sk, Hkv, D]`, of which H is a multiple.
    pub k: View<'a>,
    /// As `k`.
    pub v: View<'a>,
    /// What broadcasts to `[B, H, Sq, Sk]`: which keys a query sees (`Bool`), or what is added to the scores (f32, or as `q`).
    pub mask: Option<View<'a>>,
    /// Sequences that lie one after the other: where each of them begins in `q` and in `k`, and behind the last where it
    /// ends; i32, `[sequences + 1]`. The tensors then have no batch dimension.
    pub cu_seqlens: Option<[View<'a>; 2]>,
}

/// The mask as kernels read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskLayout {
    pub base: *const c_void,
    /// `Bool`, `F32` or the element type of the heads.
    pub dtype: Dtype,
    /// Elements from a batch, head, query and key to the next; 0 where it broadcasts.
    pub strides: [i64; 4],
}

/// A call of attention that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionLayout {
    pub q: Heads,
    pub k: Heads,
    pub v: Heads,
    pub out: Heads,
    /// f32, `[B, H, Sq]` and contiguous: `ln(sum(exp(scores)))`; null: not wanted.
    pub lse: *mut f32,
    /// Batches, or packed sequences.
    pub batches: u32,
    /// Queries of a batch; of all sequences together if they are packed.
    pub queries: u32,
    /// Keys, likewise.
    pub keys: u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// Columns of a head: 1 to 256.
    pub dim: u32,
    /// `F16` or `Bf16`.
    pub dtype: Dtype,
    pub scale: f32,
    pub causal: bool,
    /// As in [`Attention`].
    pub window: [Option<u32>; 2],
    /// 0: none.
    pub softcap: f32,
    pub mask: Option<MaskLayout>,
    /// Where packed sequences begin among queries and keys.
    pub cu_seqlens: Option<[*const i32; 2]>,
    /// May all heads be accessed 16 bytes at a time?
    pub vector: bool,
}

/// The most columns of a head.
const MAX_DIM: i64 = 256;

impl AttentionLayout {
    /// Checks the arguments of `op`.
    pub fn of(
        op: &'static str,
        device: &Device,
        inputs: &AttentionInputs,
        out: &ViewMut,
        lse: Option<&ViewMut>,
        params: &Attention,
    ) -> Result<Self> {
        let AttentionInputs { q, k, v, mask, cu_seqlens } = inputs;
        let (out, lse) = (out.as_view(), lse.map(ViewMut::as_view));
        if !matches!(q.dtype(), Dtype::F16 | Dtype::Bf16) {
            let expected = "f16 or bf16 (for f32 there is torch's own attention)".into();
            return Err(Error::Dtype { op, arg: "q", got: q.dtype(), expected });
        }
        let split = |arg, view| split(op, device, (arg, view), q.dtype(), params.order, cu_seqlens.is_some());
        let ([batches, queries, heads, dim], q_heads) = split("q", q)?;
        let ([_, keys, kv_heads, _], k_heads) = split("k", k)?;
        let ((_, v_heads), (_, out_heads)) = (split("v", v)?, split("out", out)?);
        let shape = |[b, s, h, d]: [i64; 4]| match (cu_seqlens, params.order) {
            (None, HeadsOrder::TokensFirst) => vec![b, s, h, d],
            (None, HeadsOrder::HeadsFirst) => vec![b, h, s, d],
            (Some(_), HeadsOrder::TokensFirst) => vec![s, h, d],
            (Some(_), HeadsOrder::HeadsFirst) => vec![h, s, d],
        };
        k.expect_shape(op, "k", &shape([batches, keys, kv_heads, dim]))?;
        v.expect_shape(op, "v", k.shape())?;
        out.expect_shape(op, "out", q.shape())?;
        if dim < 1 || dim > MAX_DIM {
            let expected = "heads of 1 to 256 columns".into();
            return Err(Error::Shape { op, arg: "q", got: q.shape().to_vec(), expected });
        }
        if heads > 0 && (kv_heads == 0 || heads % kv_heads != 0) {
            let expected = format!("heads that divide the {heads} of q");
            return Err(Error::Shape { op, arg: "k", got: k.shape().to_vec(), expected });
        }
        if let Some(lse) = lse {
            let sizes: &[i64] = &[batches, heads, queries];
            expect_contiguous(
                op,
                device,
                ("lse", lse),
                Dtype::F32,
                &sizes[usize::from(cu_seqlens.is_some())..],
            )?;
        }
        let sequences = cu_seqlens.as_ref().map(|[q, _]| q.shape().first().map_or(0, |len| (len - 1).max(0)));
        for (arg, starts) in ["cu_seqlens_q", "cu_seqlens_k"].into_iter().zip(cu_seqlens.iter().flatten()) {
            expect_contiguous(op, device, (arg, starts), Dtype::I32, &[sequences.unwrap_or(0) + 1])?;
        }
        let mask_layout = mask.map(|mask| {
            if sequences.is_some() {
                let expected = "none for packed sequences".into();
                return Err(Error::Shape { op, arg: "mask", got: mask.shape().to_vec(), expected });
            }
            mask_layout(op, device, &mask, q.dtype(), [batches, heads, queries, keys])
        });
        let inputs =
            [Some(("q", q)), Some(("k", k)), Some(("v", v)), mask.as_ref().map(|mask| ("mask", mask))];
        expect_disjoint(op, ("out", out), &inputs)?;
        if let Some(lse) = lse {
            expect_disjoint(op, ("lse", lse), &[&inputs[..], &[Some(("out", out))]].concat())?;
        }
        Ok(Self {
            q: q_heads,
            k: k_heads,
            v: v_heads,
            out: out_heads,
            lse: lse.map_or(std::ptr::null_mut(), |lse| lse.ptr().cast_mut().cast()),
            batches: count(op, "q", sequences.unwrap_or(batches))?,
            queries: count(op, "q", queries)?,
            keys: count(op, "k", keys)?,
            heads: count(op, "q", heads)?,
            kv_heads: count(op, "k", kv_heads)?,
            dim: dim as u32,
            dtype: q.dtype(),
            scale: finite(op, "scale", params.scale.unwrap_or(1.0 / (dim as f32).sqrt()), f32::MIN)?,
            causal: params.causal,
            window: params.window,
            softcap: finite(op, "softcap", params.softcap.unwrap_or(0.0), 0.0)?,
            mask: mask_layout.transpose()?,
            cu_seqlens: cu_seqlens.map(|starts| starts.map(|view| view.ptr().cast())),
            vector: dim % 8 == 0 && [q_heads, k_heads, v_heads, out_heads].iter().all(Heads::is_vector),
        })
    }
}

/// A tensor of heads as batch, token, head and column, and where they lie.
fn split(
    op: &'static str,
    device: &Device,
    (arg, view): Operand,
    dtype: Dtype,
    order: HeadsOrder,
    packed: bool,
) -> Result<([i64; 4], Heads)> {
    view.expect_on(op, arg, device)?;
    view.expect_dtype(op, arg, dtype)?;
    let (sizes, strides) = match (packed, view.shape(), view.strides()) {
        (false, &[b, s, h, d], &[i, j, k, l]) => ([b, s, h, d], [i, j, k, l]),
        (true, &[s, h, d], &[j, k, l]) => ([1, s, h, d], [0, j, k, l]),
        _ => {
            let expected = if packed { "three dimensions" } else { "four dimensions" }.into();
            return Err(Error::Shape { op, arg, got: view.shape().to_vec(), expected });
        }
    };
    let tokens_first = |[i, j, k, l]: [i64; 4]| match order {
        HeadsOrder::TokensFirst => [i, j, k, l],
        HeadsOrder::HeadsFirst => [i, k, j, l],
    };
    let (sizes, strides) = (tokens_first(sizes), tokens_first(strides));
    if strides[3] != 1 && sizes[3] > 1 {
        return Err(view.bad_strides(op, arg, "its last dimension must be contiguous"));
    }
    // The stride of a single one is any number: 0 does not get in the way of wide accesses.
    let stride = |dim: usize| if sizes[dim] > 1 { strides[dim] } else { 0 };
    let base = view.ptr().cast_mut().cast();
    Ok((sizes, Heads { base, batch_stride: stride(0), token_stride: stride(1), head_stride: stride(2) }))
}

fn mask_layout(
    op: &'static str,
    device: &Device,
    mask: &View,
    dtype: Dtype,
    shape: [i64; 4],
) -> Result<MaskLayout> {
    mask.expect_on(op, "mask", device)?;
    if mask.dtype() != Dtype::Bool && mask.dtype() != Dtype::F32 && mask.dtype() != dtype {
        let expected = format!("bool, f32 or {dtype} (as q)");
        return Err(Error::Dtype { op, arg: "mask", got: mask.dtype(), expected });
    }
    let wide = mask.broadcast_to(op, "mask", &shape)?;
    let strides = std::array::from_fn(|dim| wide.strides()[dim]);
    Ok(MaskLayout { base: mask.ptr(), dtype: mask.dtype(), strides })
}

fn expect_contiguous(
    op: &'static str,
    device: &Device,
    (arg, view): Operand,
    dtype: Dtype,
    shape: &[i64],
) -> Result<()> {
    view.expect_on(op, arg, device)?;
    view.expect_dtype(op, arg, dtype)?;
    view.expect_shape(op, arg, shape)?;
    let mut dense = 1;
    for (size, stride) in view.shape().iter().zip(view.strides()).rev() {
        if *size > 1 && *stride != dense {
            return Err(view.bad_strides(op, arg, "it must be contiguous"));
        }
        dense *= size;
    }
    Ok(())
}

/// A size as kernels count it: with room for the positions of a window around it.
fn count(op: &'static str, arg: &'static str, size: i64) -> Result<u32> {
    if size <= i64::from(i32::MAX / 2) {
        return Ok(size as u32);
    }
    Err(Error::Value { op, arg, got: size as f64, expected: "sizes below 2^30" })
}

fn finite(op: &'static str, arg: &'static str, value: f32, least: f32) -> Result<f32> {
    if value.is_finite() && value >= least {
        return Ok(value);
    }
    let expected = if least < 0.0 { "a finite number" } else { "a finite number of 0 or more" };
    Err(Error::Value { op, arg, got: f64::from(value), expected })
}
