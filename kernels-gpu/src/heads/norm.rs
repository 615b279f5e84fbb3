//! The norms that queries and keys go through, each in the order and with the roundings of the module that it
//! stands for.
//!
//! A head of up to 256 columns lies in the lanes of a warp, or of half a warp; a longer row is a team's.
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

/// The parameters of a norm at a quad of columns; absent ones change nothing, not even the sign of a zero.
#[derive(Clone, Copy)]
pub(crate) struct Affine4 {
    pub weight: [f32; 4],
    pub bias: [f32; 4],
}

impl Affine4 {
    /// Those of no norm.
    pub const NONE: Self = Self { weight: [1.0; 4], bias: [-0.0; 4] };
}

/// A norm, or none.
pub(crate) trait HeadNorm: Copy {
    /// May angles be made in the kernel? Sine and cosine are much code, which stands in the kernels without a
    /// norm alone.
    const MAKES_ANGLES: bool;
    /// Of heads whose quads the group's lanes hold, quad `rank + tile * width` each; zeros past their end.
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Vec4<T>; TILES]; HEADS],
        group: Group,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> [Stats; HEADS];
    /// Of the team's row.
    fn of_row<T: Elem, A: Access>(
        row: &TeamRow<T, A>,
        memory: &mut SharedMemory,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> Stats;
    /// The thread's parameters, at its quad.
    fn parameters<T: Elem, A: Access>(affine: &AffineRow<T, A>) -> Affine4;
    /// The normalised quads times weight plus bias.
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
        // torch has 128 threads a row: a tile of ours is one of its warps, and those beyond are empty.
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

/// The quads, rounded to the element type if `wanted`: asked once for all of them.
#[inline(always)]
pub(crate) fn round_if<T: Elem, const VEC4S: usize>(
    wanted: bool,
    vec4s: [[f32; 4]; VEC4S],
) -> [[f32; 4]; VEC4S] {
    if wanted { vec4s.map(round::<T>) } else { vec4s }
}
