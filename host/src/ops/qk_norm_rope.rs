//! `y = rope(norm(x))` for queries and keys, in one launch.
use kernels_gpu::heads::params::HeadNormArg;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::ops::qk_norm_rope::launch;

use super::{qk_norm_rope_positions, rope};
use crate::arguments::{Argument, Source};
use crate::operands::heads::{Heads, HeadsOrder, Shape};
use crate::operands::numbers::finite;
use crate::plan::head_kernels::{
    BlockKernel, HalfSplitKernels, HeadKernel, HeadKernels, HeadSplit, WarpKernel,
};
use crate::plan::heads::CheckedHeads;
use crate::{Device, Dtype, Error, Result, Rope, Stream};

/// The norm of queries and keys. Each variant computes the same results as one of the norm modules of PyTorch
/// models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm: only the rotation.
    None,
    /// `torch.nn.LayerNorm`.
    Layer,
    /// `torch.nn.RMSNorm`, which is a fused kernel that rounds once.
    #[default]
    Rms,
    /// The RMSNorm of Llama, Qwen and diffusers. This module rounds the normalized value, and rounds again
    /// after the multiplication by the weight.
    LlamaRms,
    /// The RMSNorm of the model Mochi. This module uses the same torch operators as the RMSNorm of Llama, but
    /// rounds only once.
    MochiRms,
}

/// The parameters of [`qk_norm_rope`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRope {
    /// The norm.
    pub norm: QkNorm,
    /// Whether to normalize all heads of a token together, instead of each head separately.
    pub across_heads: bool,
    /// Epsilon, which is added to the variance (LayerNorm) or to the mean of squares (RMSNorm). Epsilon must
    /// be 0 or more.
    pub eps: f32,
    /// Whether to round the intermediate results that the model's norm module rounds. If false, only the
    /// final result is rounded.
    pub exact: bool,
    /// The order of the dimensions.
    pub order: HeadsOrder,
    /// The number D of columns per head, if queries and keys have the shape `[B, S, heads * D]`. `None` means
    /// that the last dimension is a single head.
    pub head_dim: Option<i64>,
}

impl<'t> Argument<'t> for QkNorm {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        Ok(match source.int()? {
            1 => Self::Layer,
            2 => Self::Rms,
            3 => Self::LlamaRms,
            4 => Self::MochiRms,
            _ => Self::None,
        })
    }
}

/// Takes the parameters of the norm and of the rotation from the arguments of a call. The call has one flag
/// `exact`, which says whether each step rounds as in PyTorch. The flag applies to the norm and to the
/// rotation.
impl<'t> Argument<'t> for (QkNormRope, Option<Rope<'t>>) {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let (norm, across_heads, eps) = (QkNorm::take(source)?, source.bool()?, source.float()?);
        let (rope, exact) = Rope::take_optional(source)?;
        let (order, head_dim) = (HeadsOrder::take(source)?, <Option<i64> as Argument>::take(source)?);
        Ok((QkNormRope { norm, across_heads, eps, exact, order, head_dim }, rope))
    }
}

impl Default for QkNormRope {
    fn default() -> Self {
        let (norm, order) = (QkNorm::default(), HeadsOrder::default());
        Self { norm, across_heads: false, eps: 1e-6, exact: true, order, head_dim: None }
    }
}

const OP: &str = "qk_norm_rope";

