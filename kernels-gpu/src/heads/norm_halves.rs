//! Norms of heads of 64 or 128 columns. Each lane has four columns in each half of a head.
//!
//! The sums are computed in the order of torch's kernels. The warp reduction of torch first adds the sums of
//! two lanes whose columns are half a head apart. In the kernels of this module, one lane has the columns of
//! both torch lanes, so this addition needs no shuffle.
use cuda_std::prelude::*;

use super::norm::{Affine4, AsItIs, HeadNorm};
use super::params::HeadNormArg;
use super::rms_norm::Rms;
use crate::layout::heads::vec4_at;
use crate::layout::operand_kind::OperandKind;
use crate::norm::affine::Affine;
use crate::norm::operand::Operand;
use crate::norm::reduce::stats::Stats;

/// A norm of heads ([`HeadNorm`]) for kernels in which each lane has two vectors of four columns, one in each
/// half of a head.
pub(crate) trait HalvesNorm: HeadNorm {
    /// Returns the statistics (mean and reciprocal standard deviation) of `HEADS` heads of dimension `DIM`,
    /// 64 or 128. `DIM / 8` lanes share a head. Each lane has two vectors of four columns, `DIM / 2` columns
    /// apart.
    fn of_halves<T: Elem, const DIM: u32, const HEADS: usize>(
        x: &[[Vec4<T>; 2]; HEADS],
        how: HeadNormArg,
    ) -> [Stats; HEADS];
    /// Returns weight and bias for two vectors of four columns, which start at `columns`. All loads are in
    /// flight together.
    ///
    /// # Safety
    /// While the kernel runs, weight and bias are readable at these columns, as aligned vectors of four
    /// elements.
    unsafe fn parameters_at<T: Elem>(affine: &Affine, columns: [u32; 2]) -> [Affine4; 2];
}

impl HalvesNorm for AsItIs {
    #[inline(always)]
    fn of_halves<T: Elem, const DIM: u32, const HEADS: usize>(
        _: &[[Vec4<T>; 2]; HEADS],
        _: HeadNormArg,
    ) -> [Stats; HEADS] {
        [Stats { mean: 0.0, inv: 1.0 }; HEADS]
    }

    #[inline(always)]
    unsafe fn parameters_at<T: Elem>(_: &Affine, _: [u32; 2]) -> [Affine4; 2] {
        [Affine4::NONE; 2]
    }
}

/// RMSNorm with one of two summation orders: the order of torch's fused kernel, or the order of
/// `x.float().pow(2).mean(-1)`. Use the second order only for heads of 128 columns, because torch adds the
/// elements of shorter rows in a different order than this type.
impl HalvesNorm for Rms {
    #[inline(always)]
    fn of_halves<T: Elem, const DIM: u32, const HEADS: usize>(
        x: &[[Vec4<T>; 2]; HEADS],
        how: HeadNormArg,
    ) -> [Stats; HEADS] {
        let mut sums = [0.0; HEADS];
        for head in 0..HEADS {
            // There is one branch per head instead of one branch for all heads. With one branch for all
            // heads, the compiler would convert the elements of all heads to f32 before it adds any of them.
            // The converted elements would occupy registers.
            sums[head] = if how.fused != 0 {
                pair(x[head], |[a, b, c, d]| fma(d, d, fma(c, c, fma(b, b, a * a))))
            } else {
                pair(x[head], |[a, b, c, d]| a * a + b * b + c * c + d * d)
            };
        }
        // Each shuffle step is executed for all heads before the next step, to hide the latency of the
        // shuffles.
        if DIM > 64 {
            sums = with_lane(sums, 8);
        }
        sums = with_lane(with_lane(with_lane(sums, 4), 2), 1);
        sums.map(|sum| Stats { mean: 0.0, inv: rsqrt(sum * (1.0 / DIM as f32) + how.eps) })
    }

    #[inline(always)]
    unsafe fn parameters_at<T: Elem>(affine: &Affine, columns: [u32; 2]) -> [Affine4; 2] {
        // SAFETY: the loads read the weight at these columns. The caller guarantees that the weight is
        // readable there. The field `weight.kind` states the element type of the weight.
        unsafe {
            match affine.weight.kind {
                OperandKind::ABSENT => [Affine4::NONE; 2],
                OperandKind::F32 => weights::<f32>(&affine.weight, columns),
                _ => weights::<T>(&affine.weight, columns),
            }
        }
    }
}

/// Loads two vectors of four columns of a weight, which start at `columns`. `E` is the element type of the
/// weight.
///
/// # Safety
/// The safety conditions of [`HalvesNorm::parameters_at`] apply.
#[inline(always)]
unsafe fn weights<E: Elem>(weight: &Operand, columns: [u32; 2]) -> [Affine4; 2] {
    // SAFETY: the loads read the weight at these columns as type `E`. The caller guarantees that the weight
    // has elements of this type and is readable at these columns.
    let vec4s = columns.map(|at| unsafe { vec4_at::<E>(weight.rows.base.cast(), at, true) });
    vec4s.map(|vec4| Affine4 { weight: vec4.lanes(), ..Affine4::NONE })
}

/// Applies the function `of` to each of a lane's two vectors, which are half a head apart, and returns the
/// sum of the two results. In torch, the first step of the warp reduction performs this addition.
#[inline(always)]
fn pair<T: Elem>([near, far]: [Vec4<T>; 2], of: impl Fn([f32; 4]) -> f32) -> f32 {
    of(near.lanes()) + of(far.lanes())
}

/// Adds to each sum the corresponding sum of the lane whose index is this lane's index XOR `distance`.
#[inline(always)]
pub(crate) fn with_lane<const N: usize>(sums: [f32; N], distance: u32) -> [f32; N] {
    sums.map(|sum| sum + warp::shuffle_xor(warp::ALL, sum, distance))
}
