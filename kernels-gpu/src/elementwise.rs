//! How element-wise kernels share out their operands: whole rows, or one long run of elements in rows of a length that
//! suits the launch.
use cuda_std::prelude::*;

use crate::chains::Held;

/// Threads of the largest block.
pub const MAX_THREADS: u32 = 256;
/// Packs that a thread of the vector kernels loads before it computes any.
pub const HELD: u32 = 2;
/// The operands as rows: a kernel argument. The grid has a team for each row in x and a block for each part of the
/// row in y. 32 bits, and no multiplication by what a launch knows already: a thread has its place before it loads
/// anything, and loads little.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Rows of the operands; `u32::MAX - 1024` at most, so that no team's number wraps.
    pub rows: u32,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Columns of the last row: of one long run of elements it may be short.
    pub last: u32,
    /// Tiles that cover a row of so many columns.
    pub tiles: u32,
}

impl Extent {
    /// The team's row, and how many columns it has.
    #[inline(always)]
    pub(crate) fn row(&self, team: Team) -> (RowAt, u32) {
        let cols = if team.row as u32 == self.rows - 1 { self.last } else { self.cols };
        (RowAt::of_few(team, self.rows, self.inner), cols)
    }

    /// The first of each `HELD` tiles of the row that are this block's.
    #[inline(always)]
    pub(crate) fn parts<const HELD: usize>(&self) -> Parts {
        let ([_, part, _], [_, parts, _]) = (thread::block_index(), thread::grid_dim());
        Parts { next: part * HELD as u32, step: parts * HELD as u32, tiles: self.tiles }
    }
}

/// See [`Extent::parts`].
pub(crate) struct Parts {
    next: u32,
    step: u32,
    tiles: u32,
}

impl Iterator for Parts {
    type Item = u32;
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let first = self.next;
        self.next += self.step;
        (first < self.tiles).then_some(first)
    }
}

/// A bias, read at each tile; absent where its pointer is null.
#[derive(Clone, Copy)]
pub(crate) struct Bias<T, const VECTOR: bool> {
    row: Row<T, VECTOR>,
    exists: bool,
}

impl<T: Elem, const VECTOR: bool> Bias<T, VECTOR> {
    /// # Safety
    /// `base` is null or has `cols` elements, aligned to 16 bytes if `VECTOR`.
    #[inline(always)]
    pub(crate) unsafe fn of(base: *const u8, team: Team, cols: u32) -> Self {
        // SAFETY: one row of `cols` elements; where there is none, nothing is read.
        let row = unsafe { Row::of(&Rows::single(base), team, RowAt::FIRST, cols) };
        Self { row, exists: !base.is_null() }
    }

    /// `pack` and the bias of its tile added, as a tensor of `T` holds the sum.
    #[inline(always)]
    pub(crate) fn plus(&self, pack: Pack<T>, tile: u32) -> Held<T> {
        let held = Held::of(pack);
        if self.exists { held.plus(Held::of(self.row.load(tile, Load::ReadOnly))) } else { held }
    }

    /// The lanes of `pack` and the bias of its tile added: rounded to `T` where `round`, as a tensor of `T` holds it.
    #[inline(always)]
    pub(crate) fn added(&self, pack: Pack<T>, tile: u32, round: bool) -> T::Lanes {
        let lanes = pack.lanes();
        if !self.exists {
            return lanes;
        }
        let sum = lanes.zip(self.row.load(tile, Load::ReadOnly).lanes(), |x, bias| x + bias);
        if round { T::unpack(T::pack(sum)) } else { sum }
    }
}
