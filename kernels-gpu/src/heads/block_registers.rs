//! RMSNorm of rows of heads that are normalised together, or of a long one, held in registers between reading
//! and writing, then rotation of all columns in pairs of neighbours. Queries and keys of a token are a
//! block's, so that its angles come from L1.
//!
//! A thread has octets, each two of torch's quads: it plays two of torch's threads, and their sum needs no
//! exchange.
use cuda_std::prelude::*;

use super::norm::HeadNorm;
use super::norm_halves::{HalvesNorm, with_lane};
use super::params::{Normed, Params, Rotary, Side};
use super::rms_norm::Rms;
use super::rope::neighbours;
use super::rope_angles::Angles;
use crate::layout::heads::Token;
use crate::layout::vec8::{LEN, Octet};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::Cols;

/// Threads that hold a row; torch has 128.
pub const TEAM: u32 = 64;
/// Columns of a team's tile.
pub const TILE: u32 = LEN * TEAM;

/// # Safety
/// As [`head_rows`](super::block::head_rows), for a team of [`TEAM`] threads for each side that is there, in
/// a grid of tokens and batches, and rows of at most `HELD` tiles that can be accessed 16 bytes at a time.
/// `rotary` rotates all columns or none, in pairs of neighbours; a tile has a whole number of heads, which
/// share their angles, or the row is one head.
#[inline(always)]
pub(crate) unsafe fn held_rows<T: Elem, const HELD: usize>(q: Side, k: Side, rotary: Rotary, p: Params) {
    let mut memory = SharedMemory::of_launch();
    let ([rank, team, _], [number, _, batch]) = (thread::index(), thread::block_index());
    let side = if team < p.shares[0] { &q } else { &k };
    let token = Token { batch, number };
    // SAFETY: as the caller promises; a team's row is its own.
    unsafe {
        let row = HeldRow::<T, HELD>::read(side, token, rank);
        let turns = rotary.rotates(token, 0);
        // Columns a tile apart are at the same place of their heads then.
        let repeats = p.dim <= TILE;
        let mut angles = [Angles::NONE; 2];
        if turns && row.has(0) {
            let column = if repeats { row.at(0) & (p.dim - 1) } else { row.at(0) };
            angles = rotary.quads::<T, 2>(token, 0, [column, column + 4]);
        }
        let cols = Cols { count: side.cols as f32, inv: side.inv_cols, by_fours: true };
        let stats = row.stats(&mut memory, cols, p.norm);
        let turn = |y: [[f32; 4]; 2], angles: &[Angles; 2]| {
            if turns { rotary.turn::<T, 2>(y, y.map(neighbours), angles) } else { y }
        };
        if repeats {
            row.write(side, stats, p.norm, |_, y| turn(y, &angles));
        } else {
            row.write(side, stats, p.norm, |tile, y| {
                if tile > 0 && turns {
                    let column = LEN * rank + tile as u32 * TILE;
                    angles = rotary.quads::<T, 2>(token, 0, [column, column + 4]);
                }
                turn(y, &angles)
            });
        }
    }
}

/// A thread's part of its team's row.
struct HeldRow<T, const HELD: usize> {
    x: [Octet<T>; HELD],
    y: *mut T,
    rank: u32,
    cols: u32,
}

impl<T: Elem, const HELD: usize> HeldRow<T, HELD> {
    /// The row of `side` at `token`.
    ///
    /// # Safety
    /// As [`held_rows`].
    #[inline(always)]
    unsafe fn read(side: &Side, token: Token, rank: u32) -> Self {
        let mut row = Self { x: [Octet::ZERO; HELD], y: side.y.at(token, 0), rank, cols: side.cols };
        let x = side.x.at::<T>(token, 0);
        for tile in 0..HELD {
            // SAFETY: columns of the row.
            row.x[tile] = unsafe { Octet::load(x.wrapping_add(row.at(tile) as usize), row.has(tile)) };
        }
        row
    }

    /// The thread's first column of `tile`.
    #[inline(always)]
    fn at(&self, tile: usize) -> u32 {
        LEN * self.rank + tile as u32 * TILE
    }

    /// Has the thread columns in `tile`?
    #[inline(always)]
    fn has(&self, tile: usize) -> bool {
        self.at(tile) < self.cols
    }

    /// What the row is normalised with, in the order of torch's fused RMSNorm: see
    /// [`FusedRms`](crate::norm::reduce::team::FusedRms). Every thread of the block calls it.
    #[inline(always)]
    fn stats(&self, memory: &mut SharedMemory, cols: Cols, how: Normed) -> Stats {
        let mut sums = [0.0; 2];
        for tile in 0..HELD {
            let quads = self.x[tile].quads();
            for quad in 0..2 {
                sums[quad] = quads[quad].iter().fold(sums[quad], |sum, x| fma(*x, *x, sum));
            }
        }
        let [even, odd] = with_lane(with_lane(with_lane(with_lane(sums, 8), 4), 2), 1);
        // A warp of ours is two of torch's.
        let ([rank, team, _], [_, teams, _]) = (thread::index(), thread::block_dim());
        let partial = memory.take::<f32>(4 * teams);
        if rank % 16 == 0 {
            // SAFETY: a slot for each of torch's warps, which the first of its threads writes before the
            // barrier.
            unsafe { partial.set(4 * team + rank / 16, even + odd) };
        }
        block::sync();
        // SAFETY: every slot was written before the barrier.
        let of = |warp: u32| unsafe { partial.get(4 * team + warp) };
        let all = (of(0) + of(2)) + (of(1) + of(3));
        Stats { mean: 0.0, inv: rsqrt(all / cols.count + how.eps) }
    }

    /// Normalises the row, has each octet turned, and writes it.
    ///
    /// # Safety
    /// As [`held_rows`].
    #[inline(always)]
    unsafe fn write(
        &self,
        side: &Side,
        stats: Stats,
        how: Normed,
        mut turn: impl FnMut(usize, [[f32; 4]; 2]) -> [[f32; 4]; 2],
    ) {
        for tile in 0..HELD {
            if !self.has(tile) {
                return;
            }
            let at = self.at(tile);
            // SAFETY: parameters have as many columns as the row.
            let parameters = unsafe { Rms::parameters_at::<T>(&side.affine, [at, at + 4]) };
            let normed = Rms::apply::<T, 2>(stats, self.x[tile].forget_lanes().quads(), &parameters, how);
            // SAFETY: as for `read`; a team's row is its own.
            unsafe { Octet::store(self.y.wrapping_add(at as usize), turn(tile, normed)) };
        }
    }
}
