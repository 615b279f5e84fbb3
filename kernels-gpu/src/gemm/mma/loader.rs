//! Copies tiles of an operand from global to shared memory.
use cuda_std::mem;
use cuda_std::mma::Chunk;
use cuda_std::prelude::*;

use super::params::{BUFFER_DEPTH, MatrixRows, THREADS};
use super::swizzle::SwizzledRows;

/// 16-byte chunks per row of a tile.
pub(super) const ROW_CHUNKS: u32 = BUFFER_DEPTH / 8;
/// Rows that the block copies with one chunk per thread. The number is a multiple of 8, so a thread has the
/// same position in the swizzled rows each time.
pub(super) const PASS_ROWS: u32 = THREADS / ROW_CHUNKS;

/// Copies tiles of one operand, in the order of K. All threads of the block copy together. In a pass, each
/// thread copies one chunk. `VECTOR` is true if rows are aligned to 16 bytes. Otherwise the threads load
/// single elements. If `HALVES` is true, the rows of every second pass come from a second half of the
/// operand.
#[derive(Clone, Copy)]
pub(super) struct Loader<const VECTOR: bool, const HALVES: bool> {
    /// Address of this thread's chunk in the first pass of the next tile.
    from: *const u8,
    /// Distance of the rows of two passes in bytes.
    pass_bytes: u64,
    /// Distance of the two halves in bytes.
    half_bytes: i64,
    /// Number of rows of the operand, minus this thread's row in the first pass. Negative if there is no such
    /// row.
    rows_left: i32,
    /// Number of columns of the operand (K), minus the first column of this thread's chunk in the next tile.
    depth_left: i32,
    /// Index of this thread's chunk in a tile in shared memory.
    to: u32,
}

impl<const VECTOR: bool, const HALVES: bool> Loader<VECTOR, HALVES> {
    /// Returns the loader for the tiles that start at row `first` of the operand, with `depth` columns in
    /// all. The second half starts `half` rows after the operand.
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

    /// Copies this thread's chunk of pass number `pass` of the next tile. Rows and columns outside of the
    /// operand become zero.
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
        // SAFETY: `wanted` is true only for chunks inside of the operand, because its number of columns is a
        // multiple of 8. The caller guarantees that no thread accesses the destination.
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
    // SAFETY: the caller passes eight readable elements, which are aligned to 2 bytes.
    let bits = |at: usize| u32::from(unsafe { mem::load_u16(from.wrapping_add(2 * at), Load::ReadOnly) });
    Chunk([0, 2, 4, 6].map(|at| bits(at) | bits(at + 1) << 16))
}
