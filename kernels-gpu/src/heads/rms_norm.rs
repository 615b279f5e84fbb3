//! RMSNorm of queries and keys, with one of two summation orders: the order of torch's fused kernel
//! (`torch.nn.RMSNorm`), or the order of `x.float().pow(2).mean(-1)`.
use cuda_std::prelude::*;
use cuda_std::vec4::Access;

use super::norm::{Affine4, HeadNorm, round_if};
use super::params::HeadNormArg;
use super::subwarp::Group;
use crate::norm::affine::{AffineRow, Parameters as _};
use crate::norm::operand::zip;
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::{FusedRms, TeamCols, TeamMeanSquare};
use crate::norm::reduce::team_row::TeamRow;

/// RMSNorm, without a bias. `HeadNormArg::fused` selects the summation order.
#[derive(Clone, Copy)]
pub(crate) struct Rms;

impl HeadNorm for Rms {
    const MAKES_ANGLES: bool = false;
    #[inline(always)]
    fn of_lanes<T: Elem, const TILES: usize, const HEADS: usize>(
        x: &[[Vec4<T>; TILES]; HEADS],
        group: Group,
        cols: TeamCols,
        how: HeadNormArg,
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
        let squares = |vec4s: &[Vec4<T>; TILES]| {
            let mut squares = [0.0; 4];
            for tile in 0..TILES {
                squares = zip(squares, vec4s[tile].lanes(), |sum, x| sum + x * x);
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
    fn of_row<T: Elem, A: Access>(
        row: &TeamRow<T, A>,
        memory: &mut SharedMemory,
        cols: TeamCols,
        how: HeadNormArg,
    ) -> Stats {
        if how.fused != 0 {
            row.reduce::<FusedRms>(memory, cols, how.eps)
        } else {
            row.reduce::<TeamMeanSquare>(memory, cols, how.eps)
        }
    }

    #[inline(always)]
    fn parameters<T: Elem, A: Access>(affine: &AffineRow<T, A>) -> Affine4 {
        let ((weight, _), none) = (affine.lanes(0), Affine4::NONE);
        Affine4 { weight: weight.unwrap_or(none.weight), ..none }
    }

    #[inline(always)]
    fn apply<T: Elem, const VEC4S: usize>(
        stats: Stats,
        x: [[f32; 4]; VEC4S],
        parameters: &[Affine4; VEC4S],
        how: HeadNormArg,
    ) -> [[f32; 4]; VEC4S] {
        let mut lanes = x.map(|vec4| vec4.map(|x| stats.inv * x));
        lanes = round_if::<T, VEC4S>(how.before_weight != 0, lanes);
        for i in 0..VEC4S {
            lanes[i] = zip(lanes[i], parameters[i].weight, |n, weight| n * weight);
        }
        round_if::<T, VEC4S>(how.round != 0, lanes)
    }
}
