//! Normalises and rotates (RoPE) heads of up to 256 columns. The lanes of a warp, or of half a warp, share
//! each head.
//!
//! A warp processes several heads of one token. If all heads have the same angles, the warp loads the angles
//! only once, and the loads of several heads are in flight together. The first warps of a token process its
//! query heads, and the remaining warps process its key heads.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::Vectorized;

use super::norm::{Affine4, HeadNorm};
use super::params::{HeadParams, HeadsOperand, Rotary, side_by_side, width};
use super::partition::WarpTask;
use super::rope_angles::Angles;
use super::subwarp::Group;
use crate::layout::heads::{Token, put_vec4_at, vec4_at};
use crate::norm::affine::AffineRow;
use crate::norm::reduce::team::TeamCols;

/// Normalises, rotates and writes the heads of the calling warp. Each lane processes `TOGETHER` heads at a
/// time.
///
/// # Safety
/// The host checked that:
///
/// - `x` and `y` of each operand (queries and keys) have `p.rows` tokens with `heads` heads of `p.dim`
///   columns;
/// - `p.dim` is at most `128 * TILES`;
/// - the parameters of the norm and the tables of angles have the sizes and types that their fields describe;
/// - all these tensors are accessible as aligned vectors of four elements;
/// - each `y` overlaps no other operand.
///
/// The grid has one warp for each [`WarpTask`] (the heads that one warp processes).
#[inline(always)]
pub(crate) unsafe fn head_lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let Some(task) = WarpTask::of_warp(&p) else { return };
    let operand = if task.keys { &k } else { &q };
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // No other warp writes the heads of this task.
    unsafe {
        let mut lanes = WarpHeads::<T, N, TILES>::of(operand, task, rotary, p);
        if rotary.by_head() {
            // The angles differ between heads here, so loading the angles causes most of the memory traffic.
            // Each group of lanes therefore loads the angles of one head, processes this head, and then goes
            // on to the next head.
            while lanes.left > 0 {
                let angles = lanes.angles();
                lanes.write::<1>(angles);
            }
        } else {
            let angles = lanes.angles();
            while lanes.left > 0 {
                lanes.write::<TOGETHER>(angles);
            }
        }
    }
}

/// State of the calling lane while its warp processes heads.
///
/// The lanes of a warp form one or two groups, and the lanes of a group share a head. A tile of a head has
/// four columns per lane of the group.
struct WarpHeads<T, N, const TILES: usize> {
    /// Pointers to column 0 of the current head of the group (the lanes that share a head). `x` points to the
    /// input, and `y` to the output.
    x: *const T,
    y: *mut T,
    /// The index of the group's current head.
    head: u32,
    /// Number of heads that the warp has not processed yet.
    left: u32,
    /// Distance in elements from the group's current head to its next head.
    x_step: i64,
    y_step: i64,
    parameters: [Affine4; TILES],
    cols: TeamCols,
    token: Token,
    group: Group,
    rotary: Rotary,
    p: HeadParams,
    norm: PhantomData<N>,
}

impl<T: Elem, N: HeadNorm, const TILES: usize> WarpHeads<T, N, TILES> {
    /// Creates the state for the first head of `task` that the calling lane's group processes. Loads the
    /// parameters of the norm.
    ///
    /// # Safety
    /// The safety conditions of [`head_lanes`] apply.
    #[inline(always)]
    unsafe fn of(
        operand: &HeadsOperand,
        WarpTask { token, first, .. }: WarpTask,
        rotary: Rotary,
        p: HeadParams,
    ) -> Self {
        let width = width(p.dim);
        let rank = warp::lane() % width;
        let group = Group { rank, base: warp::lane() - rank, width };
        let (head, at_once) = (first + warp::lane() / width, i64::from(warp::SIZE / width));
        let mut lanes = Self {
            x: operand.x.at(token, head),
            y: operand.y.at(token, head),
            head,
            left: operand.heads.min(first + p.heads_per_warp) - first,
            x_step: at_once * operand.x.head_stride,
            y_step: at_once * operand.y.head_stride,
            parameters: [Affine4::NONE; TILES],
            cols: TeamCols { count: p.dim as f32, inv: operand.inv_cols, by_fours: true },
            token,
            group,
            rotary,
            p,
            norm: PhantomData,
        };
        for tile in 0..TILES {
            let columns = Vec4Columns::of_one(lanes.column(tile), p.dim);
            // SAFETY: the host checked that weight and bias have `p.dim` columns.
            let affine = unsafe { AffineRow::<T, Vectorized>::of(&operand.affine, columns) };
            lanes.parameters[tile] = N::parameters(&affine);
        }
        lanes
    }

