//! RMSNorm and RoPE of rows of queries and keys. A row stays in registers from its load until the result is
//! written. RoPE rotates either all columns or no column. The rotated pairs are interleaved: each pair
//! consists of two adjacent columns.
//!
//! If all heads of a token are normalised together, they are one row. Otherwise, a row is one long head. A
//! team is the set of threads that share a row. A block has one team for the query row and one for the key
//! row of a token. Both rows need the same angles, so one of the teams usually finds them in L1.
//!
//! In torch's fused RMSNorm kernel, a thread has vectors of four columns. A thread of this kernel has vectors
//! of eight columns. Such a vector contains the columns of two adjacent torch threads. To obtain torch's
//! summation order, a thread of this kernel computes one sum for each of these torch threads. It adds the two
//! sums without a shuffle.
use cuda_std::prelude::*;

use super::norm::HeadNorm;
use super::norm_halves::{HalvesNorm, with_lane};
use super::params::{HeadNormArg, HeadParams, HeadsOperand, Rotary};
use super::rms_norm::Rms;
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::Token;
use crate::layout::vec8::{LEN, Vec8};
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::TeamCols;

/// Threads per row. torch's fused RMSNorm kernel uses 128.
pub const TEAM: u32 = 64;
/// Columns per tile. A tile has one vec8 (eight columns) for each thread that shares the row.
pub const TILE: u32 = LEN * TEAM;

/// Normalises, rotates and writes the row of the calling thread's team (the threads that share this row).
///
/// # Safety
/// The safety conditions of [`head_rows`](super::block::head_rows) apply. In addition:
///
/// - A block has one team of [`TEAM`] threads for the query row and one team for the key row. If queries or
///   keys are absent, the block has no team for them. The grid is `[tokens, 1, batches]`.
/// - Rows have at most `IN_REGISTERS` tiles of [`TILE`] columns, and permit 16-byte accesses.
/// - `rotary` rotates either all columns, in interleaved pairs, or no column.
/// - If columns are rotated, the row is one head, or all heads have the same angles and each tile contains a
///   whole number of heads.
#[inline(always)]
pub(crate) unsafe fn register_rows<T: Elem, const IN_REGISTERS: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let mut memory = SharedMemory::of_launch();
    let ([rank, team, _], [number, _, batch]) = (thread::index(), thread::block_index());
    let operand = if team < p.warp_tasks[0] { &q } else { &k };
    let token = Token { batch, number };
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // Only the calling team (the threads that share this row) writes this row.
    unsafe {
        let row = RegisterRow::<T, IN_REGISTERS>::read(operand, token, rank);
        let is_rotated = rotary.rotates(token, 0);
        // If a tile contains a whole number of heads, each thread needs the same angles for every tile.
        // Columns that are one tile apart then have the same position in their heads.
        let repeats = p.dim <= TILE;
        let mut angles = [Angles::NONE; 2];
        if is_rotated && row.has(0) {
            let column = if repeats { row.at(0) & (p.dim - 1) } else { row.at(0) };
            angles = rotary.vec4s::<T, 2>(token, 0, [column, column + 4]);
        }
        let cols = TeamCols { count: operand.cols as f32, inv: operand.inv_cols, by_fours: true };
        let stats = row.stats(&mut memory, cols, p.norm);
        let rotate = |y: [[f32; 4]; 2], angles: &[Angles; 2]| {
            if is_rotated { rotary.rotate::<T, 2>(y, y.map(interleaved_partners), angles) } else { y }
        };
        if repeats {
            row.write(operand, stats, p.norm, |_, y| rotate(y, &angles));
        } else {
            row.write(operand, stats, p.norm, |tile, y| {
                if tile > 0 && is_rotated {
                    let column = LEN * rank + tile as u32 * TILE;
                    angles = rotary.vec4s::<T, 2>(token, 0, [column, column + 4]);
                }
                rotate(y, &angles)
            });
        }
    }
}

/// The calling thread's columns of a row. The thread shares this row with other threads, its team.
struct RegisterRow<T, const IN_REGISTERS: usize> {
    x: [Vec8<T>; IN_REGISTERS],
    y: *mut T,
    rank: u32,
    cols: u32,
}

