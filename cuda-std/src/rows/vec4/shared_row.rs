//! Rows that stay in shared memory between the passes of a kernel over them.
use core::marker::PhantomData;

use super::columns::TILE;
use super::vector::Vec4;
use crate::numeric::elem::Elem;
use crate::simt::shared::{Shared, SharedMemory};
use crate::simt::{block, copy, thread, warp};

/// 16 bytes, which is the size of one asynchronous copy.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Chunk16([u32; 4]);

/// A vec4 of a 16-bit type.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Half([u32; 2]);

/// A row staged in shared memory. Each warp, or each block, has one such row. The elements have the same
/// order as in global memory. In each pass after [`SharedRow::wait`], a thread accesses the same vec4s
/// (vectors of four elements), which no other thread accesses. Therefore no barrier is necessary between the
/// passes.
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

    /// Allocates a row of `tiles` tiles (128 columns each) for each warp of the block from `memory`. Returns
    /// the row of the calling thread's warp.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, z] = thread::block_dim();
        let of_row = tiles * TILE / Self::PER_LINE;
        let rows: Shared<Chunk16> = memory.take(x * y * z / warp::SIZE * of_row);
        let row = rows.part(block::linear_index() / warp::SIZE * of_row, of_row);
        Self { row, rank: warp::lane(), size: warp::SIZE, element: PhantomData }
    }

    /// Allocates one row of `tiles` tiles (128 columns each) from `memory`, which all warps of the block
    /// share.
    #[inline(always)]
    pub fn take_for_block(memory: &mut SharedMemory, tiles: u32) -> Self {
        let ([rank, _, _], [size, _, _]) = (thread::index(), thread::block_dim());
        Self { row: memory.take(tiles * TILE / Self::PER_LINE), rank, size, element: PhantomData }
    }

    /// Starts to copy `cols` elements from global memory to the row in shared memory. Call
    /// [`SharedRow::wait`] before you read the row.
    ///
    /// # Safety
    /// `from` points to `cols` readable elements, which no thread writes during the copy. `from` is aligned
    /// to 16 bytes, and the size of the `cols` elements is a multiple of 16 bytes. The row has space for
    /// `cols` elements.
    #[inline(always)]
    pub unsafe fn copy(&self, from: *const T, cols: u32) {
        let mut at = self.rank * Self::PER_LINE;
        while at < cols {
            // SAFETY: the copy reads 16 bytes from element `at` on. The caller passes `cols` readable
            // elements at `from`, aligned to 16 bytes. The loop bound keeps `at` below `cols`.
            unsafe { self.row.copy_from(at / Self::PER_LINE, from.wrapping_add(at as usize).cast()) };
            at += self.size * Self::PER_LINE;
        }
    }

    /// Waits until the asynchronous copies of all threads that share the row have arrived. After the wait,
    /// each of these threads can read the whole row.
    #[inline(always)]
    pub fn wait(&self) {
        copy::wait();
        if self.size == warp::SIZE { warp::sync(warp::ALL) } else { block::sync() }
    }

    /// Loads element number `at` of the row. Call [`SharedRow::wait`] first.
    #[inline(always)]
    pub fn element(&self, at: u32) -> T {
        // SAFETY: the row in shared memory contains the element, and the caller has waited for the copies of
        // other threads.
        unsafe {
            if size_of::<T>() == 2 {
                T::from_bits(u32::from(self.row.cast::<u16>().get(at)))
            } else {
                T::from_bits(self.row.cast::<u32>().get(at))
            }
        }
    }

    /// Returns the part of the row that starts at the thread's first vec4 (vector of four elements). In this
    /// part, the thread's vec4 of tile `n` has index `n * warp::SIZE`. The distance between two tiles is
    /// therefore the same constant for all threads.
    #[inline(always)]
    fn thread_part<Q: Copy>(&self) -> Shared<Q> {
        let vec4s = self.row.cast::<Q>();
        vec4s.part(self.rank, vec4s.len().saturating_sub(self.rank))
    }

    /// Stores the thread's vec4 (four elements) of `tile` in shared memory.
    #[inline(always)]
    pub fn put(&self, tile: u32, vec4: Vec4<T>) {
        let ([a, b, ..], at) = (vec4.words, tile * warp::SIZE);
        // SAFETY: the access is inside the row, because the row in shared memory contains the tile. No other
        // thread accesses this vec4 (four elements).
        unsafe {
            if size_of::<T>() == 2 {
                self.thread_part::<Half>().set(at, Half([a, b]))
            } else {
                self.thread_part::<Chunk16>().set(at, Chunk16(vec4.words))
            }
        }
    }

    /// Loads the thread's vec4 (four elements) of `tile` from shared memory.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<T> {
        let at = tile * warp::SIZE;
        // SAFETY: the row in shared memory contains the tile, and the caller has waited for the copies of
        // other threads.
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
