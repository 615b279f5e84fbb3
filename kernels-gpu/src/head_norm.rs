//! The norms that queries and keys go through, each in the order and with the roundings of the module that it stands for.
//!
//! A head of up to 256 columns lies in the lanes of a warp, or of half a warp; a longer row is a team's.
use cuda_std::prelude::*;
use cuda_std::quad::round;

use crate::affine::{AffineRow, Norm, Parameters as _};
use crate::group::Group;
use crate::moments::{LayerNorm, Stats, Welford};
use crate::operand::zip;
use crate::team_moments::{Cols, FusedRms, MeanSquare, TeamMoments};
use crate::team_row::TeamRow;

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
    /// Of heads whose quads the group's lanes hold, quad `rank + tile * width` each; zeros past their end.
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Quad<T>; TILES]; HEADS],
        group: Group,
        cols: Cols,
        how: Normed,
    ) -> [Stats; HEADS];
    /// Of the team's row.
    fn of_row<T: Elem, const ACCESS: u32>(
        row: &TeamRow<T, ACCESS>,
        memory: &mut SharedMemory,
        cols: Cols,
        how: Normed,
    ) -> Stats;
    /// The thread's parameters, at its quad.
    fn parameters<T: Elem, const ACCESS: u32>(affine: &AffineRow<T, ACCESS>) -> Parameters;
    /// The normalised `x` times weight plus bias.
    fn apply<T: Elem>(stats: Stats, x: [f32; 4], parameters: Parameters, how: Normed) -> [f32; 4];
}

/// No norm.
#[derive(Clone, Copy)]
pub(crate) struct AsItIs;

impl HeadNorm for AsItIs {
    const MAKES_ANGLES: bool = true;
    #[inline(always)]
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        _: &[[Quad<T>; TILES]; HEADS],
        _: Group,
        _: Cols,
        _: Normed,
    ) -> [Stats; HEADS] {
        [Stats { mean: 0.0, inv: 1.0 }; HEADS]
    }

    #[inline(always)]
    fn of_row<T: Elem, const ACCESS: u32>(
        _: &TeamRow<T, ACCESS>,
        _: &mut SharedMemory,
        _: Cols,
        _: Normed,
    ) -> Stats {
        Stats { mean: 0.0, inv: 1.0 }
    }

    #[inline(always)]
    fn parameters<T: Elem, const ACCESS: u32>(_: &AffineRow<T, ACCESS>) -> Parameters {
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
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Quad<T>; TILES]; HEADS],
        group: Group,
        cols: Cols,
        how: Normed,
    ) -> [Stats; HEADS] {
        // torch has 128 threads a row: a tile of ours is one of its warps, and those beyond are empty.
        let mut warps = [[Welford::EMPTY; 4]; HEADS];
        for tile in 0..TILES {
            let mut heads = [Welford::EMPTY; HEADS];
            let first = 4 * (group.rank + tile as u32 * group.width);
            for head in 0..HEADS {
                heads[head].push(x[head][tile].lanes(), (cols.count as u32).saturating_sub(first));
            }
            let heads = group.fold(heads, Welford::fold_step);
            for head in 0..HEADS {
                warps[head][tile] = heads[head];
            }
        }
        warps.map(|[a, b, c, d]| {
            let stats = a.with(c).with(b.with(d)).stats(cols, how.eps);
            Stats { mean: group.from(0, stats.mean), inv: group.from(0, stats.inv) }
        })
    }

    #[inline(always)]
    fn of_row<T: Elem, const ACCESS: u32>(
        row: &TeamRow<T, ACCESS>,
        memory: &mut SharedMemory,
        cols: Cols,
        how: Normed,
    ) -> Stats {
        row.reduce::<Welford>(memory, cols, how.eps)
    }

    #[inline(always)]
    fn parameters<T: Elem, const ACCESS: u32>(affine: &AffineRow<T, ACCESS>) -> Parameters {
        let (weight, bias) = affine.lanes(0);
        let none = Parameters::NONE;
        Parameters { weight: weight.unwrap_or(none.weight), bias: bias.unwrap_or(none.bias) }
    }

    #[inline(always)]
    fn apply<T: Elem>(
        stats: Stats,
        x: [f32; 4],
        Parameters { weight, bias }: Parameters,
        how: Normed,
    ) -> [f32; 4] {
        let lanes = LayerNorm::apply(stats, x, Some(weight), Some(bias));
        if how.round != 0 { round::<T>(lanes) } else { lanes }
    }
}

/// RMSNorm, which has no bias: torch's own, or written out.
#[derive(Clone, Copy)]
pub(crate) struct Rms;

impl HeadNorm for Rms {
    const MAKES_ANGLES: bool = false;
    #[inline(always)]
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Quad<T>; TILES]; HEADS],
        group: Group,
        cols: Cols,
        how: Normed,
    ) -> [Stats; HEADS] {
        if how.fused != 0 {
            let mut sums = [0.0; HEADS];
            for tile in 0..TILES {
                let mut squares = [0.0; HEADS];
                for head in 0..HEADS {
                    let [a, b, c, d] = x[head][tile].lanes();
                    squares[head] = fma(d, d, fma(c, c, fma(b, b, fma(a, a, 0.0))));
                }
                let squares = group.sum(squares);
                for head in 0..HEADS {
                    sums[head] += squares[head];
                }
            }
            return sums.map(|sum| Stats { mean: 0.0, inv: rsqrt(cols.divide(sum) + how.eps) });
        }
        let squares = |quads: &[Quad<T>; TILES]| {
            let mut squares = [0.0; 4];
            for tile in 0..TILES {
                squares = zip(squares, quads[tile].lanes(), |sum, x| sum + x * x);
            }
            squares
        };
        let mut sums = [0.0; HEADS];
        if TILES == 1 && cols.count < 128.0 {
            for head in 0..HEADS {
                sums[head] = group.short_sum(squares(&x[head]));
            }
        } else {
            for head in 0..HEADS {
                let [a, b, c, d] = squares(&x[head]);
                sums[head] = a + b + c + d;
            }
            sums = group.sum(sums);
        }
        sums.map(|sum| Stats { mean: 0.0, inv: rsqrt(sum * cols.inv + how.eps) })
    }

    #[inline(always)]
    fn of_row<T: Elem, const ACCESS: u32>(
        row: &TeamRow<T, ACCESS>,
        memory: &mut SharedMemory,
        cols: Cols,
        how: Normed,
    ) -> Stats {
        if how.fused != 0 {
            row.reduce::<FusedRms>(memory, cols, how.eps)
        } else {
            row.reduce::<MeanSquare>(memory, cols, how.eps)
        }
    }

    #[inline(always)]
    fn parameters<T: Elem, const ACCESS: u32>(affine: &AffineRow<T, ACCESS>) -> Parameters {
        let ((weight, _), none) = (affine.lanes(0), Parameters::NONE);
        Parameters { weight: weight.unwrap_or(none.weight), ..none }
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
