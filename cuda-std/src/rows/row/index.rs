//! The index of a row in a tensor. A team is the group of threads that share one row.
use crate::rows::team::Team;

/// The index of a row in [`Rows`](super::Rows). A team is the group of threads that share one row. A kernel
/// computes the index of its team's row once and uses this index for all operands of the launch.
#[derive(Clone, Copy)]
pub struct RowIndex {
    pub(super) within: i64,
    pub(super) group: i64,
    pub(super) exists: bool,
}

impl RowIndex {
    /// The first row, for every team. Used for weights.
    pub const FIRST: Self = Self { within: 0, group: 0, exists: true };

    /// Returns whether the row exists. A team (the threads that share a row) may have no row.
    #[inline(always)]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// Returns the index of the row of `team` (the threads that share a row). The operands have `count` rows
    /// in groups of `inner` rows. If `inner` is 0, all rows are one group. The row exists if `team.row` is
    /// less than `count`.
    #[inline(always)]
    pub fn of(team: Team, count: u64, inner: u32) -> Self {
        let (row, exists) = (team.row, team.row < count);
        if inner == 0 {
            return Self { within: row as i64, group: 0, exists };
        }
        Self { within: (row % u64::from(inner)) as i64, group: (row / u64::from(inner)) as i64, exists }
    }

    /// Returns the index of the row of `team`, as [`RowIndex::of`] does, for operands with fewer than 2^30
    /// rows. The product of row index and element size then fits in 32 bits, so the computation of an address
    /// takes half as many instructions.
    #[inline(always)]
    pub fn narrow(team: Team, count: u32, inner: u32) -> Self {
        let row = team.row as u32;
        let (within, group) = if inner == 0 { (row, 0) } else { (row % inner, row / inner) };
        Self { within: i64::from(within), group: i64::from(group), exists: row < count }
    }
}
