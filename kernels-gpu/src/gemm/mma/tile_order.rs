//! The order in which the blocks compute the tiles of the result.
use cuda_std::thread;

use super::params::LinearParams;

/// Returns the row and the column of this block's tile, in tiles.
///
/// The tiles are ordered in groups of `group_rows` rows of tiles. Within a group, consecutive tiles are below
/// each other, so the tiles that run at the same time use few rows of `x` and of `w`.
#[inline(always)]
pub(super) fn tile_of_block(p: &LinearParams) -> [u32; 2] {
    let number = thread::block_index()[0];
    let (group, within) = (number / p.group_tiles, number % p.group_tiles);
    let first = group * p.group_rows.get();
    let rows = (p.tile_rows - first).clamp(1, p.group_rows.get());
    [first + within % rows, within / rows]
}
