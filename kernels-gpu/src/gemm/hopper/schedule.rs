//! The order in which the blocks compute the tiles of the result.
use cuda_std::{cluster, thread};

use super::params::GemmParams;
use super::shape::GemmKernel;

/// The place of a tile in `y`.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// First row of the block's tile.
    pub row: u32,
    /// First column of the block's tile.
    pub column: u32,
}

/// Iterates over the tiles of this block.
#[inline(always)]
pub(crate) fn places<K: GemmKernel>(p: &GemmParams) -> impl Iterator<Item = Place> {
    let clusters = K::TILE.cluster;
    let (mut next, step) = (thread::block_index()[0] / clusters, thread::grid_dim()[0] / clusters);
    let end = p.tile_rows * p.tile_columns;
    core::iter::from_fn(move || {
        let number = next;
        next += step;
        (number < end).then(|| Place::of::<K>(number, p))
    })
}

impl Place {
    /// Returns the place of the block's tile in tile number `number` of the clusters.
    ///
    /// The tiles are ordered in groups of `group_rows` rows of tiles. Within a group, consecutive tiles are
    /// below each other, so the tiles that run at the same time use few rows of `x` and of `w`.
    #[inline(always)]
    fn of<K: GemmKernel>(number: u32, p: &GemmParams) -> Self {
        let (group, within) = (number / p.group_tiles, number % p.group_tiles);
        let first = group * p.group_rows.get();
        let rows = (p.tile_rows - first).clamp(1, p.group_rows.get());
        let [height, width] = K::TILE.cluster_size();
        let (row, column) = ((first + within % rows) * height, within / rows * width);
        if K::TILE.cluster == 1 {
            return Self { row, column };
        }
        match K::TILE.shares_x {
            true => Self { row, column: column + cluster::rank() * K::TILE.columns },
            false => Self { row: row + cluster::rank() * K::TILE.rows(), column },
        }
    }
}