    /// Returns the lane's first column of `tile`.
    #[inline(always)]
    fn column(&self, tile: usize) -> u32 {
        4 * (self.group.rank + tile as u32 * self.group.width)
    }

    /// Returns whether the lane's columns of `tile` are rotated.
    #[inline(always)]
    fn is_rotated(&self, tile: usize) -> bool {
        self.rotary.rotates(self.token, self.column(tile))
    }

    /// Returns whether this lane has columns in tile `tile` of head `nth`. Heads are counted from the current
    /// head of the group (the lanes that share a head), which has number 0. The result is false if the warp
    /// does not have this head.
    #[inline(always)]
    fn has(&self, nth: usize, tile: usize) -> bool {
        let before = nth as u32 * side_by_side(self.p.dim) + self.group.base / self.group.width;
        before < self.left && self.column(tile) < self.p.dim
    }

    /// Returns the angles of the current head of the group (the lanes that share a head), for the columns of
    /// this lane.
    ///
    /// # Safety
    /// The safety conditions of [`head_lanes`] apply.
    #[inline(always)]
    unsafe fn angles(&self) -> [Angles; TILES] {
        let mut angles = [Angles::NONE; TILES];
        for tile in 0..TILES {
            if self.is_rotated(tile) && self.has(0, tile) {
                // SAFETY: `vec4` reads the entries of the tables for this token, head and column. The tables
                // have these entries, because this branch is executed only if RoPE rotates the token and the
                // column, and if the head exists.
                angles[tile] = unsafe {
                    self.rotary.vec4::<T>(self.token, self.head, self.column(tile), N::MAKES_ANGLES)
                };
            }
        }
        angles
    }

    /// Normalises, rotates and writes the next `HEADS` heads of the group (the lanes that share a head), and
    /// advances the pointers past these heads.
    ///
    /// # Safety
    /// The safety conditions of [`head_lanes`] apply.
    #[inline(always)]
    unsafe fn write<const HEADS: usize>(&mut self, angles: [Angles; TILES]) {
        let mut x = [[Vec4::<T>::ZERO; TILES]; HEADS];
        for nth in 0..HEADS {
            for tile in 0..TILES {
                // SAFETY: `vec4_at` reads four columns only if `has` is true. In this case, the operand has
                // this head, and the head has these columns.
                x[nth][tile] = unsafe { vec4_at(self.x, self.column(tile), self.has(nth, tile)) };
            }
            self.x = self.x.wrapping_offset(self.x_step as isize);
        }
        let stats = N::of_lanes(&x, self.group, self.cols, self.p.norm);
        for nth in 0..HEADS {
            let lanes = x[nth].map(|vec4| vec4.opaque_lanes().lanes());
            let lanes = N::apply::<T, TILES>(stats[nth], lanes, &self.parameters, self.p.norm);
            for tile in 0..TILES {
                let y = self.rotate(&lanes, tile, angles[tile]);
                // SAFETY: `put_vec4_at` writes four columns only if `has` is true. In this case, the operand
                // has these columns. No other lane writes them.
                unsafe { put_vec4_at(self.y, self.column(tile), Vec4::from_lanes(y), self.has(nth, tile)) };
            }
            self.y = self.y.wrapping_offset(self.y_step as isize);
        }
        let heads = HEADS as u32 * side_by_side(self.p.dim);
        (self.head, self.left) = (self.head + heads, self.left.saturating_sub(heads));
    }

    /// Returns this lane's four columns of `tile`, rotated if RoPE rotates these columns. For half-split
    /// pairs (columns `dim / 2` apart), the other column of a pair can be in a different lane. The lanes
    /// therefore exchange columns by shuffle.
    #[inline(always)]
    fn rotate(&self, lanes: &[[f32; 4]; TILES], tile: usize, angles: Angles) -> [f32; 4] {
        let mut partners = lanes[tile];
        if self.rotary.halves != 0 {
            let vec4 = self.rotary.partner(self.column(tile)) / 4;
            let (lane, from) = (vec4 % self.group.width, vec4 / self.group.width);
            for tile in 0..TILES {
                let theirs = lanes[tile].map(|x| self.group.from(lane, x));
                if TILES == 1 || from == tile as u32 {
                    partners = theirs;
                }
            }
        }
        if !self.is_rotated(tile) {
            return lanes[tile];
        }
        self.rotary.rotate_vec4::<T>(self.column(tile), lanes[tile], partners, angles)
    }
}
