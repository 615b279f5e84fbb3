//! Reductions of a row in the summation order of torch: by one warp, by the warps of a block, or by a team.
pub(crate) mod block;
pub(crate) mod stats;
pub(crate) mod team;
pub(crate) mod team_row;
pub(crate) mod warp;
pub(crate) mod welford;
