//! Reads operands from shared memory and multiplies them.
use cuda_std::mma::{A, B, C, MatrixElem};
use cuda_std::prelude::*;

use super::loader::ROW_CHUNKS;
use super::swizzle::SwizzledRows;

/// A warp's accumulators of `16 * M16` rows and `16 * N16` columns. Each 16 x 16 block consists of two MMA
/// accumulators (16 x 8): its left half and its right half.
pub(super) type Sums<const M16: usize, const N16: usize> = [[[C; 2]; N16]; M16];

/// A buffer in shared memory, with a tile of `x` and a tile of `w`.
#[derive(Clone, Copy)]
pub(super) struct RingBuffer {
    pub x: SwizzledRows<ROW_CHUNKS>,
    pub w: SwizzledRows<ROW_CHUNKS>,
}

/// Two 16-byte chunks of a buffer, whose addresses this lane passes to `ldmatrix`. One chunk belongs to the
/// first 16 rows of the warp's part of the result, the other one to its first 16 columns.
#[derive(Clone, Copy)]
pub(super) struct WarpLanes {
    x: u32,
    w: u32,
}

impl WarpLanes {
    /// Returns the 16-byte chunks for a warp whose part of the block's tile starts at row `row` and column
    /// `column`.
    #[inline(always)]
    pub fn of([row, column]: [u32; 2]) -> Self {
        let lane = warp::lane();
        let index = SwizzledRows::<ROW_CHUNKS>::index;
        Self {
            x: index(row + lane % 16, lane / 16),
            w: index(column + lane % 8 + lane / 16 * 8, lane / 8 % 2),
        }
    }
}

/// A warp's operands of one step, 16 elements of K.
#[derive(Clone, Copy)]
pub(super) struct StepOperands<const M16: usize, const N16: usize> {
    a: [A; M16],
    b: [[B; 2]; N16],
}

impl<const M16: usize, const N16: usize> StepOperands<M16, N16> {
    /// Reads the MMA operands of step number `step` of a buffer. A step has 16 elements of K.
    ///
    /// # Safety
    /// The copies to the buffer are complete, and a barrier followed.
    #[inline(always)]
    pub unsafe fn load(buffer: &RingBuffer, lanes: WarpLanes, step: usize) -> Self {
        // SAFETY: the caller guarantees that the copies to the buffer are complete, and that a barrier
        // followed.
        unsafe {
            let a = core::array::from_fn(|row| buffer.x.matrices(lanes.x, row, step));
            let b = core::array::from_fn(|column| {
                let [a, b, c, d] = buffer.w.matrices(lanes.w, column, step);
                [[a, b], [c, d]]
            });
            Self { a, b }
        }
    }

    /// Multiplies the operands and adds the products to the accumulators `sums`, row by row of 16 x 16
    /// blocks. After each row of blocks, the function calls `then` with the number of this row.
    #[inline(always)]
    pub fn multiply<T: MatrixElem>(&self, sums: &mut Sums<M16, N16>, mut then: impl FnMut(usize)) {
        for row in 0..M16 {
            for column in 0..N16 {
                for side in 0..2 {
                    let sum = &mut sums[row][column][side];
                    *sum = T::mma(self.a[row], self.b[column][side], *sum);
                }
            }
            then(row);
        }
    }
}
