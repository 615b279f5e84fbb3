//! Attention `softmax(scale q kT) v` for few queries and many keys (flash decoding). The first kernel divides
//! the keys of a head among several blocks, which store partial results in a workspace. The second kernel
//! combines the partial results.
use kernels_gpu::attention::decode::combine::COMBINERS;
use kernels_gpu::attention::decode::params::{DecodeParams, ROWS, SPLIT, shared_bytes};
use kernels_gpu::attention::mma::params::WARPS;
use kernels_gpu::ops::attention_decode::launch;

use super::attention::{attention, expect_tensor_cores, launch_portable};
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::attention::{Attention, AttentionInputs, MIN_SCALE};
use crate::operands::attention_checks;
use crate::operands::attention_layout::AttentionLayout;
use crate::operands::overlap::expect_disjoint;
use crate::plan::attention::block_shape;
use crate::{Device, Dtype, HeadsOrder, Result, Stream, ViewMut};

const OP: &str = "attention_decode";

/// A function that launches a kernel.
type DecodeKernel = unsafe fn(LaunchSite, DecodeParams) -> Result<()>;

/// The kernels of split-KV decoding. Each entry has the largest head dimension that the kernel supports, the
/// function that launches the kernel, and the kernel's bytes of shared memory per block.
const KERNELS_BY_DIM: [(u32, DecodeKernel, u32); 3] = [
    (64, launch::attention_decode_d64_smem, shared_bytes(4)),
    (128, launch::attention_decode_d128_smem, shared_bytes(8)),
    (256, launch::attention_decode_d256_smem, shared_bytes(16)),
];

/// Maximum number of query rows per key head for split-KV decoding. The number of query rows is the number of
/// queries times the number of query heads per key head. With more rows, the kernels of [`attention`] have
/// enough blocks to fill a GPU, so there is no need to divide the keys.
const MAX_ROWS: u32 = 32;
/// Minimum number of keys for split-KV decoding, which divides the keys of a head among blocks. A second
/// kernel then combines the partial results of the blocks. With fewer keys, this second kernel takes more
/// time than the division of the keys saves.
const MIN_KEYS: u32 = 1024;

/// How the keys of a call are divided among blocks.
struct SplitPlan {
    /// Tiles of query rows per key head.
    tiles: u32,
    splits: u32,
    /// Total number of partial results that the blocks store.
    parts: i64,
}

impl SplitPlan {
    /// Plans a call with the given numbers of batches, queries, keys, heads and key heads. Returns `None` if
    /// the kernels of [`attention`] would be faster, or if the decode kernels do not support the number of
    /// partial results.
    fn of([batches, queries, keys, heads, kv_heads]: [i64; 5]) -> Option<Self> {
        let rows = u32::try_from(queries * heads / kv_heads.max(1)).ok()?;
        let keys = u32::try_from(keys).ok()?;
        if rows == 0 || rows > MAX_ROWS || keys < MIN_KEYS {
            return None;
        }
        let (tiles, splits) = (rows.div_ceil(ROWS), keys.div_ceil(SPLIT));
        let parts = batches.checked_mul(kv_heads * i64::from(tiles) * i64::from(splits))?;
        i32::try_from(parts).ok().filter(|&parts| parts > 0)?;
        Some(Self { tiles, splits, parts })
    }
}

/// Returns the number of f32 elements that [`attention_decode`] needs as workspace. Returns `None` if the
/// call should use [`attention`] instead.
pub fn attention_decode_workspace(inputs: &AttentionInputs, params: &Attention) -> Option<i64> {
    let plain = inputs.mask.is_none() && inputs.cu_seqlens.is_none();
    attention_decode_workspace_of([inputs.q.shape(), inputs.k.shape()], plain, params)
}

