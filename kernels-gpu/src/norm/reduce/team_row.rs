//! A row that a team (the threads that share the row) reads twice: to reduce it, then to normalise it.
//!
//! Between the two passes, the row is staged in shared memory. The tiles that do not fit in shared memory are
//! loaded again from global memory.
//!
//! A tile is one vec4 (four columns) for each thread of the team. In a team of `size` threads, thread `rank`
//! has the four columns from `4 * (rank + tile * size)` on. torch's kernels assign columns to threads in the
//! same way.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, is_scalar};

use super::stats::Stats;
use super::team::{MAX, TeamCols, TeamMoments};

/// The row that the calling thread's team (the threads that share a row) reads.
#[derive(Clone, Copy)]
pub(crate) struct TeamRow<T, A> {
    start: *const T,
    /// Number of columns, or 0 if the team (the threads that share a row) has no row.
    cols: u32,
    team: Team,
    staged: SharedRow<T>,
    /// Number of tiles that fit in `staged`.
    room: u32,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> TeamRow<T, A> {
    /// Returns the row of `cols` columns at `start`. The function allocates shared memory for `room` tiles
    /// (four columns per thread) from `memory`.
    ///
    /// # Safety
    /// While the kernel runs, the row is readable, with the alignment that the access type `A` (how many
    /// elements one load reads) requires.
    #[inline(always)]
    pub unsafe fn of(start: *const T, cols: u32, room: u32, memory: &mut SharedMemory) -> Self {
        Self {
            start,
            cols,
            team: Team::of_block(),
            staged: SharedRow::take(memory, room),
            room,
            access: PhantomData,
        }
    }

    /// Returns the thread's first column of `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        LEN * (self.team.rank + tile * self.team.size)
    }

    /// Returns the thread's columns of `tile`, as a [`Vec4Columns`] with a single tile. In the returned
    /// object, the index of this tile is 0.
    #[inline(always)]
    pub fn columns(&self, tile: u32) -> Vec4Columns {
        Vec4Columns::of_one(self.first(tile), self.cols)
    }

    /// Returns the tiles in which the thread has columns.
    #[inline(always)]
    pub fn warp_tiles(&self) -> impl Iterator<Item = u32> {
        let row = *self;
        (0..row.tiles()).take_while(move |&tile| row.first(tile) < row.cols)
    }

    /// Returns the number of tiles that cover the row.
    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.cols.div_ceil(LEN * self.team.size.max(1))
    }

    #[inline(always)]
    fn read(&self, tile: u32) -> Vec4<T> {
        let rows = Rows::single(self.start.cast());
        // SAFETY: the load reads the thread's columns of the row. The caller of the function `of` passed a
        // readable row of `cols` columns, with the alignment that the access type `A` (how many elements one
        // load reads) requires.
        unsafe { Vec4Row::<T, A>::of(&rows, RowIndex::FIRST, self.columns(tile)) }.get(0)
    }

    /// Loads the row, copies as many tiles as fit (`room`) to shared memory, and reduces the row. `cols` is
    /// the number of columns per row. A team (threads that share a row) must pass the correct `cols` even if
    /// it has no row.
    #[inline(always)]
    pub fn reduce<M: TeamMoments>(&self, memory: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats {
        // With scalar access, a vec4 (four columns) takes four loads, so one vec4 keeps enough loads in
        // flight.
        let together = if is_scalar::<A>() { 1 } else { M::IN_FLIGHT };
        let mut moments = M::EMPTY;
        let (tiles, mut first) = (self.tiles(), 0);
        while first < tiles {
            let mut vec4s = [Vec4::ZERO; MAX];
            for i in 0..MAX {
                if i < together {
                    vec4s[i] = self.read(first + i as u32);
                }
            }
            for i in 0..MAX {
                let tile = first + i as u32;
                if i < together && self.first(tile) < self.cols {
                    if tile < self.room {
                        self.staged.put(tile, vec4s[i]);
                    }
                    let count = if is_scalar::<A>() { self.columns(tile).count(0) } else { LEN };
                    moments.push(vec4s[i].lanes(), count);
                }
            }
            first += together as u32;
        }
        moments.finish(self.team, memory, cols, eps)
    }

    /// Returns the thread's vec4 (four columns) of `tile` for the second pass, after [`TeamRow::reduce`].
    #[inline(always)]
    pub fn again(&self, tile: u32) -> Vec4<T> {
        if tile < self.room { self.staged.get(tile) } else { self.read(tile) }
    }
}
