//! A row of `x` and of `dy`, and what the passes over it do with each tile.
use cuda_std::prelude::*;

use super::block_sums::BlockRows;
use super::params::{NormBackwardParams, Operands};
use crate::rms::weight::{AnyKind, Applied, Weight, WeightScale};

/// A pack of `x` and the same columns of `dy`.
#[derive(Clone, Copy)]
pub(super) struct RowPair<T> {
    x: Pack<T>,
    dy: Pack<T>,
}

impl<T: Elem> RowPair<T> {
    /// See [`Pack::opaque_lanes`].
    #[inline(always)]
    fn opaque_lanes(self) -> Self {
        Self { x: self.x.opaque_lanes(), dy: self.dy.opaque_lanes() }
    }
}

/// What a row's sums say.
#[derive(Clone, Copy)]
pub(super) struct RowMoments {
    mean: f32,
    /// `r`.
    pub inv_rms: f32,
    /// `mean(g)`.
    offset: f32,
    /// `r^2 * mean(g * d)`.
    slope: f32,
}

impl RowMoments {
    /// From the means of a row; all zero where there is none, so that it adds nothing to a sum.
    #[inline(always)]
    pub fn of(mean: f32, offset: f32, [squares, products]: [f32; 2], eps: f32, at: RowIndex) -> Self {
        let inv_rms = if at.exists() { rsqrt(squares + eps) } else { 0.0 };
        Self { mean, inv_rms, offset, slope: products * inv_rms * inv_rms }
    }
}

/// One row, and what is done with its tiles.
#[derive(Clone, Copy)]
pub(super) struct RowBuffer<T, const VECTOR: bool, const LAYER: bool> {
    x: Row<T, VECTOR>,
    dy: Row<T, VECTOR>,
    dsum: Option<Row<T, VECTOR>>,
    weight: AnyKind<T, VECTOR>,
    weight_offset: f32,
}

impl<T: Elem, const VECTOR: bool, const LAYER: bool> RowBuffer<T, VECTOR, LAYER> {
    /// The team's row at `at`, and where its gradient goes.
    ///
    /// # Safety
    /// As [`norm_backward`](super::gradients::norm_backward).
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
        // SAFETY: as the caller promises.
        unsafe {
            let (x, dy) = (Row::of(&operands.x, team, at, p.cols), Row::of(&operands.dy, team, at, p.cols));
            let dsum = Row::of(&operands.dsum, team, at, p.cols);
            // Only the one which the kind says is read.
            let (same, single) = (Row::of(&rows, team, group, p.cols), Row::of(&rows, team, group, p.cols));
            let weight = AnyKind { kind: weight.kind, same, single };
            let dsum = if operands.dsum.base.is_null() { None } else { Some(dsum) };
            (
                Self { x, dy, dsum, weight, weight_offset: p.weight_offset },
                RowMut::of(&operands.dx, team, at, p.cols),
            )
        }
    }

    /// The thread's packs of `N` tiles from `first` on; zeros past the end, which add nothing to a sum of
    /// `g`.
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

    /// `g`.
    #[inline(always)]
    fn weighted(&self, tile: u32, dy: T::F32Vec) -> T::F32Vec {
        self.weight.apply(tile, (), dy, Applied { offset: self.weight_offset, round_before: 0 })
    }

    /// `d`; anything past the end.
    #[inline(always)]
    fn centered(&self, x: Pack<T>, mean: f32) -> T::F32Vec {
        if LAYER { x.lanes().map(|x| x - mean) } else { x.lanes() }
    }

    /// With the sums of `x` and `g` of a tile.
    #[inline(always)]
    pub fn means(&self, tile: u32, pair: RowPair<T>, sum: LaneSums) -> LaneSums {
        sum.with(pair.x.lanes(), self.weighted(tile, pair.dy.lanes()), |x, g, [a, b]| [a + x, b + g])
    }

    /// With the sums of `d^2` and `g * d` of a tile.
    #[inline(always)]
    pub fn products(&self, tile: u32, pair: RowPair<T>, mean: f32, sum: LaneSums) -> LaneSums {
        let pair = if LAYER { pair.opaque_lanes() } else { pair };
        let d = self.centered(pair.x, mean);
        let d = if LAYER { self.x.inside(tile, d) } else { d };
        sum.with(d, self.weighted(tile, pair.dy.lanes()), |d, g, [a, b]| [fma(d, d, a), fma(g, d, b)])
    }

    /// `dy`, 0 past the end, and `d`.
    #[inline(always)]
    pub fn lanes(&self, pair: RowPair<T>, stats: RowMoments) -> [T::F32Vec; 2] {
        let pair = pair.opaque_lanes();
        [pair.dy.lanes(), self.centered(pair.x, stats.mean)]
    }

    /// `dx`, with `dsum` where there is one, rounded.
    #[inline(always)]
    pub fn dx(&self, tile: u32, [dy, d]: [T::F32Vec; 2], stats: RowMoments) -> Pack<T> {
        let dsum = self.dsum.map_or(Pack::ZERO, |dsum| dsum.load(tile, Load::ReadOnly));
        let remainder = self.weighted(tile, dy).zip(d, |g, d| fma(-d, stats.slope, g - stats.offset));
        Pack::from_lanes(remainder.zip(dsum.lanes(), |remainder, dsum| fma(remainder, stats.inv_rms, dsum)))
    }
}

/// One fold after another over the teams of a block: in two parts of shared memory by turns, so that no warp
/// writes what another may still be reading.
pub(super) struct TeamReduction {
    team: Team,
    second: bool,
}

impl TeamReduction {
    #[inline(always)]
    fn warps() -> u32 {
        let [x, y, _] = thread::block_dim();
        x * y / warp::SIZE
    }

    /// For a team.
    #[inline(always)]
    pub fn of(team: Team) -> Self {
        Self { team, second: false }
    }

    /// The shared memory that no fold uses.
    #[inline(always)]
    pub fn after_rows() -> SharedMemory {
        let mut memory = SharedMemory::of_launch();
        memory.take::<[f32; 2]>(2 * Self::warps());
        memory
    }

    /// The means over a row.
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

/// Two sums over a thread's lanes, those of even and of odd lanes apart: chains half as long, in few
/// registers.
#[derive(Clone, Copy)]
pub(super) struct LaneSums([[f32; 2]; 2]);

impl LaneSums {
    /// Of nothing.
    pub const ZERO: Self = Self([[0.0; 2]; 2]);

    /// With each pair of lanes, by `add`.
    #[inline(always)]
    fn with<L: F32Vec>(self, a: L, b: L, add: impl Fn(f32, f32, [f32; 2]) -> [f32; 2]) -> Self {
        let mut sums = self.0;
        for i in 0..L::LEN as usize {
            sums[i % 2] = add(a.get(i), b.get(i), sums[i % 2]);
        }
        Self(sums)
    }
}
