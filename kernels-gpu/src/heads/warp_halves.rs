//! Normalises and rotates (RoPE) heads of 64 or 128 columns. RoPE rotates either all columns or none.
//!
//! A lane has four columns in each half of a head. The lane therefore has both columns of each of its RoPE
//! pairs. This is true for interleaved pairs (adjacent columns) and for half-split pairs (columns half a head
//! apart).
//!
//! A warp processes several heads of one token. The loads of these heads are in flight together, and the
//! angles of the token stay in registers.
use cuda_std::prelude::*;

use super::norm_halves::HalvesNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use super::partition::WarpTask;
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::{put_vec4_at, vec4_at};

/// Normalises, rotates and writes the heads of the calling warp. Each lane processes `TOGETHER` heads at a
/// time.
///
/// # Safety
/// The safety conditions of [`head_lanes`](super::warp::head_lanes) apply. In addition:
///
/// - The head dimension is `DIM`, 64 or 128, and head strides are below 2^29 elements.
/// - `rotary` rotates all columns or none, with the same angles for all heads.
/// - The grid is `[tokens, blocks per token, batches]`.
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
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // No other warp writes the heads of this task.
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

/// Applies RoPE to a lane's two vec4s (four columns each), which are half a head apart.
#[inline(always)]
pub(crate) fn rotated<T: Elem>(rotary: &Rotary, x: [[f32; 4]; 2], angles: &[Angles; 2]) -> [[f32; 4]; 2] {
    let [near, far] = x;
    if rotary.halves != 0 {
        rotary.rotate::<T, 2>(x, [far.map(|x| -x), near], angles)
    } else {
        rotary.rotate::<T, 2>(x, [interleaved_partners(near), interleaved_partners(far)], angles)
    }
}

/// State of the calling lane while its warp processes heads.
struct HalfLane<T, const DIM: u32> {
    /// Pointers to this lane's first column of its current head, in the input (`x`) and in the output (`y`).
    x: *const T,
    y: *mut T,
    /// Distance in elements to the lane's next head.
    x_step: i32,
    y_step: i32,
    /// Number of heads that the warp still has to process, from this lane's current head on. The number is
    /// zero or negative if the lane has no head left.
    left: i32,
    /// The lane's first column.
    column: u32,
}

impl<T: Elem, const DIM: u32> HalfLane<T, DIM> {
    /// Lanes that share a head.
    const WIDTH: u32 = DIM / 8;
    /// Number of heads that the lanes of a warp process at once.
    const HEADS_AT_ONCE: u32 = warp::SIZE / Self::WIDTH;

    /// Creates the state of the calling lane for the first head of `task` that this lane processes.
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

    /// Returns whether the lane still has a head with number `nth`. Numbers count from the lane's current
    /// head, which has number 0.
    #[inline(always)]
    fn has(&self, nth: u32) -> bool {
        ((nth * Self::HEADS_AT_ONCE) as i32) < self.left
    }

    /// Loads this lane's columns of its next `HEADS` heads, and advances the input pointer past these heads.
    /// For heads that do not exist, the result is zero.
    ///
    /// # Safety
    /// The safety conditions of [`head_halves`] apply.
    #[inline(always)]
    unsafe fn read<const HEADS: usize>(&mut self) -> [[Vec4<T>; 2]; HEADS] {
        let mut heads = [[Vec4::<T>::ZERO; 2]; HEADS];
        for nth in 0..HEADS {
            let has = self.has(nth as u32);
            // SAFETY: `vec4_at` reads four columns only if `has` is true. In this case, the operand has this
            // head. The columns are below `DIM`.
            heads[nth] = [0, DIM / 2].map(|at| unsafe { vec4_at(self.x, at, has) });
            self.x = self.x.wrapping_offset(opaque_step(self.x_step));
        }
        heads
    }

    /// Writes this lane's columns of one head, and advances the output pointer to the next head. `nth` is the
    /// number of this head among the heads that one call of [`HalfLane::read`] loaded.
    ///
    /// # Safety
    /// The safety conditions of [`head_halves`] apply.
    #[inline(always)]
    unsafe fn write(&mut self, nth: u32, [near, far]: [[f32; 4]; 2]) {
        let has = self.has(nth);
        // SAFETY: `put_vec4_at` writes four columns only if `has` is true. In this case, the operand has this
        // head. No other lane writes these columns.
        unsafe {
            put_vec4_at(self.y, 0, Vec4::from_lanes(near), has);
            put_vec4_at(self.y, DIM / 2, Vec4::from_lanes(far), has);
        }
        self.y = self.y.wrapping_offset(opaque_step(self.y_step));
    }

    /// Moves this lane on by `heads` heads. Returns whether any lane of the warp still has a head to process.
    #[inline(always)]
    fn go_on(&mut self, heads: u32) -> bool {
        self.left -= (heads * Self::HEADS_AT_ONCE) as i32;
        // All lanes must return the same result, but `left` counts the remaining heads from each lane's own
        // head. `lane / WIDTH` is the index of this head among the heads that the warp processes at once.
        // `left` plus this index is therefore the `left` of lane 0.
        self.left + (warp::lane() / Self::WIDTH) as i32 > 0
    }
}

/// Hides the value of `step` from the compiler. Otherwise, the compiler would compute the pointers of several
/// heads in advance, and keep all of them in registers.
#[inline(always)]
fn opaque_step(step: i32) -> isize {
    let [step, _] = thread::opaque([step as u32, 0]);
    step as i32 as isize
}
