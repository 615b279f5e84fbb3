//! Norms of heads whose lanes have a quad in each half: torch's additions in torch's order, of which the
//! first is a lane's own.
use cuda_std::prelude::*;

use super::norm::{Affine4, AsItIs, HeadNorm};
use super::params::HeadNormArg;
use super::rms_norm::Rms;
use crate::layout::heads::vec4_at;
use crate::layout::operand_kind::OperandKind;
use crate::norm::affine::Affine;
use crate::norm::operand::Operand;
use crate::norm::reduce::stats::Stats;

/// A norm of heads in halves, or none.
pub(crate) trait HalvesNorm: HeadNorm {
    /// Of heads of `DIM` columns, 64 or 128, of which each of `DIM / 8` lanes holds two quads half a head
    /// apart.
    fn of_halves<T: Elem, const DIM: u32, const HEADS: usize>(
        x: &[[Vec4<T>; 2]; HEADS],
        how: HeadNormArg,
    ) -> [Stats; HEADS];
    /// The parameters at the quads of `columns`, all loads in flight together.
    ///
    /// # Safety
    /// They have the columns, to read in quads while the kernel runs.
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

/// Fused, or of heads of 128 columns: torch sums shorter ones otherwise where the norm is written out.
impl HalvesNorm for Rms {
    #[inline(always)]
    fn of_halves<T: Elem, const DIM: u32, const HEADS: usize>(
        x: &[[Vec4<T>; 2]; HEADS],
        how: HeadNormArg,
    ) -> [Stats; HEADS] {
        let mut sums = [0.0; HEADS];
        for head in 0..HEADS {
            // Asked for each head, or the lanes of all of them are unpacked before.
            sums[head] = if how.fused != 0 {
                pair(x[head], |[a, b, c, d]| fma(d, d, fma(c, c, fma(b, b, a * a))))
            } else {
                pair(x[head], |[a, b, c, d]| a * a + b * b + c * c + d * d)
            };
        }
        // A step of all heads after the other hides its latency.
        if DIM > 64 {
            sums = with_lane(sums, 8);
        }
        sums = with_lane(with_lane(with_lane(sums, 4), 2), 1);
        sums.map(|sum| Stats { mean: 0.0, inv: rsqrt(sum * (1.0 / DIM as f32) + how.eps) })
    }

    #[inline(always)]
    unsafe fn parameters_at<T: Elem>(affine: &Affine, columns: [u32; 2]) -> [Affine4; 2] {
        // SAFETY: as the caller promises, for the type that the kind says.
        unsafe {
            match affine.weight.kind {
                OperandKind::ABSENT => [Affine4::NONE; 2],
                OperandKind::F32 => weights::<f32>(&affine.weight, columns),
                _ => weights::<T>(&affine.weight, columns),
            }
        }
    }
}

/// The quads of a weight whose elements are `E`.
///
/// # Safety
/// As [`HalvesNorm::parameters_at`].
#[inline(always)]
unsafe fn weights<E: Elem>(weight: &Operand, columns: [u32; 2]) -> [Affine4; 2] {
    // SAFETY: as the caller promises.
    let vec4s = columns.map(|at| unsafe { vec4_at::<E>(weight.rows.base.cast(), at, true) });
    vec4s.map(|vec4| Affine4 { weight: vec4.lanes(), ..Affine4::NONE })
}

/// The sum of what both quads give: torch's threads half a head apart are its first pair.
#[inline(always)]
fn pair<T: Elem>([near, far]: [Vec4<T>; 2], of: impl Fn([f32; 4]) -> f32) -> f32 {
    of(near.lanes()) + of(far.lanes())
}

/// Each sum with that of the lane `distance` away.
#[inline(always)]
pub(crate) fn with_lane<const N: usize>(sums: [f32; N], distance: u32) -> [f32; N] {
    sums.map(|sum| sum + warp::shuffle_xor(warp::ALL, sum, distance))
}
