//! Heads of up to 256 columns in the lanes of warps: normalised, rotated, written.
//!
//! A warp has several heads of one token, so that several loads are in flight and the token's angles are read
//! once for all of them. Queries and keys are one list of heads, queries first.
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

/// # Safety
/// The host checked that each side's `x` and `y` hold `p.rows` tokens of its heads of `p.dim` columns, at
/// most `128 * TILES`, that the parameters of the norm and the tables are what their fields say, all readable
/// in quads, and that each `y` overlaps nothing else. The grid has a warp for each share of the list.
#[inline(always)]
pub(crate) unsafe fn head_lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let Some(task) = WarpTask::of_warp(&p) else { return };
    let operand = if task.keys { &k } else { &q };
    // SAFETY: as the caller promises; the heads are the warp's own.
    unsafe {
        let mut lanes = WarpHeads::<T, N, TILES>::of(operand, task, rotary, p);
        if rotary.by_head() {
            // Angles are most of what is read then, and of one head at a time.
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

/// A lane's part of the heads that a warp has.
struct WarpHeads<T, N, const TILES: usize> {
    /// The group's head, from which on the warp has `left`.
    x: *const T,
    y: *mut T,
    head: u32,
    left: u32,
    /// Elements to the group's next head.
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
    /// The calling lane's, whose warp has `task` of `operand`.
    ///
    /// # Safety
    /// As [`head_lanes`].
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
            // SAFETY: a row of the head's columns.
            let affine = unsafe { AffineRow::<T, Vectorized>::of(&operand.affine, columns) };
            lanes.parameters[tile] = N::parameters(&affine);
        }
        lanes
    }

    /// The lane's first column of `tile`.
    #[inline(always)]
    fn column(&self, tile: usize) -> u32 {
        4 * (self.group.rank + tile as u32 * self.group.width)
    }

    /// Are the lane's columns of `tile` rotated?
    #[inline(always)]
    fn is_rotated(&self, tile: usize) -> bool {
        self.rotary.rotates(self.token, self.column(tile))
    }

    /// Has the group's `nth` head from here columns for the lane in `tile`?
    #[inline(always)]
    fn has(&self, nth: usize, tile: usize) -> bool {
        let before = nth as u32 * side_by_side(self.p.dim) + self.group.base / self.group.width;
        before < self.left && self.column(tile) < self.p.dim
    }

    /// The angles of the group's head.
    ///
    /// # Safety
    /// As [`head_lanes`].
    #[inline(always)]
    unsafe fn angles(&self) -> [Angles; TILES] {
        let mut angles = [Angles::NONE; TILES];
        for tile in 0..TILES {
            if self.is_rotated(tile) && self.has(0, tile) {
                // SAFETY: a rotated token and column.
                angles[tile] = unsafe {
                    self.rotary.vec4::<T>(self.token, self.head, self.column(tile), N::MAKES_ANGLES)
                };
            }
        }
        angles
    }

    /// Normalises, rotates and writes the group's next `HEADS` heads.
    ///
    /// # Safety
    /// As [`head_lanes`].
    #[inline(always)]
    unsafe fn write<const HEADS: usize>(&mut self, angles: [Angles; TILES]) {
        let mut x = [[Vec4::<T>::ZERO; TILES]; HEADS];
        for nth in 0..HEADS {
            for tile in 0..TILES {
                // SAFETY: the head is one of the side's and the column one of the head's.
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
                // SAFETY: as for `x`; the quad is this lane's alone.
                unsafe { put_vec4_at(self.y, self.column(tile), Vec4::from_lanes(y), self.has(nth, tile)) };
            }
            self.y = self.y.wrapping_offset(self.y_step as isize);
        }
        let heads = HEADS as u32 * side_by_side(self.p.dim);
        (self.head, self.left) = (self.head + heads, self.left.saturating_sub(heads));
    }

    /// The quad of `tile`, rotated if it is to be; partners half the columns away come from the lane that has
    /// them.
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
