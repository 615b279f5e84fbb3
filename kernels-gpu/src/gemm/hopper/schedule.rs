//! The places of the tiles of a block in the result.
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
    core::iter::from_fn(move || {
        let number = next;
        next += step;
        (number < p.order.count()).then(|| Place::of::<K>(p.order.place(number)))
    })
}

impl Place {
    /// Returns the place of the block's tile in a tile of the clusters, whose row and column are given in
    /// tiles.
    #[inline(always)]
    fn of<K: GemmKernel>([row, column]: [u32; 2]) -> Self {
        let [height, width] = K::CLUSTER_SIZE;
        let (row, column) = (row * height, column * width);
        if K::TILE.cluster == 1 {
            return Self { row, column };
        }
        match K::TILE.shares_x {
            true => Self { row, column: column + cluster::rank() * K::COLUMNS },
            false => Self { row: row + cluster::rank() * K::TILE.rows(), column },
        }
    }
}
