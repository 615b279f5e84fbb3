//! Tiles in shared memory. A row of a tile consists of 16-byte chunks, whose order differs from row to row
//! (swizzle), which avoids bank conflicts.
use cuda_std::mma::{self, Chunk};
use cuda_std::prelude::*;

/// Rows of `CHUNKS` chunks of 16 bytes (4 or 8) in shared memory.
///
/// Row `r` has its chunk `c` at the position `c ^ s`, where `s` is `r % 8` for 8 chunks per row, and `r / 2 %
/// 4` for 4 chunks per row. For a fixed `c`, eight consecutive rows are then in different banks. Two rows
/// whose distance is a multiple of 8 have the same `s`.
#[derive(Clone, Copy)]
pub(super) struct SwizzledRows<const CHUNKS: u32> {
    chunks: Shared<Chunk>,
    /// Index of the tile's first 16-byte chunk in `chunks`, the shared memory that contains the tile. It is a
    /// multiple of `8 * CHUNKS`.
    first: u32,
}

impl<const CHUNKS: u32> SwizzledRows<CHUNKS> {
    /// Returns the tile that starts at element `first` of `chunks`.
    #[inline(always)]
    pub fn at(chunks: Shared<Chunk>, first: u32) -> Self {
        const { assert!(CHUNKS == 4 || CHUNKS == 8) };
        Self { chunks, first }
    }

    /// Returns the swizzled position of chunk number `chunk` of row `row`, as a chunk index from the start of
    /// the tile.
    #[inline(always)]
    pub fn index(row: u32, chunk: u32) -> u32 {
        row * CHUNKS + (chunk ^ (row / (8 / CHUNKS) % CHUNKS))
    }

    /// Starts to copy 16 bytes from `from` to the chunk with index `index`. If `wanted` is false, the
    /// function fills the chunk with zeros and does not read `from`.
    ///
    /// # Safety
    /// If `wanted` is true, the 16 bytes at `from` are readable and aligned. The chunk lies inside the tile,
    /// and no thread accesses it until the copy is complete.
    #[inline(always)]
    pub unsafe fn copy(&self, index: u32, from: *const u8, wanted: bool) {
        // SAFETY: the caller guarantees that the source is readable if `wanted` is true, and that no thread
        // accesses the destination 16-byte chunk.
        unsafe { self.chunks.copy_or_zero(self.first + index, from, wanted) };
    }

    /// Writes the 16-byte chunk with index `index`.
    ///
    /// # Safety
    /// The chunk lies inside the tile. A barrier separates this write from accesses of other threads to the
    /// chunk.
    #[inline(always)]
    pub unsafe fn set(&self, index: u32, chunk: Chunk) {
        // SAFETY: the store writes one 16-byte chunk. The caller guarantees that it lies inside the tile, and
        // that no other thread accesses it.
        unsafe { self.chunks.set(self.first + index, chunk) };
    }

    /// Writes word `word` (two elements) of the 16-byte chunk with index `index`.
    ///
    /// # Safety
    /// The chunk lies inside the tile. A barrier separates this write from accesses of other threads to the
    /// word.
    #[inline(always)]
    pub unsafe fn set_word(&self, index: u32, word: u32, value: u32) {
        // SAFETY: the store writes one word. The caller guarantees that it lies inside the tile, and that no
        // other thread accesses it.
        unsafe { self.chunks.cast::<u32>().set(4 * (self.first + index) + word, value) };
    }

    /// Reads the 16-byte chunk with index `index`.
    ///
    /// # Safety
    /// The chunk lies inside the tile. A barrier separates this read from the writes to the chunk.
    #[inline(always)]
    pub unsafe fn get(&self, index: u32) -> Chunk {
        // SAFETY: the load reads one 16-byte chunk. The caller guarantees that it lies inside the tile, and
        // that a barrier separates the writes from this read.
        unsafe { self.chunks.get(self.first + index) }
    }

    /// Reads 16 x 16 elements as four 8 x 8 matrices (`ldmatrix`). They start at row `16 * row16` and at
    /// element `16 * step` of K. `lane` is the index of the 16-byte chunk whose address this lane would pass
    /// for step 0 and row 0.
    ///
    /// # Safety
    /// The matrices lie inside the tile. A barrier separates this read from the writes to the tile.
    #[inline(always)]
    pub unsafe fn matrices(&self, lane: u32, row16: usize, step: usize) -> [u32; 4] {
        // A step has two 16-byte chunks per row, so the first chunk of a step has an even number. The swizzle
        // XORs chunk numbers, so an XOR with `2 * step` changes the position for step 0 into the position for
        // this step.
        let index = (lane ^ (2 * step as u32)) + 16 * row16 as u32 * CHUNKS;
        // SAFETY: the caller guarantees that the matrices lie inside the tile, and that a barrier separates
        // the writes from this read.
        unsafe { mma::load(&self.chunks, self.first + index) }
    }
}
