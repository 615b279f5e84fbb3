//! Which row of a tensor is a team's.
use crate::rows::team::Team;

/// Where a team's row is in [`Rows`](super::Rows): worked out once for all operands of a launch.
#[derive(Clone, Copy)]
pub struct RowIndex {
    pub(super) within: i64,
    pub(super) group: i64,
    pub(super) exists: bool,
}

impl RowIndex {
    /// The first row, whatever the team: of a weight.
    pub const FIRST: Self = Self { within: 0, group: 0, exists: true };

    /// Is there such a row?
    #[inline(always)]
    pub fn exists(&self) -> bool {
        self.exists
    }

    /// The row of `team` in operands of `count` rows in groups of `inner` (0: one group). It exists if the team's
    /// number is below `count`.
    #[inline(always)]
    pub fn of(team: Team, count: u64, inner: u32) -> Self {
        let (row, exists) = (team.row, team.row < count);
        if inner == 0 {
            return Self { within: row as i64, group: 0, exists };
        }
        Self { within: (row % u64::from(inner)) as i64, group: (row / u64::from(inner)) as i64, exists }
    }

    /// The same where rows are fewer than 2^30, so that their number times an element's bytes has 32 bits: half the
    /// arithmetic.
    #[inline(always)]
    pub fn narrow(team: Team, count: u32, inner: u32) -> Self {
        let row = team.row as u32;
        let (within, group) = if inner == 0 { (row, 0) } else { (row % inner, row / inner) };
        Self { within: i64::from(within), group: i64::from(group), exists: row < count }
    }
}
