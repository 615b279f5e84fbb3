//! Heads of 64 or 128 columns, rotated in full or not at all: a lane has a quad in each half of its heads, so
//! that the partners of its columns are its own in both kinds of pairs.
//!
//! A warp has several heads of one token in flight together, and the token's angles in registers for its
//! share of them.
use cuda_std::prelude::*;

use super::norm_halves::HalvesNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use super::partition::WarpTask;
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::{put_vec4_at, vec4_at};

/// # Safety As [`head_lanes`](super::warp::head_lanes), for heads of `DIM` columns, 64 or 128, less than 2^29
/// elements apart. `rotary` rotates all columns or none, and all heads alike. The grid is that of
/// [`WarpTask::of_grid`].
#[inline(always)]
pub(crate) unsafe fn head_halves<T: Elem, N: HalvesNorm, const DIM: u32, const TOGETHER: usize>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let Some(task) = WarpTask::of_grid(&p) else { return };
    let operand = if task.keys { &k } else { &q };
    let mut lanes = HalfLane::<T, DIM>::of(operand, task, &p);
    let columns = [lanes.column, lanes.column + DIM / 2];
    let is_rotated = rotary.rotates(task.token, 0);
    let mut angles = [Angles::NONE; 2];
    // SAFETY: as the caller promises; the heads are the warp's own.
    unsafe {
        let mut x = lanes.read::<TOGETHER>();
        if is_rotated {
            angles = rotary.vec4s::<T, 2>(task.token, 0, columns);
        }
        let parameters = N::parameters_at::<T>(&operand.affine, columns);
        loop {
            let stats = N::of_halves::<T, DIM, TOGETHER>(&x, p.norm);
            for nth in 0..TOGETHER {
                let own = x[nth].map(|vec4| vec4.opaque_lanes().lanes());
                let mut y = N::apply::<T, 2>(stats[nth], own, &parameters, p.norm);
                if is_rotated {
                    y = rotated::<T>(&rotary, y, &angles);
                }
                lanes.write(nth as u32, y);
            }
            if !lanes.go_on(TOGETHER as u32) {
                return;
            }
            x = lanes.read::<TOGETHER>();
        }
    }
}

/// A lane's quads, half a head apart, rotated.
#[inline(always)]
pub(crate) fn rotated<T: Elem>(rotary: &Rotary, x: [[f32; 4]; 2], angles: &[Angles; 2]) -> [[f32; 4]; 2] {
    let [near, far] = x;
    if rotary.halves != 0 {
        rotary.rotate::<T, 2>(x, [far.map(|x| -x), near], angles)
    } else {
        rotary.rotate::<T, 2>(x, [interleaved_partners(near), interleaved_partners(far)], angles)
    }
}

/// Where a lane is in the heads that its warp has.
struct HalfLane<T, const DIM: u32> {
    /// The lane's first column of its head, to read and to write.
    x: *const T,
    y: *mut T,
    /// Elements to the lane's next head.
    x_step: i32,
    y_step: i32,
    /// Heads of the warp from the lane's own on.
    left: i32,
    /// The lane's first column.
    column: u32,
}

impl<T: Elem, const DIM: u32> HalfLane<T, DIM> {
    /// Lanes that share a head.
    const WIDTH: u32 = DIM / 8;
    /// Heads side by side in a warp.
    const HEADS_AT_ONCE: u32 = warp::SIZE / Self::WIDTH;

    /// The calling lane's, whose warp has `task` of `operand`.
    #[inline(always)]
    fn of(operand: &HeadsOperand, WarpTask { token, first, .. }: WarpTask, p: &HeadParams) -> Self {
        let (head, column) = (first + warp::lane() / Self::WIDTH, warp::lane() % Self::WIDTH * 4);
        Self {
            x: operand.x.at::<T>(token, head).wrapping_add(column as usize),
            y: operand.y.at::<T>(token, head).wrapping_add(column as usize),
            x_step: Self::HEADS_AT_ONCE as i32 * operand.x.head_stride as i32,
            y_step: Self::HEADS_AT_ONCE as i32 * operand.y.head_stride as i32,
            left: operand.heads.min(first + p.heads_per_warp) as i32 - head as i32,
            column,
        }
    }

    /// Has the warp the lane's `nth` head from here?
    #[inline(always)]
    fn has(&self, nth: u32) -> bool {
        ((nth * Self::HEADS_AT_ONCE) as i32) < self.left
    }

    /// The lane's next `HEADS` heads; zeros past the last one.
    ///
    /// # Safety
    /// As [`head_halves`].
    #[inline(always)]
    unsafe fn read<const HEADS: usize>(&mut self) -> [[Vec4<T>; 2]; HEADS] {
        let mut heads = [[Vec4::<T>::ZERO; 2]; HEADS];
        for nth in 0..HEADS {
            let has = self.has(nth as u32);
            // SAFETY: the head is one of the side's and the columns are the head's.
            heads[nth] = [0, DIM / 2].map(|at| unsafe { vec4_at(self.x, at, has) });
            self.x = self.x.wrapping_offset(opaque_step(self.x_step));
        }
        heads
    }

    /// Writes the lane's `nth` head from here.
    ///
    /// # Safety
    /// As [`head_halves`].
    #[inline(always)]
    unsafe fn write(&mut self, nth: u32, [near, far]: [[f32; 4]; 2]) {
        let has = self.has(nth);
        // SAFETY: as for `read`; the columns are this lane's alone.
        unsafe {
            put_vec4_at(self.y, 0, Vec4::from_lanes(near), has);
            put_vec4_at(self.y, DIM / 2, Vec4::from_lanes(far), has);
        }
        self.y = self.y.wrapping_offset(opaque_step(self.y_step));
    }

    /// Passes `heads` of the lane's. Has the warp more?
    #[inline(always)]
    fn go_on(&mut self, heads: u32) -> bool {
        self.left -= (heads * Self::HEADS_AT_ONCE) as i32;
        // Its first lane has most of them left.
        self.left + (warp::lane() / Self::WIDTH) as i32 > 0
    }
}

/// The same number, of which the compiler does not know that it is: it would keep a pointer for each head of
/// a batch.
#[inline(always)]
fn opaque_step(step: i32) -> isize {
    let [step, _] = thread::opaque([step as u32, 0]);
    step as i32 as isize
}
