//! Norms of queries and keys. Each norm has the summation order and the roundings of the torch module that it
//! replaces.
//!
//! The lanes of a warp or half a warp process a head of up to 256 columns. A team (the threads that share a
//! row) processes a longer row: a long head, or all heads of a token.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, round};

use super::params::HeadNormArg;
use super::subwarp::Group;
use crate::norm::affine::{AffineRow, Norm, Parameters as _};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::{TeamCols, TeamMoments};
use crate::norm::reduce::team_row::TeamRow;
use crate::norm::reduce::warp::LayerNorm;
use crate::norm::reduce::welford::Welford;

/// Weight and bias of a norm for four columns. Without a weight, the weight values are 1. Without a bias, the
/// bias values are -0.0, because adding +0.0 would change the sign of a negative zero.
#[derive(Clone, Copy)]
pub(crate) struct Affine4 {
    pub weight: [f32; 4],
    pub bias: [f32; 4],
}

impl Affine4 {
    /// The values for absent weight and bias.
    pub const NONE: Self = Self { weight: [1.0; 4], bias: [-0.0; 4] };
}

/// A norm of queries and keys. The type [`AsItIs`] implements this trait for kernels without a norm.
pub(crate) trait HeadNorm: Copy {
    /// `true` if kernels with this norm can compute RoPE angles from frequencies. The code of sine and cosine
    /// is large, so only kernels without a norm contain it.
    const MAKES_ANGLES: bool;
    /// Returns the statistics (mean and reciprocal standard deviation) of `HEADS` heads. The lanes of `group`
    /// share each head.
    ///
    /// The group has `group.width` lanes, and `group.rank` is the index of the calling lane in the group.
    /// `x[head][tile]` contains four columns of the head. These columns start at column `4 * (rank + tile *
    /// width)`. Columns past the end of the head are zero.
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Vec4<T>; TILES]; HEADS],
        group: Group,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> [Stats; HEADS];
    /// Returns the statistics of the row that the calling thread's team (threads that share a row) processes.
    /// All threads of the block must call this function.
    fn of_row<T: Elem, A: Access>(
        row: &TeamRow<T, A>,
        memory: &mut SharedMemory,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> Stats;
    /// Returns weight and bias for the thread's vec4 (four columns).
    fn parameters<T: Elem, A: Access>(affine: &AffineRow<T, A>) -> Affine4;
    /// Normalises vectors of four columns, multiplies them by the weight, adds the bias, and rounds after the
    /// steps that `how` selects.
    fn apply<T: Elem, const VEC4S: usize>(
        stats: Stats,
        x: [[f32; 4]; VEC4S],
        parameters: &[Affine4; VEC4S],
        how: HeadNormArg,
    ) -> [[f32; 4]; VEC4S];
}

/// No norm.
#[derive(Clone, Copy)]
pub(crate) struct AsItIs;

impl HeadNorm for AsItIs {
    const MAKES_ANGLES: bool = true;
    #[inline(always)]
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        _: &[[Vec4<T>; TILES]; HEADS],
        _: Group,
        _: TeamCols,
        _: HeadNormArg,
    ) -> [Stats; HEADS] {
        [Stats { mean: 0.0, inv: 1.0 }; HEADS]
    }

    #[inline(always)]
    fn of_row<T: Elem, A: Access>(
        _: &TeamRow<T, A>,
        _: &mut SharedMemory,
        _: TeamCols,
        _: HeadNormArg,
    ) -> Stats {
        Stats { mean: 0.0, inv: 1.0 }
    }

    #[inline(always)]
    fn parameters<T: Elem, A: Access>(_: &AffineRow<T, A>) -> Affine4 {
        Affine4::NONE
    }

    #[inline(always)]
    fn apply<T: Elem, const VEC4S: usize>(
        _: Stats,
        x: [[f32; 4]; VEC4S],
        _: &[Affine4; VEC4S],
        _: HeadNormArg,
    ) -> [[f32; 4]; VEC4S] {
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
        x: &[[Vec4<T>; TILES]; HEADS],
        group: Group,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> [Stats; HEADS] {
        // torch's LayerNorm kernel uses four warps per row. A tile of a head (one vector of four columns per
        // lane) contains the elements that one of these torch warps adds. If a head has fewer than four
        // tiles, the remaining torch warps have no elements.
        let mut warps = [[Welford::EMPTY; 4]; HEADS];
        for tile in 0..TILES {
            let mut heads = [Welford::EMPTY; HEADS];
            let first = 4 * (group.rank + tile as u32 * group.width);
            for head in 0..HEADS {
                heads[head].push(x[head][tile].lanes(), (cols.count as u32).saturating_sub(first));
            }
            let heads = group.reduce(heads, |all, distance| all.reduce_step(distance, cols.by_fours));
            for head in 0..HEADS {
                warps[head][tile] = heads[head];
            }
        }
        warps.map(|[a, b, c, d]| {
            let both = |lower: Welford, upper| lower.with(upper, cols.by_fours);
            let stats = both(both(a, c), both(b, d)).stats(cols, how.eps);
            Stats { mean: group.from(0, stats.mean), inv: group.from(0, stats.inv) }
        })
    }

    #[inline(always)]
    fn of_row<T: Elem, A: Access>(
        row: &TeamRow<T, A>,
        memory: &mut SharedMemory,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> Stats {
        row.reduce::<Welford>(memory, cols, how.eps)
    }

    #[inline(always)]
    fn parameters<T: Elem, A: Access>(affine: &AffineRow<T, A>) -> Affine4 {
        let (weight, bias) = affine.lanes(0);
        let none = Affine4::NONE;
        Affine4 { weight: weight.unwrap_or(none.weight), bias: bias.unwrap_or(none.bias) }
    }

    #[inline(always)]
    fn apply<T: Elem, const VEC4S: usize>(
        stats: Stats,
        x: [[f32; 4]; VEC4S],
        parameters: &[Affine4; VEC4S],
        how: HeadNormArg,
    ) -> [[f32; 4]; VEC4S] {
        let mut lanes = x;
        for i in 0..VEC4S {
            let Affine4 { weight, bias } = parameters[i];
            lanes[i] = LayerNorm::apply(stats, x[i], Some(weight), Some(bias));
        }
        round_if::<T, VEC4S>(how.round != 0, lanes)
    }
}

/// Rounds all vectors to the element type if `wanted` is true. The function branches once, not once per
/// vector.
#[inline(always)]
pub(crate) fn round_if<T: Elem, const VEC4S: usize>(
    wanted: bool,
    vec4s: [[f32; 4]; VEC4S],
) -> [[f32; 4]; VEC4S] {
    if wanted { vec4s.map(round::<T>) } else { vec4s }
}
