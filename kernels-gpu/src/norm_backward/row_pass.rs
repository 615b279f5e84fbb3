//! Computes the gradient of RMSNorm or LayerNorm for one row. The code loads a row of `x` and `dy`, computes
//! several sums over the row, and computes `dx` from these sums.
//!
//! A team is the set of threads that share a row. A tile has one pack (16-byte vector) for each thread of the
//! team. `LAYER` is true for LayerNorm and false for RMSNorm. [`norm_backward`](super) explains the formulas,
//! in which `d`, `r` and `g` stand for parts of the result.
use cuda_std::prelude::*;

use super::block_sums::BlockRows;
use super::params::{NormBackwardParams, Operands};
use crate::rms::weight::{AnyKind, Applied, Weight, WeightScale};

/// A thread's pack (16-byte vector) of `x`, and its pack of `dy` for the same columns.
#[derive(Clone, Copy)]
pub(super) struct RowPair<T> {
    x: Pack<T>,
    dy: Pack<T>,
}

impl<T: Elem> RowPair<T> {
    /// Passes both packs (16-byte vectors) through an optimization barrier. Each later use then converts the
    /// elements to f32 again. Without the barrier, their f32 values would occupy registers. See
    /// [`Pack::opaque_lanes`].
    #[inline(always)]
    fn opaque_lanes(self) -> Self {
        Self { x: self.x.opaque_lanes(), dy: self.dy.opaque_lanes() }
    }
}

/// The statistics of a row that its gradients depend on.
#[derive(Clone, Copy)]
pub(super) struct RowMoments {
    /// The mean of `x`, or 0 for RMSNorm.
    mean: f32,
    /// `r = 1 / sqrt(mean(d^2) + eps)`, where `d` is `x - mean` for LayerNorm and `x` for RMSNorm.
    pub inv_rms: f32,
    /// `mean(g)`, with `g = dy * (offset + w)`, or 0 for RMSNorm.
    offset: f32,
    /// `r^2 * mean(g * d)`, with `g = dy * (offset + w)`.
    slope: f32,
}

impl RowMoments {
    /// Computes the statistics of a row from the means of `x`, `g`, `d^2` and `g * d` over the row. Here, `d`
    /// is `x - mean` for LayerNorm and `x` for RMSNorm, and `g` is `dy * (offset + w)`. If the row does not
    /// exist, `inv_rms` is zero, so that the row adds nothing to the sums.
    #[inline(always)]
    pub fn of(mean: f32, offset: f32, [squares, products]: [f32; 2], eps: f32, at: RowIndex) -> Self {
        let inv_rms = if at.exists() { rsqrt(squares + eps) } else { 0.0 };
        Self { mean, inv_rms, offset, slope: products * inv_rms * inv_rms }
    }
}

/// Access to one row of each operand.
#[derive(Clone, Copy)]
pub(super) struct RowBuffer<T, const VECTOR: bool, const LAYER: bool> {
    x: Row<T, VECTOR>,
    dy: Row<T, VECTOR>,
    dsum: Option<Row<T, VECTOR>>,
    weight: AnyKind<T, VECTOR>,
    weight_offset: f32,
}

