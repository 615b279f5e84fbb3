//! Copies tiles of an operand from global to shared memory.
use cuda_std::mem;
use cuda_std::mma::Chunk;
use cuda_std::prelude::*;

use super::params::{BUFFER_DEPTH, MatrixRows, THREADS};
use super::swizzle::SwizzledRows;

/// 16-byte chunks per row of a tile.
pub(super) const ROW_CHUNKS: u32 = BUFFER_DEPTH / 8;
/// Number of rows that the block copies in one pass, in which each thread copies one 16-byte chunk. The
/// number is a multiple of 8, so a thread's chunk has the same position in the swizzled rows in every pass.
pub(super) const PASS_ROWS: u32 = THREADS / ROW_CHUNKS;

/// Copies the tiles of one operand to shared memory, in ascending order of K. All threads of the block copy
/// together, in several passes. In each pass, a thread copies one 16-byte chunk. `VECTOR` is true if rows are
/// aligned to 16 bytes. If it is false, the threads load single elements. If `HALVES` is true, the operand
/// consists of two halves, and passes alternate between rows of the first and of the second half.
#[derive(Clone, Copy)]
pub(super) struct Loader<const VECTOR: bool, const HALVES: bool> {
    /// Global address of the 16-byte chunk that this thread copies in the first pass of the next tile.
    from: *const u8,
    /// Distance of the rows of two passes in bytes.
    pass_bytes: u64,
    /// Distance of the two halves in bytes.
    half_bytes: i64,
    /// Number of rows of the operand, minus the row that this thread copies in the first pass. The value is
    /// not positive if the operand does not have this row.
    rows_left: i32,
    /// Number of columns of the operand (K), minus the first column that this thread copies in the next tile.
    depth_left: i32,
    /// Index of this thread's chunk in a tile in shared memory.
    to: u32,
}

impl<const VECTOR: bool, const HALVES: bool> Loader<VECTOR, HALVES> {
    /// Returns the loader for the tiles that start at row `first` of the operand, which has `depth` columns.
    /// The second half of the operand starts `half` rows after the first half.
    #[inline(always)]
    pub fn of(operand: &MatrixRows, first: u32, depth: u32, half: i32) -> Self {
        let thread = thread::index()[0];
        let (row, chunk) = (thread / ROW_CHUNKS, thread % ROW_CHUNKS);
        let offset = u64::from(first + row) * operand.row_bytes + u64::from(16 * chunk);
        Self {
            from: operand.base.wrapping_add(offset as usize),
            pass_bytes: u64::from(PASS_ROWS) * operand.row_bytes,
            half_bytes: i64::from(half) * operand.row_bytes.cast_signed(),
            rows_left: operand.rows as i32 - (first + row) as i32,
            depth_left: depth as i32 - 8 * chunk as i32,
            to: SwizzledRows::<ROW_CHUNKS>::index(row, chunk),
        }
    }

    /// Copies this thread's 16-byte chunk of pass number `pass` of the next tile. A chunk outside the operand
    /// becomes zero.
    ///
    /// # Safety
    /// The operand is readable. `tile` has the rows of the pass, and no thread accesses them until the copy
    /// is complete.
    #[inline(always)]
    pub unsafe fn copy(&self, tile: SwizzledRows<ROW_CHUNKS>, pass: u32) {
        let to = self.to + pass * PASS_ROWS * ROW_CHUNKS;
        let (pass, half_bytes) = match HALVES {
            true if pass % 2 == 1 => (pass / 2, self.half_bytes),
            true => (pass / 2, 0),
            false => (pass, 0),
        };
        let from = self.from.wrapping_add((u64::from(pass) * self.pass_bytes) as usize);
        let from = from.wrapping_offset(half_bytes as isize);
        let wanted = self.rows_left > (pass * PASS_ROWS) as i32 && self.depth_left > 0;
        // SAFETY: the copy reads the operand only if `wanted` is true, which means that the first element of
        // the 16-byte chunk is inside the operand. The number of columns is a multiple of 8, so the whole
        // chunk is. The caller guarantees that no thread accesses the destination.
        unsafe {
            if VECTOR {
                tile.copy(to, from, wanted);
            } else {
                tile.set(to, if wanted { gather(from) } else { Chunk([0; 4]) });
            }
        }
    }

    /// Goes to the next tile along K.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.from = self.from.wrapping_add(2 * BUFFER_DEPTH as usize);
        self.depth_left -= BUFFER_DEPTH as i32;
    }

    /// Returns the number of passes for a tile of `rows` rows.
    #[inline(always)]
    pub const fn passes(rows: u32) -> u32 {
        rows / PASS_ROWS
    }
}

/// Reads eight elements of 16 bits.
///
/// # Safety
/// The elements at `from` are readable.
#[inline(always)]
unsafe fn gather(from: *const u8) -> Chunk {
    // SAFETY: each load reads one of eight elements, which the caller guarantees to be readable. They are
    // aligned to 2 bytes.
    let bits = |at: usize| u32::from(unsafe { mem::load_u16(from.wrapping_add(2 * at), Load::ReadOnly) });
    Chunk([0, 2, 4, 6].map(|at| bits(at) | bits(at + 1) << 16))
}
