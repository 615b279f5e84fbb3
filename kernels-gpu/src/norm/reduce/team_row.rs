//! A row that a team reduces and then goes through again. Between the two the row waits in shared memory, as
//! far as the launch has room for it; the rest is read again.
//!
//! Thread `rank` of a team of `size` has the columns from `4 * (rank + tile * size)` on, the order in which
//! torch reads.
use core::marker::PhantomData;

use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, is_scalar};

use super::stats::Stats;
use super::team::{MAX, TeamCols, TeamMoments};

/// A team's row, to read.
#[derive(Clone, Copy)]
pub(crate) struct TeamRow<T, A> {
    start: *const T,
    /// Columns; 0 if there is no row.
    cols: u32,
    team: Team,
    staged: SharedRow<T>,
    /// Tiles that `staged` has room for.
    room: u32,
    access: PhantomData<A>,
}

impl<T: Elem, A: Access> TeamRow<T, A> {
    /// The row of `cols` columns at `start`, with its part of `memory`, which has room for `room` tiles.
    ///
    /// # Safety
    /// While the kernel runs, the columns are there to read, as `A` says.
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

    /// The thread's first column of `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        LEN * (self.team.rank + tile * self.team.size)
    }

    /// The thread's columns of `tile`, as those of tile 0.
    #[inline(always)]
    pub fn columns(&self, tile: u32) -> Vec4Columns {
        Vec4Columns::of_one(self.first(tile), self.cols)
    }

    /// The tiles in which the thread has columns.
    #[inline(always)]
    pub fn warp_tiles(&self) -> impl Iterator<Item = u32> {
        let row = *self;
        (0..row.tiles()).take_while(move |&tile| row.first(tile) < row.cols)
    }

    /// Tiles that cover the row.
    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.cols.div_ceil(LEN * self.team.size.max(1))
    }

    #[inline(always)]
    fn read(&self, tile: u32) -> Vec4<T> {
        let rows = Rows::single(self.start.cast());
        // SAFETY: the row is what `of` was promised.
        unsafe { Vec4Row::<T, A>::of(&rows, RowIndex::FIRST, self.columns(tile)) }.get(0)
    }

    /// Reads the row, keeps what there is room for, and reduces it. `cols` are the row's, existing or not.
    #[inline(always)]
    pub fn reduce<M: TeamMoments>(&self, memory: &mut SharedMemory, cols: TeamCols, eps: f32) -> Stats {
        // Without vectors a quad is many accesses, and one is enough.
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

    /// The quad of `tile` after [`TeamRow::reduce`].
    #[inline(always)]
    pub fn again(&self, tile: u32) -> Vec4<T> {
        if tile < self.room { self.staged.get(tile) } else { self.read(tile) }
    }
}
