//! Online softmax of a warp's rows, which processes the scores one key tile at a time.
//!
//! The unnormalized probability of a score is `exp2(factor * (score - max))`, where `max` is the largest
//! score of the row so far.
use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::mma::{A, C, MatrixElem};
use cuda_std::prelude::*;

/// Smallest rise of a scaled row maximum (a base-2 exponent) after which [`RowSoftmax::advance`] updates the
/// maximum. The value is so small that it does not change any result. It exists because ptxas spills
/// registers if the code tests for any rise.
const SLACK: f32 = 1e-30;

/// A warp's scores of `16 * ROWS16` queries and `16 * KEYS16` keys. Each 16 x 16 block consists of two MMA
/// accumulators (16 x 8): its left half and its right half.
pub(crate) type Scores<const ROWS16: usize, const KEYS16: usize> = [[[C; 2]; KEYS16]; ROWS16];

/// Softmax state of this thread's accumulator rows. In each block of 16 rows, a thread has elements of the
/// rows `g` and `g + 8`, with `g = lane / 4`.
pub(crate) struct RowSoftmax<const ROWS16: usize> {
    /// The largest score of each row so far.
    max: [[f32; 2]; ROWS16],
    /// Sum of the unnormalized probabilities in this thread's columns so far.
    sum: [[f32; 2]; ROWS16],
    /// Factor that converts scores to base-2 exponents.
    factor: f32,
}

impl<const ROWS16: usize> RowSoftmax<ROWS16> {
    #[inline(always)]
    pub fn new(factor: f32) -> Self {
        Self { max: [[f32::NEG_INFINITY; 2]; ROWS16], sum: [[0.0; 2]; ROWS16], factor }
    }

    /// Updates the row maxima with the scores of a key tile. If no row maximum in the warp rose, returns
    /// `None`. Otherwise rescales the row sums, and returns one factor per row. The caller must multiply the
    /// accumulator by these factors.
    #[inline(always)]
    pub fn advance<const KEYS16: usize>(
        &mut self,
        scores: &Scores<ROWS16, KEYS16>,
    ) -> Option<[[f32; 2]; ROWS16]> {
        let slack = SLACK / self.factor;
        let (mut rescale, mut rises) = ([[1.0; 2]; ROWS16], false);
        for row in 0..ROWS16 {
            for half in 0..2 {
                let mut max = f32::NEG_INFINITY;
                for pair in &scores[row] {
                    for c in pair {
                        max = max.max(c[2 * half].max(c[2 * half + 1]));
                    }
                }
                let (max, before) = (warp::max(max, 4), self.max[row][half]);
                if max > before + slack {
                    self.max[row][half] = max;
                    rescale[row][half] = ex2_ftz((before - max) * self.factor);
                    rises = true;
                }
            }
        }
        if !warp::any(warp::ALL, rises) {
            return None;
        }
        for row in 0..ROWS16 {
            for half in 0..2 {
                self.sum[row][half] *= rescale[row][half];
            }
        }
        Some(rescale)
    }

    /// Returns the unnormalized probabilities of 16 keys as an A operand, rounded to the 16-bit type `T`.
    /// Before the rounding, this function adds the probabilities to the row sums.
    #[inline(always)]
    pub fn weights<T: MatrixElem>(&mut self, row: usize, scores: &[C; 2]) -> A {
        let mut weights = [[0.0; 4]; 2];
        for half in 0..2 {
            let max = self.max[row][half];
            // If no key of the row was visible so far, `max` is -inf. Subtract 0 instead of `max`, because
            // `-inf - -inf` is NaN.
            let shift = if max == f32::NEG_INFINITY { 0.0 } else { -max * self.factor };
            for side in 0..2 {
                for odd in 0..2 {
                    let at = 2 * half + odd;
                    weights[side][at] = ex2_ftz(fma(scores[side][at], self.factor, shift));
                    self.sum[row][half] += weights[side][at];
                }
            }
        }
        let [[a, b, c, d], [e, f, g, h]] = weights;
        [T::pair(a, b), T::pair(c, d), T::pair(e, f), T::pair(g, h)]
    }

    /// Returns two values for a row: the reciprocal of the row sum, and the natural log-sum-exp. For a row
    /// without visible keys, the values are 0 and minus infinity.
    #[inline(always)]
    pub fn finish(&self, row: usize, half: usize) -> [f32; 2] {
        let (sum, max) = (warp::sum(self.sum[row][half], 4), self.max[row][half]);
        if sum == 0.0 {
            return [0.0, f32::NEG_INFINITY];
        }
        [1.0 / sum, core::f32::consts::LN_2 * (max * self.factor + lg2(sum))]
    }
}
