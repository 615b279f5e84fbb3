//! Rows staged in shared memory between the passes over them.
use core::marker::PhantomData;

use super::columns::TILE;
use super::vector::Vec4;
use crate::numeric::elem::Elem;
use crate::simt::shared::{Shared, SharedMemory};
use crate::simt::{block, copy, thread, warp};

/// 16 bytes: the size of one asynchronous copy.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Chunk16([u32; 4]);

/// A vec4 of a 16-bit type.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Half([u32; 2]);

/// A row staged in shared memory. Each warp, or each block, has one such row. Its elements have the same
/// order as in global memory. After [`SharedRow::wait`], each thread accesses only its own vec4s (four
/// elements each), so several passes over the row need no barrier.
#[derive(Clone, Copy)]
pub struct SharedRow<T> {
    row: Shared<Chunk16>,
    /// Index of the thread among the threads that share the row.
    rank: u32,
    /// Number of threads that share the row: all threads of a warp or of a block.
    size: u32,
    element: PhantomData<T>,
}

impl<T: Elem> SharedRow<T> {
    const PER_LINE: u32 = 16 / size_of::<T>() as u32;

    /// Allocates `tiles` tiles of `memory` for each warp of the block.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, z] = thread::block_dim();
        let of_row = tiles * TILE / Self::PER_LINE;
        let rows: Shared<Chunk16> = memory.take(x * y * z / warp::SIZE * of_row);
        let row = rows.part(block::linear_index() / warp::SIZE * of_row, of_row);
        Self { row, rank: warp::lane(), size: warp::SIZE, element: PhantomData }
    }

    /// Allocates a row of `tiles` tiles (128 columns each) in `memory`. All warps of the block share this
    /// row.
    #[inline(always)]
    pub fn take_for_block(memory: &mut SharedMemory, tiles: u32) -> Self {
        let ([rank, _, _], [size, _, _]) = (thread::index(), thread::block_dim());
        Self { row: memory.take(tiles * TILE / Self::PER_LINE), rank, size, element: PhantomData }
    }

    /// Starts to copy `cols` elements from global memory to the row. Call [`SharedRow::wait`] before you read
    /// the row.
    ///
    /// # Safety
    /// `from` points to `cols` readable elements, which no thread writes during the copy. `from` is aligned
    /// to 16 bytes, and the size of the `cols` elements is a multiple of 16 bytes. The row has room for
    /// `cols` elements.
    #[inline(always)]
    pub unsafe fn copy(&self, from: *const T, cols: u32) {
        let mut at = self.rank * Self::PER_LINE;
        while at < cols {
            // SAFETY: the caller passes `cols` readable, aligned elements, and the loop bound keeps `at`
            // below `cols`.
            unsafe { self.row.copy_from(at / Self::PER_LINE, from.wrapping_add(at as usize).cast()) };
            at += self.size * Self::PER_LINE;
        }
    }

    /// Waits until the copies of all threads of the row have arrived and are visible to each of these
    /// threads.
    #[inline(always)]
    pub fn wait(&self) {
        copy::wait();
        if self.size == warp::SIZE { warp::sync(warp::ALL) } else { block::sync() }
    }

    /// Loads element `at` of the row. Call [`SharedRow::wait`] first.
    #[inline(always)]
    pub fn element(&self, at: u32) -> T {
        // SAFETY: `take` allocated the element. The caller has waited for the copies of other threads.
        unsafe {
            if size_of::<T>() == 2 {
                T::from_bits(u32::from(self.row.cast::<u16>().get(at)))
            } else {
                T::from_bits(self.row.cast::<u32>().get(at))
            }
        }
    }

    /// Returns the part of the row that starts at the thread's first vec4 (four elements). The thread's vec4
    /// of tile `n` is element `n * warp::SIZE` of this part, so the address offset of a tile is a constant.
    #[inline(always)]
    fn thread_part<Q: Copy>(&self) -> Shared<Q> {
        let vec4s = self.row.cast::<Q>();
        vec4s.part(self.rank, vec4s.len().saturating_sub(self.rank))
    }

    /// Stores the thread's vec4 of `tile`.
    #[inline(always)]
    pub fn put(&self, tile: u32, vec4: Vec4<T>) {
        let ([a, b, ..], at) = (vec4.words, tile * warp::SIZE);
        // SAFETY: `take` allocated the tile. No other thread accesses this vec4.
        unsafe {
            if size_of::<T>() == 2 {
                self.thread_part::<Half>().set(at, Half([a, b]))
            } else {
                self.thread_part::<Chunk16>().set(at, Chunk16(vec4.words))
            }
        }
    }

    /// Loads the thread's vec4 of `tile`, as last stored or copied.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<T> {
        let at = tile * warp::SIZE;
        // SAFETY: `take` allocated the tile. The caller has waited for the copies of other threads.
        let words = unsafe {
            if size_of::<T>() == 2 {
                let Half([a, b]) = self.thread_part::<Half>().get(at);
                [a, b, 0, 0]
            } else {
                self.thread_part::<Chunk16>().get(at).0
            }
        };
        Vec4 { words, element: PhantomData }
    }
}
