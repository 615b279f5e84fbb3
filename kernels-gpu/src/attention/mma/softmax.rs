//! The softmax of rows whose scores come tile by tile.
use cuda_std::math::{ex2_ftz, lg2};
use cuda_std::mma::{A, C, MatrixElem};
use cuda_std::prelude::*;

/// How far a row's maximum may rise, as a power of two, before it counts: so little that the largest weight is 1, which rounding
/// leaves alone. Without this sum ptxas runs out of registers: it spills 44 bytes at 128 columns (sm_80) and 20 at 256 (sm_90).
const SLACK: f32 = 1e-30;

/// A warp's scores of `16 ROWS16` queries and `16 KEYS16` keys: sums of products, two side by side.
pub(crate) type Scores<const ROWS16: usize, const KEYS16: usize> = [[[C; 2]; KEYS16]; ROWS16];

/// What is known of a thread's rows: in each 16, rows `g` and `g + 8`.
pub(crate) struct RowSoftmax<const ROWS16: usize> {
    /// The largest score so far, against which exponents are taken.
    max: [[f32; 2]; ROWS16],
    /// The weights of the thread's own columns so far.
    sum: [[f32; 2]; ROWS16],
    /// A weight is 2 to the power of `factor` times the score.
    factor: f32,
}

impl<const ROWS16: usize> RowSoftmax<ROWS16> {
    #[inline(always)]
    pub fn new(factor: f32) -> Self {
        Self { max: [[f32::NEG_INFINITY; 2]; ROWS16], sum: [[0.0; 2]; ROWS16], factor }
    }

    /// Takes the maxima of new scores into account: what sums so far must be multiplied by, if by anything but 1.
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

    /// The weights of 16 keys as left matrices, rounded; before that, they count in the sums.
    #[inline(always)]
    pub fn weights<T: MatrixElem>(&mut self, row: usize, scores: &[C; 2]) -> A {
        let mut weights = [[0.0; 4]; 2];
        for half in 0..2 {
            let max = self.max[row][half];
            // All scores of a row so far may be hidden.
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

    /// The reciprocal of a row's sum of weights, 0 if there are none, and the natural logarithm of the sum of exponentials.
    #[inline(always)]
    pub fn finish(&self, row: usize, half: usize) -> [f32; 2] {
        let (sum, max) = (warp::sum(self.sum[row][half], 4), self.max[row][half]);
        if sum == 0.0 {
            return [0.0, f32::NEG_INFINITY];
        }
        [1.0 / sum, core::f32::consts::LN_2 * (max * self.factor + lg2(sum))]
    }
}
