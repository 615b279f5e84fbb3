//! The order in which the blocks of a matrix product compute the tiles of the result.
use core::num::NonZero;

/// The order in which blocks compute tiles, as a part of the kernel arguments.
///
/// The tiles form a matrix, whose rows are divided into groups of `group_rows` rows. The order goes through
/// one group after the other, and within a group column by column. The tiles that run at the same time
/// therefore need few rows of `x` and of `w`, which stay in L2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TileOrder {
    /// Number of rows of tiles.
    rows: u32,
    /// Number of rows of tiles per group.
    group_rows: NonZero<u32>,
    /// Number of tiles of a group: `group_rows` times the number of tiles in a row of tiles.
    group_tiles: NonZero<u32>,
    /// Number of tiles.
    count: u32,
}

impl TileOrder {
    /// Returns the order of `rows * columns` tiles, in groups of at most `group_rows` rows of tiles. Returns
    /// `None` if there are no tiles, or more than 2^31 - 1 tiles.
    pub fn new([rows, columns]: [u32; 2], group_rows: u32) -> Option<Self> {
        let count = rows.checked_mul(columns).filter(|&count| count <= i32::MAX as u32)?;
        let group_rows = NonZero::new(group_rows.min(rows))?;
        let group_tiles = group_rows.checked_mul(NonZero::new(columns)?)?;
        Some(Self { rows, group_rows, group_tiles, count })
    }

    /// Returns the number of tiles.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the coordinates of tile number `number` in the matrix of tiles: its row and its column.
    #[inline(always)]
    pub(crate) fn place(&self, number: u32) -> [u32; 2] {
        let (group, within) = (number / self.group_tiles, number % self.group_tiles);
        let first = group * self.group_rows.get();
        let rows = (self.rows - first).clamp(1, self.group_rows.get());
        [first + within % rows, within / rows]
    }
}
