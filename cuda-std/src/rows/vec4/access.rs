//! The ways of reading and writing a row.
#[allow(unused_imports, reason = "named in documentation")]
use crate::rows::row::Rows;

/// `ACCESS`: one element at a time; any row.
pub const SCALAR: u32 = 0;
/// `ACCESS`: a quad at a time; the row is `Rows::is_quads`.
pub const QUADS: u32 = 1;
/// `ACCESS`: a quad at a time, and no thread asks whether it has columns in one of the row's tiles; the row is
/// `Rows::is_vector` and [`Rows::is_near`], has four tiles or more, its columns are divisible by [`TILE`](super::TILE), and rows are
/// fewer than 2^30.
pub const WHOLE: u32 = 2;
/// `ACCESS`: as [`WHOLE`], of rows each of which the four warps of a block share: a warp has every fourth tile.
pub const TEAM: u32 = 3;
/// `ACCESS`: `HELD + n` as [`WHOLE`], of rows of `n` tiles that stay in the registers of their warp.
pub const HELD: u32 = 16;
/// `ACCESS`: `HELD_TEAM + n` as [`TEAM`], of rows of `4 n` tiles that stay in the registers of the block's warps.
pub const HELD_TEAM: u32 = 64;
/// `ACCESS`: `HELD_BLOCK + n` as [`HELD_TEAM`], but no row waits in shared memory.
pub const HELD_BLOCK: u32 = 128;

/// The most quads of a row that stay in a thread's registers.
pub const MOST_HELD: usize = 12;

/// The quads of a row that stay in a thread's registers, at most; 0: none.
pub const fn held(access: u32) -> usize {
    match access {
        HELD_BLOCK.. => (access - HELD_BLOCK) as usize,
        HELD_TEAM.. => (access - HELD_TEAM) as usize,
        HELD.. => (access - HELD) as usize,
        _ => 0,
    }
}

/// Does a block share each row?
pub const fn shared(access: u32) -> bool {
    matches!(access, TEAM | HELD_TEAM..)
}