/// Returns the number of f32 elements that [`attention_decode`] needs as workspace for queries of shape `q`
/// and keys of shape `k`. Returns `None` if the call should use [`attention`] instead. `plain` is true if
/// there is no mask and the sequences are not packed.
pub fn attention_decode_workspace_of([q, k]: [&[i64]; 2], plain: bool, params: &Attention) -> Option<i64> {
    let (&[batches, a, b, dim], &[_, c, d, _]) = (q, k) else { return None };
    let [queries, heads, keys, kv_heads] = match params.order {
        HeadsOrder::TokensFirst => [a, b, c, d],
        HeadsOrder::HeadsFirst => [b, a, d, c],
    };
    let positive = params.scale.is_none_or(|scale| scale >= MIN_SCALE);
    if !plain || params.softcap.is_some() || !positive || dim % 8 != 0 {
        return None;
    }
    let plan = SplitPlan::of([batches, queries, keys, heads, kv_heads])?;
    plan.parts.checked_mul(i64::from(ROWS) * (dim + 1))
}

/// Computes [`attention`] for few queries and many keys, for example for one new token with a KV cache. The
/// first launch divides the keys of a head among several blocks. The second launch combines the results of
/// these blocks.
///
/// The division of the keys does not depend on the batch size. The result of a query is therefore bitwise
/// equal for all batch sizes. This function runs the kernels of [`attention`] instead of the decode kernels
/// if there is no workspace, or if [`attention_decode_workspace`] returns `None`. It also does so if a head
/// or the workspace is not aligned to 16 bytes.
///
/// # Errors
/// Returns the errors of [`attention`]. Also fails if `workspace` does not have the size from
/// [`attention_decode_workspace`].
pub fn attention_decode(
    device: &Device,
    inputs: AttentionInputs,
    out: ViewMut,
    lse: Option<ViewMut>,
    workspace: Option<ViewMut>,
    params: Attention,
    stream: Stream,
) -> Result<()> {
    let Some(workspace) = workspace else { return attention(device, inputs, out, lse, params, stream) };
    let (out, lse) = (out.as_view(), lse.as_ref().map(ViewMut::as_view));
    let a = AttentionLayout::of(OP, device, &inputs, (out, lse), &params)?;
    let (wanted, workspace) = (attention_decode_workspace(&inputs, &params), workspace.as_view());
    attention_checks::contiguous(OP, device, ("workspace", workspace), Dtype::F32, &[wanted.unwrap_or(0)])?;
    expect_disjoint(OP, ("workspace", workspace), &inputs.operands())?;
    for (arg, view) in [Some(("out", out)), lse.map(|lse| ("lse", lse))].into_iter().flatten() {
        expect_disjoint(OP, (arg, view), &inputs.operands())?;
        expect_disjoint(OP, (arg, view), &[Some(("workspace", workspace))])?;
    }
    if let Some(lse) = lse {
        expect_disjoint(OP, ("lse", lse), &[Some(("out", out))])?;
    }
    expect_tensor_cores(OP, device)?;
    let sizes = [a.batches, a.queries, a.keys, a.heads, a.kv_heads].map(i64::from);
    let kernel = KERNELS_BY_DIM.iter().find(|(dim, ..)| a.dim <= *dim);
    let aligned = a.vector && workspace.ptr().addr().is_multiple_of(16);
    let fits = |&&(.., bytes): &&(u32, DecodeKernel, u32)| aligned && bytes <= device.max_shared_bytes();
    let (Some(plan), Some(_), Some(&(_, kernel, _))) = (SplitPlan::of(sizes), wanted, kernel.filter(fits))
    else {
        return launch_portable(device, &a, launch_override(device).skip, stream);
    };
    if let Some(skip) = launch_override(device).skip.checked_sub(1) {
        return launch_portable(device, &a, skip, stream);
    }
    let partial: *mut f32 = workspace.ptr().cast_mut().cast();
    let p = DecodeParams {
        forward: a.params(plan.tiles),
        splits: plan.splits,
        partial,
        partial_lse: partial.wrapping_add((plan.parts * i64::from(ROWS) * i64::from(a.dim)) as usize),
    };
    let (blocks, rows) = (plan.parts as u32, a.batches * a.heads * a.queries);
    // SAFETY: the kernels access only the tensors that they receive. This function has checked the shape,
    // dtype, strides and device of each of these tensors.
    unsafe {
        let shape = block_shape(blocks, WARPS * 32);
        kernel(LaunchSite::new(device, a.dtype, shape, stream)?, p)?;
        let shape = block_shape(rows, COMBINERS * 32);
        launch::attention_decode_combine_block(LaunchSite::new(device, a.dtype, shape, stream)?, p)
    }
}
