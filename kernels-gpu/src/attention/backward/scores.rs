//! Element-wise operations between the matrix multiplications of the attention backward pass: scale, softcap
//! (`cap * tanh(score / cap)`) and rounding.
use cuda_std::mma::{A, C, MatrixElem};

use crate::attention::mma::mask::{cap, each};
use crate::attention::mma::params::AttentionParams;
use crate::attention::mma::softmax::Scores;

/// Multiplies the scores by the scale, applies the softcap, and converts the scores to base-2 exponents.
/// Returns the derivative of the softcap for each score. The derivative is 1 if there is no softcap.
#[inline(always)]
pub(super) fn cap_with_slopes<const ROWS16: usize, const COLS16: usize>(
    scores: &mut Scores<ROWS16, COLS16>,
    p: &AttentionParams,
) -> Scores<ROWS16, COLS16> {
    cap(scores, p);
    let mut slopes = [[[[1.0; 4]; 2]; COLS16]; ROWS16];
    if p.softcap != 0.0 {
        slopes = *scores;
        let inverse = 1.0 / (p.softcap * core::f32::consts::LOG2_E);
        each(&mut slopes, |score| 1.0 - score * inverse * (score * inverse));
    }
    slopes
}

/// Rounds two MMA accumulators (16 x 8) to 16 bits, and returns them as one A operand (16 x 16). The
/// accumulators are the left and the right half of this operand.
#[inline(always)]
pub(super) fn left<T: MatrixElem>([[a, b, c, d], [e, f, g, h]]: &[C; 2]) -> A {
    [T::pair(*a, *b), T::pair(*c, *d), T::pair(*e, *f), T::pair(*g, *h)]
}