impl<T: Elem, const VECTOR: bool, const LAYER: bool> RowBuffer<T, VECTOR, LAYER> {
    /// Returns two objects: a `RowBuffer` for row `at` of the operands, and write access to row `at` of `dx`.
    /// The calling thread's team (threads that share a row) processes this row.
    ///
    /// # Safety
    /// The requirements of [`norm_backward`](super::gradients::norm_backward) apply.
    #[inline(always)]
    pub unsafe fn of(
        block_rows: &BlockRows,
        operands: &Operands,
        weight: Weight,
        at: RowIndex,
        p: &NormBackwardParams,
    ) -> (Self, RowMut<T, VECTOR>) {
        let team = block_rows.team.opaque();
        let rows = Rows { base: weight.base.cast_mut(), inner_stride: i64::from(p.cols), outer_stride: 0 };
        let group = RowIndex::of(Team { row: u64::from(block_rows.group), ..team }, u64::MAX, 0);
        // SAFETY: the host checked that each operand has all rows of the launch. It also checked that the
        // weight has one row per group (rows that share a weight).
        unsafe {
            let (x, dy) = (Row::of(&operands.x, team, at, p.cols), Row::of(&operands.dy, team, at, p.cols));
            let dsum = Row::of(&operands.dsum, team, at, p.cols);
            // `same` reads the weight as elements of type `T`, and `single` reads it as f32. Both start at
            // the same address. The kernel reads only through the one that matches `weight.kind`.
            let (same, single) = (Row::of(&rows, team, group, p.cols), Row::of(&rows, team, group, p.cols));
            let weight = AnyKind { kind: weight.kind, same, single };
            let dsum = if operands.dsum.base.is_null() { None } else { Some(dsum) };
            (
                Self { x, dy, dsum, weight, weight_offset: p.weight_offset },
                RowMut::of(&operands.dx, team, at, p.cols),
            )
        }
    }

    /// Loads the thread's packs (16 bytes each) of the `N` tiles from `first` on. Packs after the end of the
    /// row are zero. They add nothing to the sums of `g` and of `g * d`, because `g = dy * (offset + w)` is
    /// then zero.
    #[inline(always)]
    pub fn load<const N: usize>(&self, first: u32) -> [RowPair<T>; N] {
        let mut pairs = [RowPair { x: Pack::ZERO, dy: Pack::ZERO }; N];
        for i in 0..N {
            let tile = first + i as u32;
            pairs[i] =
                RowPair { x: self.x.load(tile, Load::ReadOnly), dy: self.dy.load(tile, Load::ReadOnly) };
        }
        pairs
    }

    /// Returns `g = dy * (offset + w)` for the thread's elements of `tile`. `w` is the weight, and `offset`
    /// is the same number for all columns.
    #[inline(always)]
    fn weighted(&self, tile: u32, dy: T::F32Vec) -> T::F32Vec {
        self.weight.apply(tile, (), dy, Applied { offset: self.weight_offset, round_before: 0 })
    }

    /// Returns `d`, which is `x - mean` for LayerNorm and `x` for RMSNorm. Callers must not use the elements
    /// of `d` after the end of the row.
    #[inline(always)]
    fn centered(&self, x: Pack<T>, mean: f32) -> T::F32Vec {
        if LAYER { x.lanes().map(|x| x - mean) } else { x.lanes() }
    }

    /// Adds the thread's elements of a tile (16 bytes per thread) to the two sums in `sum`. The first is the
    /// sum of `x`, and the second is the sum of `g = dy * (offset + w)`. Returns the new sums.
    #[inline(always)]
    pub fn means(&self, tile: u32, pair: RowPair<T>, sum: LaneSums) -> LaneSums {
        sum.with(pair.x.lanes(), self.weighted(tile, pair.dy.lanes()), |x, g, [a, b]| [a + x, b + g])
    }

    /// Adds the thread's elements of a tile (16 bytes per thread) to the two sums in `sum`. The first is the
    /// sum of `d^2`, and the second is the sum of `g * d`. Returns the new sums. Here, `d` is `x - mean` for
    /// LayerNorm and `x` for RMSNorm, and `g` is `dy * (offset + w)`.
    #[inline(always)]
    pub fn products(&self, tile: u32, pair: RowPair<T>, mean: f32, sum: LaneSums) -> LaneSums {
        let pair = if LAYER { pair.opaque_lanes() } else { pair };
        let d = self.centered(pair.x, mean);
        let d = if LAYER { self.x.inside(tile, d) } else { d };
        sum.with(d, self.weighted(tile, pair.dy.lanes()), |d, g, [a, b]| [fma(d, d, a), fma(g, d, b)])
    }

