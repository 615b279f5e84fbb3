//! One weight per class, as the argument `weight` of torch's `cross_entropy`, and the sums over all classes
//! that label smoothing needs.
use cuda_std::prelude::*;

use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;
use crate::softmax::target::Class;

/// The weights of all classes, in the element type of the logits or in f32.
#[derive(Clone, Copy)]
pub(crate) struct ClassWeights<T, const VECTOR: bool> {
    kind: OperandKind,
    same: Row<T, VECTOR>,
    single: Row<f32, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> ClassWeights<T, VECTOR> {
    /// Returns the weights as a row that the team reads together with each row of the logits.
    ///
    /// # Safety
    /// `weight` is absent, or has `cols` elements of the type in `weight.kind`. If `VECTOR` is true, they are
    /// aligned to 16 bytes.
    #[inline(always)]
    pub unsafe fn of(weight: Weight, team: Team, cols: u32) -> Self {
        let (rows, kind) = (Rows::single(weight.base), weight.kind);
        // SAFETY: the caller guarantees `cols` elements of the type in `kind`. The methods read only the row
        // of this type.
        unsafe {
            Self {
                kind,
                same: Row::of(&rows, team, RowIndex::FIRST, cols),
                single: Row::of(&rows, team, RowIndex::FIRST, cols),
            }
        }
    }

    /// Loads the weights of the thread's columns of tile number `tile`. They are 0 after the last column.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> T::F32Vec {
        match self.kind {
            OperandKind::SAME => self.same.lanes(tile, Load::ReadOnly),
            _ => self.single.lanes(tile, Load::ReadOnly),
        }
    }

    /// Returns the weight of the class `column`, which is one of the classes.
    #[inline(always)]
    pub fn get(&self, column: u32) -> f32 {
        let weight = match self.kind {
            OperandKind::SAME => self.same.get(column, Load::ReadOnly),
            _ => self.single.get(column, Load::ReadOnly),
        };
        weight.unwrap_or(f32::NAN)
    }

    /// Returns the mean of all weights. Every thread of the block must call this function. All threads of the
    /// team get the same bits.
    #[inline(always)]
    pub fn mean(&self, team: Team, cols: u32) -> f32 {
        let mut sum = 0.0;
        for tile in 0..self.same.tiles() {
            sum += self.lanes(tile).sum();
        }
        team.sum(sum, &mut SharedMemory::of_launch()) * (1.0 / cols as f32)
    }
}

/// The factor by which the sum of the logits is scaled. Label smoothing computes the mean of the logits from
/// this sum. Because of the factor, even the sum of 2^32 logits with the largest f32 value does not overflow.
/// The factor is a power of two, so it changes only the exponent of the sum.
const SCALE: f32 = 1.0 / (1_u64 << 32) as f32;

/// Returns the sum of the elements of `lanes`, times `SCALE`. The additions form a balanced tree.
#[inline(always)]
fn sum_scaled<L: F32Vec>(lanes: L) -> f32 {
    let half = L::LEN as usize / 2;
    let mut sums =
        L::from_fn(|i| if i < half { fma(lanes.get(i), SCALE, lanes.get(i + half) * SCALE) } else { 0.0 });
    let mut width = half / 2;
    while width > 0 {
        sums = L::from_fn(|i| if i < width { sums.get(i) + sums.get(i + width) } else { 0.0 });
        width /= 2;
    }
    sums.get(0)
}

/// How the classes of a row are weighted. The kernels without weights have a type of their own, because they
/// need fewer sums.
pub(crate) trait Weighting<T: Elem>: Copy {
    /// The sums over the classes that label smoothing needs.
    type Sums: Copy;
    /// The sums of no classes.
    const NONE: Self::Sums;
    /// Adds the logits `lanes` of the thread's columns of tile number `tile` to `sums`.
    fn add(&self, sums: Self::Sums, tile: u32, lanes: T::F32Vec) -> Self::Sums;
    /// Adds up the sums of all threads of the team. Every thread of the block must call this method.
    fn reduce(team: Team, sums: Self::Sums) -> Self::Sums;
    /// Returns `value` times the weight of the target.
    fn of_target(&self, target: Class, value: f32) -> f32;
    /// Returns the mean over all `cols` classes of `weight * (lse - x)`, from the reduced sums. `log_sum` is
    /// `lse - max`.
    fn mean(sums: Self::Sums, cols: u32, log_sum: f32, max: f32) -> f32;
}

/// All classes have the weight 1.
#[derive(Clone, Copy)]
pub(crate) struct Equal;

impl<T: Elem> Weighting<T> for Equal {
    type Sums = f32;
    const NONE: f32 = 0.0;
    #[inline(always)]
    fn add(&self, sum: f32, _: u32, lanes: T::F32Vec) -> f32 {
        sum + sum_scaled(lanes)
    }
    #[inline(always)]
    fn reduce(team: Team, sum: f32) -> f32 {
        team.sum(sum, &mut SharedMemory::of_launch())
    }
    #[inline(always)]
    fn of_target(&self, _: Class, value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn mean(scaled_sum: f32, cols: u32, log_sum: f32, max: f32) -> f32 {
        let mean = scaled_sum * (1.0 / cols as f32) * (1.0 / SCALE);
        log_sum - (mean - max)
    }
}

impl<T: Elem, const VECTOR: bool> Weighting<T> for ClassWeights<T, VECTOR> {
    /// The sum of the products of logit and weight, times `SCALE`, and the sum of the weights.
    type Sums = [f32; 2];
    const NONE: [f32; 2] = [0.0; 2];
    #[inline(always)]
    fn add(&self, [products, sum]: [f32; 2], tile: u32, lanes: T::F32Vec) -> [f32; 2] {
        let weights = self.lanes(tile);
        [products + sum_scaled(lanes.zip(weights, |x, weight| x * weight)), sum + weights.sum()]
    }
    #[inline(always)]
    fn reduce(team: Team, sums: [f32; 2]) -> [f32; 2] {
        let add = |[a, b]: [f32; 2], [c, d]: [f32; 2]| [a + c, b + d];
        team.reduce(sums, [0.0; 2], &mut SharedMemory::of_launch(), add)
    }
    #[inline(always)]
    fn of_target(&self, target: Class, value: f32) -> f32 {
        if let Class::Column(column) = target { self.get(column) * value } else { f32::NAN }
    }
    #[inline(always)]
    fn mean(sums: [f32; 2], cols: u32, log_sum: f32, max: f32) -> f32 {
        let [products, sum] = sums.map(|sum| sum * (1.0 / cols as f32));
        sum * log_sum - (products * (1.0 / SCALE) - sum * max)
    }
}
