//! Reductions of a row in torch's summation order: by one warp, by the four warps of a block, or by a team.
//!
//! A team is the set of threads that share a row: part of a warp, a warp, or several warps.
pub(crate) mod block;
pub(crate) mod stats;
pub(crate) mod team;
pub(crate) mod team_row;
pub(crate) mod warp;
pub(crate) mod welford;
