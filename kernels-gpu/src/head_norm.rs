//! The norms that queries and keys go through, each in the order and with the roundings of the module that it stands for.
//!
//! A head of up to 256 columns lies in the lanes of a warp, or of half a warp; a longer row is a [`Passes`].
use cuda_std::prelude::*;
use cuda_std::quad::round;

use crate::affine::{AffineRow, Norm};
use crate::moments::{Cols, FusedRms, LayerNorm, MeanSquare, Moments, Stats};
use crate::operand::zip;
use crate::passes::Passes;

/// How a norm is computed: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Normed {
    /// Added to the variance, or to the mean of squares.
    pub eps: f32,
    /// Are squares summed as in torch's fused RMSNorm, not as in `x.float().pow(2).mean(-1)`? 0 or 1.
    pub fused: u32,
    /// Round to the element type before the weight multiplies, too. 0 or 1.
    pub before_weight: u32,
    /// Round to the element type before the rotation. 0 or 1.
    pub round: u32,
}

/// The lanes of a warp that share a head: `width` of them, 16 or 32.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub rank: u32,
    pub width: u32,
}

impl Group {
    /// The value of the group's lane `rank`.
    #[inline(always)]
    pub fn from(&self, rank: u32, value: f32) -> f32 {
        warp::shuffle(warp::ALL, value, warp::lane() - self.rank + rank)
    }
}

/// The parameters of a norm at a quad of columns; absent ones change nothing, not even the sign of a zero.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    pub weight: [f32; 4],
    pub bias: [f32; 4],
}

impl Parameters {
    /// Those of no norm.
    pub const NONE: Self = Self { weight: [1.0; 4], bias: [-0.0; 4] };
}

/// A norm, or none.
pub(crate) trait HeadNorm: Copy {
    /// May angles be made in the kernel? Sine and cosine are much code, which stands in the kernels without a norm alone.
    const MAKES_ANGLES: bool;
    /// Of a head whose quads the group's lanes hold, quad `rank + tile * width` each; zeros past its end.
    fn of_lanes<const TILES: usize>(x: [[f32; 4]; TILES], group: Group, cols: Cols, how: Normed) -> Stats;
    /// Of the team's row.
    fn of_row<T: Elem, const VECTOR: bool>(
        passes: &Passes<T, VECTOR>,
        x: QuadRow<T, VECTOR>,
        memory: &mut SharedMemory,
        how: Normed,
    ) -> Stats;
    /// The thread's parameters at `tile`.
    fn parameters<T: Elem, const VECTOR: bool>(affine: &AffineRow<T, VECTOR>, tile: u32) -> Parameters;
    /// The normalised `x` times weight plus bias.
    fn apply<T: Elem>(stats: Stats, x: [f32; 4], parameters: Parameters, how: Normed) -> [f32; 4];
}

/// No norm.
#[derive(Clone, Copy)]
pub(crate) struct AsItIs;

impl HeadNorm for AsItIs {
    const MAKES_ANGLES: bool = true;
    #[inline(always)]
    fn of_lanes<const TILES: usize>(_: [[f32; 4]; TILES], _: Group, _: Cols, _: Normed) -> Stats {
        Stats { mean: 0.0, inv: 1.0 }
    }

    #[inline(always)]
    fn of_row<T: Elem, const VECTOR: bool>(
        _: &Passes<T, VECTOR>,
        _: QuadRow<T, VECTOR>,
        _: &mut SharedMemory,
        _: Normed,
    ) -> Stats {
        Stats { mean: 0.0, inv: 1.0 }
    }

    #[inline(always)]
    fn parameters<T: Elem, const VECTOR: bool>(_: &AffineRow<T, VECTOR>, _: u32) -> Parameters {
        Parameters::NONE
    }

    #[inline(always)]
    fn apply<T: Elem>(_: Stats, x: [f32; 4], _: Parameters, _: Normed) -> [f32; 4] {
        x
    }
}

/// LayerNorm.
#[derive(Clone, Copy)]
pub(crate) struct Layer;

impl HeadNorm for Layer {
    const MAKES_ANGLES: bool = false;
    #[inline(always)]
    fn of_lanes<const TILES: usize>(x: [[f32; 4]; TILES], group: Group, cols: Cols, how: Normed) -> Stats {
        // torch has 128 threads a row: a tile of ours is one of its warps, and those beyond are empty.
        let mut warps = [LayerNorm::EMPTY; 4];
        for tile in 0..TILES {
            let mut moments = LayerNorm::EMPTY;
            let first = 4 * (group.rank + tile as u32 * group.width);
            moments.push(x[tile], (cols.count as u32).saturating_sub(first));
            warps[tile] = moments.fold_down(group.width);
        }
        let stats = warps[0].combine(warps[2]).combine(warps[1].combine(warps[3])).stats(cols, how.eps);
        Stats { mean: group.from(0, stats.mean), inv: group.from(0, stats.inv) }
    }