impl<T: Elem, const IN_REGISTERS: usize> RegisterRow<T, IN_REGISTERS> {
    /// Loads this thread's columns of the row of `token`. `operand` is the query tensor or the key tensor.
    ///
    /// # Safety
    /// The safety conditions of [`register_rows`] apply.
    #[inline(always)]
    unsafe fn read(operand: &HeadsOperand, token: Token, rank: u32) -> Self {
        let mut row =
            Self { x: [Vec8::ZERO; IN_REGISTERS], y: operand.y.at(token, 0), rank, cols: operand.cols };
        let x = operand.x.at::<T>(token, 0);
        for tile in 0..IN_REGISTERS {
            // SAFETY: `has` is true only if the row has these columns.
            row.x[tile] = unsafe { Vec8::load(x.wrapping_add(row.at(tile) as usize), row.has(tile)) };
        }
        row
    }

    /// Returns the thread's first column of `tile`.
    #[inline(always)]
    fn at(&self, tile: usize) -> u32 {
        LEN * self.rank + tile as u32 * TILE
    }

    /// Returns whether the thread has columns in `tile`.
    #[inline(always)]
    fn has(&self, tile: usize) -> bool {
        self.at(tile) < self.cols
    }

    /// Returns the reciprocal RMS of the row, with the summation order of torch's fused RMSNorm: see
    /// [`FusedRms`](crate::norm::reduce::team::FusedRms). All threads of the block must call this function,
    /// because this function synchronizes the block.
    #[inline(always)]
    fn stats(&self, memory: &mut SharedMemory, cols: TeamCols, how: HeadNormArg) -> Stats {
        let mut sums = [0.0; 2];
        for tile in 0..IN_REGISTERS {
            let vec4s = self.x[tile].vec4s();
            for vec4 in 0..2 {
                sums[vec4] = vec4s[vec4].iter().fold(sums[vec4], |sum, x| fma(*x, *x, sum));
            }
        }
        let [even, odd] = with_lane(with_lane(with_lane(with_lane(sums, 8), 4), 2), 1);
        // 16 threads of this kernel emulate the 32 threads of a torch warp.
        let ([rank, team, _], [_, teams, _]) = (thread::index(), thread::block_dim());
        let partial = memory.take::<f32>(4 * teams);
        if rank % 16 == 0 {
            // SAFETY: the store writes the element of `partial` that belongs to this emulated torch warp.
            // Only the first of the warp's 16 threads writes this element, before the barrier.
            unsafe { partial.set(4 * team + rank / 16, even + odd) };
        }
        block::sync();
        // SAFETY: the load reads one of the four elements of `partial` that belong to this team (the threads
        // that share the row). All four were written before the barrier.
        let of = |warp: u32| unsafe { partial.get(4 * team + warp) };
        let all = (of(0) + of(2)) + (of(1) + of(3));
        Stats { mean: 0.0, inv: rsqrt(all / cols.count + how.eps) }
    }

    /// Normalises this thread's columns, calls `rotate` with each vector of eight normalised columns, and
    /// writes the vectors that `rotate` returns.
    ///
    /// # Safety
    /// The safety conditions of [`register_rows`] apply.
    #[inline(always)]
    unsafe fn write(
        &self,
        operand: &HeadsOperand,
        stats: Stats,
        how: HeadNormArg,
        mut rotate: impl FnMut(usize, [[f32; 4]; 2]) -> [[f32; 4]; 2],
    ) {
        for tile in 0..IN_REGISTERS {
            if !self.has(tile) {
                return;
            }
            let at = self.at(tile);
            // SAFETY: the loads read the weight in the columns `at` to `at + 7`. The host checked that the
            // weight has as many columns as the row.
            let parameters = unsafe { Rms::parameters_at::<T>(&operand.affine, [at, at + 4]) };
            let normed = Rms::apply::<T, 2>(stats, self.x[tile].opaque_lanes().vec4s(), &parameters, how);
            // SAFETY: the store writes eight columns of the row. `has` is true, so the row has these columns.
            // No other thread writes them.
            unsafe { Vec8::store(self.y.wrapping_add(at as usize), rotate(tile, normed)) };
        }
    }
}