/// Normalizes `q` and `k`, then applies [`rope`](crate::rope) if `rope` is given. `q` or `k` may be absent.
///
/// If all heads of a token are normalized together (`across_heads`), the heads must be adjacent in memory.
/// With `exact`, the result is bitwise equal to the result of the model's eager PyTorch modules on CUDA. For
/// this bitwise equality, the number of columns per head must be divisible by 4. If each head is normalized
/// separately, the bits of its result depend only on the head, its angles and the parameters.
///
/// # Errors
/// Returns the errors of [`rope`](crate::rope). Also fails if `eps` is negative or not finite, or if an
/// RMSNorm has a bias. With `exact` and [`QkNorm::LlamaRms`], the call fails if only one of the two weights
/// is f32.
pub fn qk_norm_rope(
    device: &Device,
    q: Option<Heads>,
    k: Option<Heads>,
    rope: Option<Rope>,
    params: QkNormRope,
    stream: Stream,
) -> Result<()> {
    let QkNormRope { norm, across_heads, eps, exact, order, head_dim } = params;
    finite(OP, "eps", eps, 0.0)?;
    let (tensors, rope) = ([q.as_ref(), k.as_ref()], rope.as_ref());
    let shape = Shape { order, head_dim, across: across_heads && norm != QkNorm::None };
    if norm == QkNorm::None {
        return rope::launch_rope(OP, device, tensors, rope, &shape, stream);
    }
    let checked = CheckedHeads::of(OP, device, tensors, rope, &shape, false)?;
    if norm != QkNorm::Layer
        && checked.operands.iter().any(|operand| operand.affine.bias.kind != OperandKind::ABSENT)
    {
        return Err(Error::Unsupported { op: OP, why: "bias is given, expected none for an RMSNorm".into() });
    }
    // If the weight of Llama's RMSNorm is f32, the norm does not round the normalized value before it
    // multiplies by the weight. The kernel has only one flag for this rounding, which applies to `q` and `k`.
    // Therefore either both weights must be f32, or neither.
    let widens = |heads: &Heads| {
        heads.x.dtype() != Dtype::F32
            && heads.affine.weight.is_some_and(|weight| weight.dtype() == Dtype::F32)
    };
    if let [Some(q), Some(k)] = tensors.map(|heads| heads.map(widens))
        && exact
        && norm == QkNorm::LlamaRms
        && q != k
    {
        let why = "one of q_weight and k_weight is f32, expected both or none".into();
        return Err(Error::Unsupported { op: OP, why });
    }
    let single = checked.operands.iter().any(|operand| operand.affine.weight.kind == OperandKind::F32);
    let before_weight = exact && norm == QkNorm::LlamaRms && !single;
    let normed = HeadNormArg {
        eps,
        fused: u32::from(norm == QkNorm::Rms),
        before_weight: u32::from(before_weight),
        round: u32::from(exact && (norm != QkNorm::LlamaRms || before_weight)),
    };
    let team = if matches!(norm, QkNorm::Layer | QkNorm::Rms) { 128 } else { 32 };
    let [q, k] = checked.operands;
    if !checked.positions.base.is_null() {
        return qk_norm_rope_positions::launch(OP, device, &checked, norm == QkNorm::Layer, normed, stream);
    }
    let kernels = kernels(norm, HeadSplit::Rows { team, stages: true });
    checked.launch(OP, device, &kernels, normed, stream, |kernel, site, p| {
        // SAFETY: the kernel accesses only the tensors that it receives. `CheckedHeads::of` has checked the
        // shape, dtype, strides and device of each of these tensors.
        unsafe { kernel(site, q, k, checked.rotary, p) }
    })
}

fn kernels(norm: QkNorm, split: HeadSplit) -> HeadKernels<HeadKernel> {
    if norm == QkNorm::Layer {
        const LANES: &[WarpKernel<HeadKernel>] =
            &[WarpKernel { kernel: launch::qk_norm_rope_layer_warp1, dim: 128, together: 4 }];
        return HeadKernels {
            halves: None,
            qk: None,
            block: &[],
            rotated: None,
            warp: LANES,
            general: [launch::qk_norm_rope_layer_smem, launch::qk_norm_rope_layer_any],
            split,
        };
    }
    const LANES: &[WarpKernel<HeadKernel>] = &[
        WarpKernel { kernel: launch::qk_norm_rope_rms_warp1, dim: 128, together: 4 },
        WarpKernel { kernel: launch::qk_norm_rope_rms_warp2, dim: 256, together: 2 },
    ];
    const IN_REGISTERS: &[BlockKernel<HeadKernel>] = &[
        BlockKernel { kernel: launch::qk_norm_rope_rms_block4, tiles: 4 },
        BlockKernel { kernel: launch::qk_norm_rope_rms_block10, tiles: 10 },
    ];
    // The kernels in `halves` add squares in the same order as torch's fused RMSNorm. A model can also
    // compute RMSNorm with separate torch operators. With 128 columns, torch then adds in the same order.
    // With 64 columns, its order differs, so the kernel for 64 columns serves only the fused RMSNorm.
    let fused = norm == QkNorm::Rms;
    let d64: HeadKernel = launch::qk_norm_rope_rms_d64_warp1;
    let halves: [Option<HeadKernel>; 2] = [fused.then_some(d64), Some(launch::qk_norm_rope_rms_d128_warp1)];
    HeadKernels {
        halves: Some(HalfSplitKernels { kernels: halves, together: 2, min_columns: 1_536 }),
        qk: Some(launch::qk_norm_rope_rms_qk_warp1),
        block: if fused { IN_REGISTERS } else { &[] },
        rotated: None,
        warp: LANES,
        general: [launch::qk_norm_rope_rms_smem, launch::qk_norm_rope_rms_any],
        split,
    }
}
