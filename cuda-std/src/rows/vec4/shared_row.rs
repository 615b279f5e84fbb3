//! Shared memory as the place where rows wait for the passes over them.
use core::marker::PhantomData;

use super::columns::TILE;
use super::vector::Vec4;
use crate::numeric::elem::Elem;
use crate::simt::shared::{Shared, SharedMemory};
use crate::simt::{block, copy, thread, warp};

/// 16 bytes: what one copy moves.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Chunk16([u32; 4]);

/// A quad of a 16-bit type.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Half([u32; 2]);

/// A row for each warp of the block, or one that they share, as it lies in global memory: a thread's quads
/// are its own, so that passes over them need no barrier.
#[derive(Clone, Copy)]
pub struct SharedRow<T> {
    row: Shared<Chunk16>,
    /// The thread's number among those that share the row.
    rank: u32,
    /// How many they are: a warp, or more.
    size: u32,
    element: PhantomData<T>,
}

impl<T: Elem> SharedRow<T> {
    const PER_LINE: u32 = 16 / size_of::<T>() as u32;

    /// Room for `tiles` tiles for every warp of the block.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, z] = thread::block_dim();
        let of_row = tiles * TILE / Self::PER_LINE;
        let rows: Shared<Chunk16> = memory.take(x * y * z / warp::SIZE * of_row);
        let row = rows.part(block::linear_index() / warp::SIZE * of_row, of_row);
        Self { row, rank: warp::lane(), size: warp::SIZE, element: PhantomData }
    }

    /// Room for `tiles` tiles for the block, whose warps share one row.
    #[inline(always)]
    pub fn take_for_block(memory: &mut SharedMemory, tiles: u32) -> Self {
        let ([rank, _, _], [size, _, _]) = (thread::index(), thread::block_dim());
        Self { row: memory.take(tiles * TILE / Self::PER_LINE), rank, size, element: PhantomData }
    }

    /// Begins to copy `cols` elements to the row; [`SharedRow::wait`] before they are read.
    ///
    /// # Safety
    /// `from` is readable for so many elements, aligned to 16 bytes as their number is, and nothing writes
    /// there; the row has room for them.
    #[inline(always)]
    pub unsafe fn copy(&self, from: *const T, cols: u32) {
        let mut at = self.rank * Self::PER_LINE;
        while at < cols {
            // SAFETY: as the caller promises.
            unsafe { self.row.copy_from(at / Self::PER_LINE, from.wrapping_add(at as usize).cast()) };
            at += self.size * Self::PER_LINE;
        }
    }

    /// Waits until what the threads of the row copied is there for all of them.
    #[inline(always)]
    pub fn wait(&self) {
        copy::wait();
        if self.size == warp::SIZE { warp::sync(warp::ALL) } else { block::sync() }
    }

    /// Element `at` of the row, after a [`SharedRow::wait`].
    #[inline(always)]
    pub fn element(&self, at: u32) -> T {
        // SAFETY: `take` made room for it; what other threads wrote was waited for.
        unsafe {
            if size_of::<T>() == 2 {
                T::from_bits(u32::from(self.row.cast::<u16>().get(at)))
            } else {
                T::from_bits(self.row.cast::<u32>().get(at))
            }
        }
    }

    /// The thread's quads, each `warp::SIZE` after the one before: a distance that is a constant in an
    /// address.
    #[inline(always)]
    fn thread_part<Q: Copy>(&self) -> Shared<Q> {
        let vec4s = self.row.cast::<Q>();
        vec4s.part(self.rank, vec4s.len().saturating_sub(self.rank))
    }

    /// Keeps the thread's quad of `tile`.
    #[inline(always)]
    pub fn put(&self, tile: u32, vec4: Vec4<T>) {
        let ([a, b, ..], at) = (vec4.words, tile * warp::SIZE);
        // SAFETY: `take` made room for the tile; the quad is this thread's alone.
        unsafe {
            if size_of::<T>() == 2 {
                self.thread_part::<Half>().set(at, Half([a, b]))
            } else {
                self.thread_part::<Chunk16>().set(at, Chunk16(vec4.words))
            }
        }
    }

    /// The thread's quad of `tile`, as last put or copied.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Vec4<T> {
        let at = tile * warp::SIZE;
        // SAFETY: as in `put`; what other threads copied was waited for.
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
