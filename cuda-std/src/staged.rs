//! Shared memory as the place where rows wait for the passes over them.
use core::marker::PhantomData;

use crate::elem::Elem;
use crate::pack::Pack;
use crate::quad::{Quad, TILE};
use crate::shared::{Shared, SharedMemory};
use crate::{block, copy, thread, warp};

/// 16 bytes: what one copy moves.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Line([u32; 4]);

/// A quad of a 16-bit type.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Half([u32; 2]);

/// A row for each warp of the block, as it lies in global memory: a thread's quads are its own, so that passes over them
/// need no barrier.
#[derive(Clone, Copy)]
pub struct Staged<T> {
    lines: Shared<Line>,
    /// The first element of the warp's row.
    first: u32,
    element: PhantomData<T>,
}

impl<T: Elem> Staged<T> {
    const PER_LINE: u32 = 16 / size_of::<T>() as u32;

    /// Room for `tiles` tiles for every warp of the block.
    #[inline(always)]
    pub fn take(memory: &mut SharedMemory, tiles: u32) -> Self {
        let [x, y, z] = thread::block_dim();
        let lines = memory.take(x * y * z / warp::SIZE * (tiles * TILE) / Self::PER_LINE);
        let first = block::linear_index() / warp::SIZE * (tiles * TILE);
        Self { lines, first, element: PhantomData }
    }

    /// Begins to copy `cols` elements to the row; [`Staged::wait`] before they are read.
    ///
    /// # Safety
    /// `from` is readable for so many elements, aligned to 16 bytes as their number is, and nothing writes there; the row
    /// has room for them.
    #[inline(always)]
    pub unsafe fn copy(&self, from: *const T, cols: u32) {
        let mut at = warp::lane() * Self::PER_LINE;
        while at < cols {
            // SAFETY: as the caller promises.
            unsafe {
                self.lines
                    .copy_from((self.first + at) / Self::PER_LINE, from.wrapping_add(at as usize).cast())
            };
            at += warp::SIZE * Self::PER_LINE;
        }
    }

    /// Waits until what the warp's threads copied is there for all of them.
    #[inline(always)]
    pub fn wait(&self) {
        copy::wait();
        warp::sync(warp::ALL);
    }

    /// Keeps a pack, number `lane + 32 * tile` of the row; [`Staged::wait`] before quads of it are read.
    #[inline(always)]
    pub fn put_pack(&self, tile: u32, pack: Pack<T>) {
        let at = self.first / Self::PER_LINE + tile * warp::SIZE + warp::lane();
        // SAFETY: `take` made room for the row; the pack is this thread's alone until the warp meets.
        unsafe { self.lines.set(at, Line(pack.words())) };
    }

    #[inline(always)]
    fn quad(&self, tile: u32) -> u32 {
        self.first / 4 + tile * warp::SIZE + warp::lane()
    }

    /// Keeps the thread's quad of `tile`.
    #[inline(always)]
    pub fn put(&self, tile: u32, quad: Quad<T>) {
        let ([a, b, ..], at) = (quad.words, self.quad(tile));
        // SAFETY: `take` made room for the tile; the quad is this thread's alone.
        unsafe {
            if size_of::<T>() == 2 {
                self.lines.cast::<Half>().set(at, Half([a, b]))
            } else {
                self.lines.set(at, Line(quad.words))
            }
        }
    }

    /// The thread's quad of `tile`, as last put or copied.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Quad<T> {
        let at = self.quad(tile);
        // SAFETY: as in `put`; what other threads copied was waited for.
        let words = unsafe {
            if size_of::<T>() == 2 {
                let Half([a, b]) = self.lines.cast::<Half>().get(at);
                [a, b, 0, 0]
            } else {
                self.lines.get(at).0
            }
        };
        Quad { words, element: PhantomData }
    }
}
