//! The running softmax of a thread's two rows, in registers.
use cuda_std::hopper::wgmma::Operand;
use cuda_std::math::{ex2_ftz, fma};
use cuda_std::warp;

/// Lanes that share a row.
pub(super) const VEC4: u32 = 4;

/// The largest score so far of each row, and the sum of this thread's weights relative to it.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax {
    pub max: [f32; 2],
    pub sum: [f32; 2],
    /// Of scores, times log2(e).
    pub scale: f32,
}

/// The row of a register: `4 * j + 2 * row + c`.
#[inline(always)]
pub(crate) fn row_of(register: usize) -> usize {
    register / 2 % 2
}

impl OnlineSoftmax {
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        Self { max: [f32::NEG_INFINITY; 2], sum: [0.0; 2], scale }
    }

    /// Scores become weights; says by what the result so far is to be multiplied. Those to which a mask was `added` may be huge
    /// and all the same: their difference from the largest is 0, while that of the products is what rounding left.
    #[inline(always)]
    pub fn step(&mut self, scores: &mut [f32], added: bool) -> [f32; 2] {
        let mut max = self.max;
        for i in 0..scores.len() {
            max[row_of(i)] = max[row_of(i)].max(scores[i]);
        }
        let max = max.map(|max| warp::reduce(max, VEC4, f32::max));
        let scale = self.scale;
        // A row that saw no key yet: its scores are all -inf, and stay so.
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

    /// The rows' sums.
    #[inline(always)]
    pub fn sums(&self) -> [f32; 2] {
        self.sum.map(|sum| warp::sum(sum, VEC4))
    }
}

/// Weights rounded to the operand's type, as a product takes them.
#[inline(always)]
pub(crate) fn round<T: Operand<F32Vec = [f32; 8]>>(weights: &[f32], rounded: &mut [[u32; 4]]) {
    for p in 0..rounded.len() {
        rounded[p] = T::pack(core::array::from_fn(|i| weights[8 * p + i]));
    }
}

/// Multiplies the rows.
#[inline(always)]
pub(crate) fn rescale(result: &mut [f32], by: [f32; 2]) {
    for i in 0..result.len() {
        result[i] *= by[row_of(i)];
    }
}
