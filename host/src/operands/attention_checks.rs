//! Checks of the arguments of attention.
use kernels_gpu::layout::heads::Heads;

use super::attention::{AttentionInputs, MaskLayout};
use super::rows::Operand;
use crate::operands::numbers::finite;
use crate::{Device, Dtype, Error, HeadsOrder, Result, View};

/// Maximum columns per head.
const MAX_DIM: i64 = 256;

/// Checks the sizes of keys and values against the sizes of the queries. Two array parameters have four sizes
/// each: batches, tokens, heads and columns. The first array has the sizes of the queries, the second array
/// the sizes of the keys.
pub(crate) fn sizes(
    op: &'static str,
    inputs: &AttentionInputs,
    [batches, _, heads, dim]: [i64; 4],
    [_, keys, kv_heads, _]: [i64; 4],
    order: HeadsOrder,
) -> Result<()> {
    let AttentionInputs { q, k, v, cu_seqlens, .. } = inputs;
    let shape = match order {
        HeadsOrder::TokensFirst => [batches, keys, kv_heads, dim],
        HeadsOrder::HeadsFirst => [batches, kv_heads, keys, dim],
    };
    k.expect_shape(op, "k", &shape[usize::from(cu_seqlens.is_some())..])?;
    v.expect_shape(op, "v", k.shape())?;
    if !(1..=MAX_DIM).contains(&dim) {
        let expected = "heads of 1 to 256 columns".into();
        return Err(Error::Shape { op, arg: "q", got: q.shape().to_vec(), expected });
    }
    // If `heads`, the number of query heads, is 0, the test `heads % kv_heads == 0` succeeds for any number
    // of key heads. Reject such a call if it has key heads, because no kernel would write the gradients of
    // the keys.
    if (heads == 0) != (kv_heads == 0) || heads > 0 && heads % kv_heads != 0 {
        let expected = format!("heads that divide the {heads} of q");
        return Err(Error::Shape { op, arg: "k", got: k.shape().to_vec(), expected });
    }
    Ok(())
}

/// Checks `cu_seqlens`, the start offsets of packed sequences (several sequences in one tensor). Returns the
/// number of sequences, or `None` if the sequences are not packed. The array `tokens` has two elements: the
/// number of queries and the number of keys.
pub(crate) fn sequences(
    op: &'static str,
    device: &Device,
    cu_seqlens: Option<&[View; 2]>,
    tokens: [i64; 2],
) -> Result<Option<i64>> {
    let Some([q, k]) = cu_seqlens else { return Ok(None) };
    let starts = q.shape().first().map_or(1, |&len| len.max(1));
    contiguous(op, device, ("cu_seqlens_q", q), Dtype::I32, &[starts])?;
    contiguous(op, device, ("cu_seqlens_k", k), Dtype::I32, &[starts])?;
    if device.arch().is_none() {
        ascending(op, ("cu_seqlens_q", q), tokens[0])?;
        ascending(op, ("cu_seqlens_k", k), tokens[1])?;
    }
    Ok(Some(starts - 1))
}

/// Checks the start offsets of packed sequences (several sequences in one tensor) if they are in host memory.
/// The offsets must start with 0, must never decrease, and must not exceed `tokens`. If the offsets break
/// these rules, sequences could overlap, and two blocks would write the same rows.
///
/// Offsets in GPU memory are not checked, because reading them would block until the GPU is done.
fn ascending(op: &'static str, (arg, view): Operand, tokens: i64) -> Result<()> {
    let len = view.shape().first().map_or(0, |&len| len as usize);
    // SAFETY: the slice covers the `len` elements of `view`. `contiguous` checked that `view` is a contiguous
    // i32 tensor of this length. The elements are in host memory, because this function is called only for
    // the CPU executor.
    let starts = unsafe { std::slice::from_raw_parts(view.ptr().cast::<i32>(), len) };
    let mut min = 0;
    for (index, got) in starts.iter().map(|&start| i64::from(start)).enumerate() {
        let max = if index == 0 { 0 } else { tokens };
        if got < min || got > max {
            let expected = if index == 0 { "0".into() } else { format!("{min} to {tokens}") };
            return Err(Error::Element { op, arg, index, got, expected });
        }
        min = got;
    }
    Ok(())
}

/// Checks a query, key, value or output tensor. Returns two values: the sizes of the tensor (batches, tokens,
/// heads, columns), and the kernel argument with its address and strides.
pub(crate) fn heads(
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
    // The stride of a dimension of size 1 has no effect on addresses, so the caller's tensor may have any
    // value there. Replace this stride by 0. A later check permits 16-byte vector access only if all strides
    // are multiples of 16 bytes.
    let stride = |dim: usize| if sizes[dim] > 1 { strides[dim] } else { 0 };
    let base = view.ptr().cast_mut().cast();
    Ok((sizes, Heads { base, batch_stride: stride(0), token_stride: stride(1), head_stride: stride(2) }))
}

/// Checks a mask against `shape`, the shape of the scores. If the sequences are packed, the caller passes
/// `None` as `shape`, because their scores have no common shape. The function then returns an error, because
/// attention over packed sequences (several sequences in one tensor) supports no mask.
pub(crate) fn mask(
    op: &'static str,
    device: &Device,
    mask: &View,
    dtype: Dtype,
    shape: Option<[i64; 4]>,
) -> Result<MaskLayout> {
    let Some(shape) = shape else {
        let expected = "none for packed sequences".into();
        return Err(Error::Shape { op, arg: "mask", got: mask.shape().to_vec(), expected });
    };
    mask.expect_on(op, "mask", device)?;
    if mask.dtype() != Dtype::Bool && mask.dtype() != Dtype::F32 && mask.dtype() != dtype {
        let expected = format!("bool, f32 or {dtype} (as q)");
        return Err(Error::Dtype { op, arg: "mask", got: mask.dtype(), expected });
    }
    let wide = mask.broadcast_to(op, "mask", &shape)?;
    let strides = std::array::from_fn(|dim| wide.strides()[dim]);
    Ok(MaskLayout { base: mask.ptr(), dtype: mask.dtype(), strides })
}

/// Checks that a tensor is contiguous, and that it has the given dtype and shape.
pub(crate) fn contiguous(
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
        dense *= (*size).max(1);
    }
    Ok(())
}

/// Converts a size to u32. Sizes must be below 2^29, so that kernels can compute window limits in i32 without
/// overflow.
pub(crate) fn count(op: &'static str, arg: &'static str, size: i64) -> Result<u32> {
    if size <= i64::from(i32::MAX / 4) {
        return Ok(size as u32);
    }
    Err(Error::Value { op, arg, got: size as f64, expected: "sizes below 2^29" })
}

/// Checks a softcap. The value 0 means no softcap. The kernels compute tanh in f32 as `1 - 2 / (1 + e^2x)`.
/// The rounding error of this formula is about `2^-24`. The error of a score is therefore about `2^-24` times
/// the softcap. With a softcap above 1000, this error would be visible in 16-bit results.
pub(crate) fn softcap(op: &'static str, value: f32) -> Result<f32> {
    match finite(op, "softcap", value, 0.0)? {
        value if value <= 1_000.0 => Ok(value),
        value => Err(Error::Value { op, arg: "softcap", got: value.into(), expected: "at most 1000" }),
    }
}
