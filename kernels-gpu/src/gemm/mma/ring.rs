//! The ring of buffers in shared memory for tiles of the operands, and the copies to these buffers.
use cuda_std::copy;
use cuda_std::mma::Chunk;
use cuda_std::prelude::*;

use super::loader::{Loader, ROW_CHUNKS};
use super::multiply::RingBuffer;
use super::params::{BUFFERS, LinearParams, WarpTile};
use super::swizzle::SwizzledRows;

/// The ring of buffers in shared memory. Each buffer has a tile of `x` and a tile of `w`. [`Loader`]
/// documents the const parameters.
pub(super) struct Ring<const VECTOR: bool, const HALVES: bool> {
    chunks: Shared<Chunk>,
    /// Number of rows of a tile of `x`, and of a tile of `w`.
    rows: [u32; 2],
    x: Loader<VECTOR, false>,
    w: Loader<VECTOR, HALVES>,
    /// Index of the first 16-byte chunk of the buffer to which the next copies write.
    write_at: u32,
}

impl<const VECTOR: bool, const HALVES: bool> Ring<VECTOR, HALVES> {
    /// Returns the ring of buffers for a tile of the result. `x_row` and `w_row` are the first rows of `x`
    /// and `w` that this tile needs. If an epilogue combines two halves of `w`, the second half starts `half`
    /// rows after the first.
    #[inline(always)]
    pub fn new(tile: WarpTile, [x_row, w_row]: [u32; 2], half: i32, p: &LinearParams) -> Self {
        let rows = [tile.rows(), tile.columns()];
        let chunks = SharedMemory::of_launch().take(BUFFERS * (rows[0] + rows[1]) * ROW_CHUNKS);
        let x = Loader::of(&p.x, x_row, p.depth, 0);
        let w = Loader::of(&p.w, w_row, p.depth, half);
        Self { chunks, rows, x, w, write_at: 0 }
    }

    /// Returns the buffer whose first chunk is `first`.
    #[inline(always)]
    pub fn buffer(&self, first: u32) -> RingBuffer {
        RingBuffer {
            x: SwizzledRows::at(self.chunks, first),
            w: SwizzledRows::at(self.chunks, first + self.rows[0] * ROW_CHUNKS),
        }
    }

    /// Given the first 16-byte chunk of a buffer, returns the first chunk of the next buffer. After the last
    /// buffer, the first one follows (ring).
    #[inline(always)]
    pub fn next(&self, first: u32) -> u32 {
        let size = (self.rows[0] + self.rows[1]) * ROW_CHUNKS;
        if first == (BUFFERS - 1) * size { 0 } else { first + size }
    }

    /// Returns the memory of the ring, for the results.
    #[inline(always)]
    pub fn chunks(&self) -> Shared<Chunk> {
        self.chunks
    }

    /// Returns the number of passes that copy a buffer.
    #[inline(always)]
    pub fn passes(&self) -> u32 {
        Loader::<VECTOR, HALVES>::passes(self.rows[0] + self.rows[1])
    }

    /// Starts pass number `pass` of the copies of operand tiles to the next buffer in shared memory. In a
    /// pass, each thread copies 16 bytes.
    ///
    /// # Safety
    /// `p`, from which the ring was created, belongs to this launch. A barrier separates the copy from the
    /// reads of the previous contents of the buffer.
    #[inline(always)]
    pub unsafe fn copy_pass(&self, pass: u32) {
        let (to, of_x) = (self.buffer(self.write_at), Loader::<VECTOR, HALVES>::passes(self.rows[0]));
        // SAFETY: the copy reads `x` or `w`, which the host checked to be readable. It writes rows of a
        // buffer, which has the rows of each pass. The caller guarantees that no thread reads the previous
        // contents of the buffer.
        unsafe { if pass < of_x { self.x.copy(to.x, pass) } else { self.w.copy(to.w, pass - of_x) } }
    }

    /// Marks the copies to the current buffer as one group (`cp.async.commit_group`). The next copies then
    /// write to the following buffer.
    #[inline(always)]
    pub fn advance(&mut self) {
        copy::commit();
        self.x.advance();
        self.w.advance();
        self.write_at = self.next(self.write_at);
    }
}
