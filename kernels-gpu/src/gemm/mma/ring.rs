//! The ring of buffers in shared memory, and the copies to it.
use cuda_std::copy;
use cuda_std::mma::Chunk;
use cuda_std::prelude::*;

use super::loader::{Loader, ROW_CHUNKS};
use super::multiply::RingBuffer;
use super::params::{BUFFERS, LinearParams, WarpTile};
use super::swizzle::SwizzledRows;

/// The ring of buffers, with a tile of `x` and a tile of `w` per buffer. The constants are those of
/// [`Loader`].
pub(super) struct Ring<const VECTOR: bool, const HALVES: bool> {
    chunks: Shared<Chunk>,
    /// The rows of a tile of `x`, and of a tile of `w`.
    rows: [u32; 2],
    x: Loader<VECTOR, false>,
    w: Loader<VECTOR, HALVES>,
    /// The first chunk of the buffer to which the next copies go.
    write_at: u32,
}

impl<const VECTOR: bool, const HALVES: bool> Ring<VECTOR, HALVES> {
    /// Returns the ring for a tile of the result. `x_row` and `w_row` are the first rows of `x` and `w` that
    /// the tile needs. The second half of `w` starts `half` rows after the first.
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

    /// Returns the first chunk of the buffer after the one that starts with chunk `first`.
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

    /// Starts pass number `pass` of the copies to the next buffer.
    ///
    /// # Safety
    /// `p`, from which the ring was made, belongs to this launch. A barrier separates the copy from the reads
    /// of the previous contents of the buffer.
    #[inline(always)]
    pub unsafe fn copy_pass(&self, pass: u32) {
        let (to, of_x) = (self.buffer(self.write_at), Loader::<VECTOR, HALVES>::passes(self.rows[0]));
        // SAFETY: the host checked that the operands are readable. The ring has the rows of each pass. The
        // caller guarantees that no thread reads the previous contents of the buffer.
        unsafe { if pass < of_x { self.x.copy(to.x, pass) } else { self.w.copy(to.w, pass - of_x) } }
    }

    /// Ends the copies to a buffer, and goes to the next buffer.
    #[inline(always)]
    pub fn advance(&mut self) {
        copy::commit();
        self.x.advance();
        self.w.advance();
        self.write_at = self.next(self.write_at);
    }
}
