//! The arguments of the public attention functions.
use std::ffi::c_void;

use super::rows::Operand;
use crate::arguments::{Argument, Source, arguments};
use crate::{Dtype, HeadsOrder, View};

/// The parameters of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    /// Order of the dimensions in query, key, value and output tensors: `[B, S, H, D]` or `[B, H, S, D]`. The
    /// letters stand for batches, tokens, heads and columns per head.
    pub order: HeadsOrder,
    /// Factor by which the scores `q kᵀ` are multiplied. `None` means `1 / sqrt(D)`.
    pub scale: Option<f32>,
    /// Whether attention is causal: a query sees no key after its own position. Positions are counted from
    /// the end: the last query and the last key have the same position.
    pub causal: bool,
    /// Sliding window: the maximum number of keys that a query sees before and after its own position. `None`
    /// means no limit.
    pub window: [Option<u32>; 2],
    /// Softcap, a limit for the absolute value of the scores. Each score becomes
    /// `softcap * tanh(score / softcap)`. The softcap is at most 1000. `None` means no softcap.
    pub softcap: Option<f32>,
}

arguments! {
    /// The inputs of attention.
    #[derive(Clone, Copy, Debug)]
    pub struct AttentionInputs<'a> {
        /// Queries in f16 or bf16. [`Attention::order`] says whether the shape is `[B, Sq, H, D]` or `[B, H,
        /// Sq, D]`. The last dimension is contiguous.
        pub q: View<'a>,
        /// Keys `[B, Sk, Hkv, D]` or `[B, Hkv, Sk, D]`, in the same order as `q`. The number H of query heads
        /// must be a multiple of the number Hkv of key heads.
        pub k: View<'a>,
        /// Values, with the shape of `k`.
        pub v: View<'a>,
        /// Optional mask that broadcasts to `[B, H, Sq, Sk]`. In a `Bool` mask, true means that the query
        /// sees the key. A mask in f32 or in the dtype of `q` is added to the scores.
        pub mask: Option<View<'a>>,
        /// For packed sequences (several sequences in one tensor), two i32 tensors of shape `[sequences +
        /// 1]`: the first for `q`, the second for `k` and `v`. Each tensor has the start offset of every
        /// sequence, and then the end of the last sequence. With packed sequences, `q`, `k`, `v` and the
        /// output have no batch dimension. Tokens after the end of the last sequence are padding: as queries,
        /// they attend to no key; as keys, no query attends to them.
        pub cu_seqlens: Option<[View<'a>; 2]>,
    }
}

impl<'t> Argument<'t> for Attention {
    /// Takes the parameters from the arguments of a call. In a call, a negative number in the window means no
    /// limit, and a softcap of 0 means no softcap.
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let order = HeadsOrder::take(source)?;
        let (causal, scale) = (source.bool()?, Some(source.float()?));
        let window = <[i64; 2]>::take(source)?;
        let window = window.map(|keys| (keys >= 0).then(|| u32::try_from(keys).unwrap_or(u32::MAX)));
        let softcap = Some(source.float()?).filter(|&softcap| softcap != 0.0);
        Ok(Self { order, scale, causal, window, softcap })
    }
}

/// Minimum scale of the scores for the specialized attention kernels. These kernels divide by the scale, and
/// the quotient is infinite for scales below about 1.6e-38. The general kernel supports every scale.
pub(crate) const MIN_SCALE: f32 = 1e-37;

/// The attention mask in the layout in which kernels read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskLayout {
    pub base: *const c_void,
    /// The dtype is `Bool`, `F32` or the dtype of the queries.
    pub dtype: Dtype,
    /// Strides in elements between batches, heads, queries and keys. A dimension in which the mask broadcasts
    /// has stride 0.
    pub strides: [i64; 4],
}

impl<'a> AttentionInputs<'a> {
    /// Returns the operands that an output must not overlap.
    pub(crate) fn operands(&self) -> [Option<Operand<'_, 'a>>; 6] {
        let mask = self.mask.as_ref().map(|mask| ("mask", mask));
        let starts = self.cu_seqlens.as_ref();
        let [q_starts, k_starts] =
            [starts.map(|[q, _]| ("cu_seqlens_q", q)), starts.map(|[_, k]| ("cu_seqlens_k", k))];
        [Some(("q", &self.q)), Some(("k", &self.k)), Some(("v", &self.v)), mask, q_starts, k_starts]
    }
}