    #[inline(always)]
    fn of_row<T: Elem, const VECTOR: bool>(
        passes: &Passes<T, VECTOR>,
        x: QuadRow<T, VECTOR>,
        memory: &mut SharedMemory,
        _: Normed,
    ) -> Stats {
        passes.reduce::<LayerNorm>(x, memory)
    }

    #[inline(always)]
    fn parameters<T: Elem, const VECTOR: bool>(affine: &AffineRow<T, VECTOR>, tile: u32) -> Parameters {
        let (weight, bias) = affine.parameters(tile);
        Parameters { weight, bias }
    }

    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        Parameters { weight, bias }: Parameters,
        how: Normed,
    ) -> [f32; 4] {
        LayerNorm::apply::<T>(stats, x, Some(weight), Some(bias), how.round != 0)
    }
}

/// RMSNorm, which has no bias: torch's own, or written out.
#[derive(Clone, Copy)]
pub(crate) struct Rms;

impl HeadNorm for Rms {
    const MAKES_ANGLES: bool = false;
    #[inline(always)]
    fn of_lanes<const TILES: usize>(x: [[f32; 4]; TILES], group: Group, cols: Cols, how: Normed) -> Stats {
        if how.fused != 0 {
            let mut sum = 0.0;
            for tile in 0..TILES {
                let mut squares = 0.0;
                for i in 0..4 {
                    squares = fma(x[tile][i], x[tile][i], squares);
                }
                sum += warp::sum(squares, group.width);
            }
            return Stats { mean: 0.0, inv: rsqrt(sum / cols.count + how.eps) };
        }
        let mut squares = [0.0; 4];
        for tile in 0..TILES {
            for i in 0..4 {
                squares[i] += x[tile][i] * x[tile][i];
            }
        }
        let sum = if cols.count < 128.0 { short_sum(squares, group) } else { long_sum(squares) };
        Stats { mean: 0.0, inv: rsqrt(sum * cols.inv + how.eps) }
    }

    #[inline(always)]
    fn of_row<T: Elem, const VECTOR: bool>(
        passes: &Passes<T, VECTOR>,
        x: QuadRow<T, VECTOR>,
        memory: &mut SharedMemory,
        how: Normed,
    ) -> Stats {
        if how.fused != 0 {
            passes.reduce::<FusedRms>(x, memory)
        } else {
            passes.reduce::<MeanSquare>(x, memory)
        }
    }

    #[inline(always)]
    fn parameters<T: Elem, const VECTOR: bool>(affine: &AffineRow<T, VECTOR>, tile: u32) -> Parameters {
        let (weight, _) = affine.parameters(tile);
        Parameters { weight, ..Parameters::NONE }
    }

    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        Parameters { weight, .. }: Parameters,
        how: Normed,
    ) -> [f32; 4] {
        let mut lanes = x.map(|x| stats.inv * x);
        if how.before_weight != 0 {
            lanes = round::<T>(lanes);
        }
        lanes = zip(lanes, weight, |n, weight| n * weight);
        if how.round != 0 { round::<T>(lanes) } else { lanes }
    }
}

/// torch's sum of a row of 128 columns or more over a warp whose threads hold quads.
#[inline(always)]
fn long_sum([a, b, c, d]: [f32; 4]) -> f32 {
    warp::sum(a + b + c + d, warp::SIZE)
}

/// torch's sum of a shorter row over a warp whose threads hold every 32nd column: first the columns of a thread, from
/// the lowest, then threads 16, 8, 4, 2 and 1 apart. A lane has four of those threads, every eighth the same ones.
#[inline(always)]
fn short_sum(values: [f32; 4], group: Group) -> f32 {
    let mut sums = [0.0; 4];
    for column in 0..4 {
        let every_eighth = |nth: u32| group.from(group.rank % 8 + 8 * nth, values[column]);
        sums[column] = every_eighth(0) + every_eighth(1);
        if group.width > 16 {
            sums[column] = sums[column] + every_eighth(2) + every_eighth(3);
        }
        for distance in [4, 2, 1] {
            sums[column] += warp::shuffle_xor(warp::ALL, sums[column], distance);
        }
    }
    let [a, b, c, d] = sums;
    (a + c) + (b + d)
}
