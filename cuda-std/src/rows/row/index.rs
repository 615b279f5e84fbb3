//! The index of a row in a tensor. Each team (the threads that share one row) computes the index of its row.
use crate::rows::team::Team;

/// The index of a row in [`Rows`](super::Rows). A team is the group of threads that share one row. Each
/// thread computes the index of its team's row once, and uses this index for all operands of the launch.
#[derive(Clone, Copy)]
pub struct RowIndex {
    pub(super) within: i64,
    pub(super) group: i64,
    pub(super) exists: bool,
}

impl RowIndex {
    /// The first row, for every team (the threads that share a row). Operands with only one row, such as
    /// weights, use this index.
    pub const FIRST: Self = Self { within: 0, group: 0, exists: true };

    /// Returns whether the row exists. Some teams (the threads that share a row) have no row, because the
    /// launch has more teams than rows.
    #[inline(always)]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// Returns the index of the row of `team` (the threads that share a row). The operands have `count` rows,
    /// in groups of `inner` rows. The index consists of the group and of the row within the group. If `inner`
    /// is 0, all rows form one group. Row number `team.row` exists if the number is less than `count`.
    #[inline(always)]
    pub fn of(team: Team, count: u64, inner: u32) -> Self {
        let (row, exists) = (team.row, team.row < count);
        if inner == 0 {
            return Self { within: row as i64, group: 0, exists };
        }
        Self { within: (row % u64::from(inner)) as i64, group: (row / u64::from(inner)) as i64, exists }
    }

    /// Returns the same index as [`RowIndex::of`], for operands with fewer than 2^30 rows. With so few rows,
    /// the product of row index and element size fits in 32 bits. The computation of an address then takes
    /// half as many instructions.
    #[inline(always)]
    pub fn narrow(team: Team, count: u32, inner: u32) -> Self {
        let row = team.row as u32;
        let (within, group) = if inner == 0 { (row, 0) } else { (row % inner, row / inner) };
        Self { within: i64::from(within), group: i64::from(group), exists: row < count }
    }
}
