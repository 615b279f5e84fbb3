//! Online softmax of the two accumulator rows that a thread has in registers.
//!
//! The unnormalized probability of a score is `exp2(scale * (score - max))`. `max` is the largest score of
//! the row so far.
use cuda_std::elem::Elem;
use cuda_std::hopper::wgmma::Operand;
use cuda_std::math::{ex2_ftz, fma};
use cuda_std::warp;

/// Lanes per row of an accumulator.
pub(super) const VEC4: u32 = 4;

/// A thread's softmax state for two rows. In a `wgmma` accumulator, each thread has elements of exactly two
/// rows.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax {
    /// The largest score of each row so far.
    pub max: [f32; 2],
    /// Sum of the unnormalized probabilities in this thread's columns so far.
    pub sum: [f32; 2],
    /// The scale of the scores, multiplied by log2(e).
    pub scale: f32,
}

/// Returns which of the thread's two rows (0 or 1) the accumulator register `register` belongs to. In a
/// `wgmma` accumulator, register `4 * j + 2 * row + c` belongs to row `row`. Here, `row` and `c` are 0 or 1.
#[inline(always)]
pub(crate) fn row_of(register: usize) -> usize {
    register / 2 % 2
}

impl OnlineSoftmax {
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        Self { max: [f32::NEG_INFINITY; 2], sum: [0.0; 2], scale }
    }

    /// Updates the row maxima and row sums with the scores of a key tile, and replaces the scores by
    /// unnormalized probabilities. Returns one factor per row, by which the caller must multiply the
    /// accumulator of the result.
    ///
    /// `added` must be true if a mask was added to the scores. If `added` is false, the function computes
    /// `scale * score - scale * max` with one `fma`. This `fma` is inexact for a row whose scores are all
    /// equal and huge. Such rows occur if a mask hides keys with the lowest f32 number. If `added` is true,
    /// the function therefore computes `scale * (score - max)`, which is exactly 0 for a score that equals
    /// the maximum.
    #[inline(always)]
    pub fn step(&mut self, scores: &mut [f32], added: bool) -> [f32; 2] {
        let mut max = self.max;
        for i in 0..scores.len() {
            max[row_of(i)] = max[row_of(i)].max(scores[i]);
        }
        let max = max.map(|max| warp::reduce(max, VEC4, f32::max));
        let scale = self.scale;
        // If no key of a row was visible so far, the row maximum is -inf. Subtract 0 instead of this maximum,
        // because `-inf - -inf` is NaN.
        let largest = max.map(|max| if max == f32::NEG_INFINITY { 0.0 } else { max });
        let shift = largest.map(|largest| largest * scale);
        let weight = |score: f32, row: usize| {
            ex2_ftz(if added { (score - largest[row]) * scale } else { fma(score, scale, -shift[row]) })
        };
        let rescale = [0, 1].map(|row| weight(self.max[row], row));
        self.max = max;
        self.sum = [0, 1].map(|row| self.sum[row] * rescale[row]);
        for i in 0..scores.len() {
            scores[i] = weight(scores[i], row_of(i));
            self.sum[row_of(i)] += scores[i];
        }
        rescale
    }

    /// Returns the sums of the unnormalized probabilities of the two rows.
    #[inline(always)]
    pub fn sums(&self) -> [f32; 2] {
        self.sum.map(|sum| warp::sum(sum, VEC4))
    }
}

/// Rounds unnormalized probabilities to the element type. The rounded values have the register layout of
/// `wgmma` A operands.
#[inline(always)]
pub(crate) fn round<T: Operand + Elem<F32Vec = [f32; 8]>>(weights: &[f32], rounded: &mut [[u32; 4]]) {
    for p in 0..rounded.len() {
        rounded[p] = T::pack(core::array::from_fn(|i| weights[8 * p + i]));
    }
}

/// Multiplies the two rows of the accumulator by the factors in `by`, one factor per row.
#[inline(always)]
pub(crate) fn rescale(result: &mut [f32], by: [f32; 2]) {
    for i in 0..result.len() {
        result[i] *= by[row_of(i)];
    }
}