    /// Returns the elements of `dy` and `d` in f32. `d` is `x - mean` for LayerNorm and `x` for RMSNorm.
    /// Elements of `dy` after the end of the row are 0.
    #[inline(always)]
    pub fn lanes(&self, pair: RowPair<T>, stats: RowMoments) -> [T::F32Vec; 2] {
        let pair = pair.opaque_lanes();
        [pair.dy.lanes(), self.centered(pair.x, stats.mean)]
    }

    /// Returns `dx` for the thread's elements of a tile, rounded to `T`. If a second gradient `dsum` must be
    /// added to `dx`, the function adds it before the rounding.
    #[inline(always)]
    pub fn dx(&self, tile: u32, [dy, d]: [T::F32Vec; 2], stats: RowMoments) -> Pack<T> {
        let dsum = self.dsum.map_or(Pack::ZERO, |dsum| dsum.load(tile, Load::ReadOnly));
        let remainder = self.weighted(tile, dy).zip(d, |g, d| fma(-d, stats.slope, g - stats.offset));
        Pack::from_lanes(remainder.zip(dsum.lanes(), |remainder, dsum| fma(remainder, stats.inv_rms, dsum)))
    }
}

/// A sequence of reductions over a team, the set of threads that share a row. Each reduction adds values over
/// all threads of the team.
///
/// Consecutive reductions alternate between two regions of shared memory, so that no warp overwrites a value
/// that another warp still reads.
pub(super) struct TeamReduction {
    team: Team,
    second: bool,
}

impl TeamReduction {
    /// Returns the number of warps of the block.
    #[inline(always)]
    fn warps() -> u32 {
        let [x, y, _] = thread::block_dim();
        x * y / warp::SIZE
    }

    /// Starts a sequence of reductions over `team`.
    #[inline(always)]
    pub fn of(team: Team) -> Self {
        Self { team, second: false }
    }

    /// Returns the shared memory that follows the two regions that the reductions use.
    #[inline(always)]
    pub fn after_rows() -> SharedMemory {
        let mut memory = SharedMemory::of_launch();
        memory.take::<[f32; 2]>(2 * Self::warps());
        memory
    }

    /// Returns the means of two quantities over a row. The argument contains the sum of each quantity over
    /// the columns of this thread. This method adds these sums over all threads that share the row, and
    /// multiplies the totals by `inv_cols`, which is `1 / cols`. Every thread of the block must call this
    /// method.
    #[inline(always)]
    pub fn means(&mut self, LaneSums([even, odd]): LaneSums, inv_cols: f32) -> [f32; 2] {
        let mut memory = SharedMemory::of_launch();
        if self.second {
            memory.take::<[f32; 2]>(Self::warps());
        }
        self.second = !self.second;
        let add = |[a, b]: [f32; 2], [c, d]: [f32; 2]| [a + c, b + d];
        let [a, b] = self.team.reduce(add(even, odd), [0.0; 2], &mut memory, add);
        [a * inv_cols, b * inv_cols]
    }
}

/// Two sums over the elements of a thread. Each sum has separate accumulators for even and odd elements,
/// which halves the number of dependent additions. This takes only one additional register per sum.
#[derive(Clone, Copy)]
pub(super) struct LaneSums([[f32; 2]; 2]);

impl LaneSums {
    /// The initial value: all sums are zero.
    pub const ZERO: Self = Self([[0.0; 2]; 2]);

    /// Adds the elements of `a` and `b` to the two sums. For each index, the callback `add` gets one element
    /// of `a`, one element of `b`, and the accumulators of both sums. It returns the new accumulators.
    #[inline(always)]
    fn with<L: F32Vec>(self, a: L, b: L, add: impl Fn(f32, f32, [f32; 2]) -> [f32; 2]) -> Self {
        let mut sums = self.0;
        for i in 0..L::LEN as usize {
            sums[i % 2] = add(a.get(i), b.get(i), sums[i % 2]);
        }
        Self(sums)
    }
}
