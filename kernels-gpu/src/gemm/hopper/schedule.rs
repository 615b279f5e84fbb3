//! The places of the tiles of a block in the result.
use cuda_std::{cluster, thread};

use super::params::{GemmParams, SLICE, WGMMA_ROWS};
use super::shape::GemmKernel;

/// The place of a tile in `y`.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// First row of the block's tile.
    pub row: u32,
    /// First column of the block's tile.
    pub column: u32,
}

/// Returns the number of the block's first tile, and the distance to the number of its next tile. The numbers
/// count the joint tiles of clusters, so all blocks of a cluster have the same tile numbers.
///
/// The callers loop with `while`. For a `for` loop over an iterator, LLVM emits a second condition. ptxas
/// then no longer recognizes that all threads of a warp execute the same iterations.
#[inline(always)]
pub(crate) fn numbers<K: GemmKernel>() -> [u32; 2] {
    [thread::block_index()[0], thread::grid_dim()[0]].map(|blocks| blocks / K::TILE.cluster)
}

impl Place {
    /// Returns the coordinates of the block's own tile within tile number `number`, which is the joint tile
    /// of the blocks of a cluster.
    #[inline(always)]
    pub fn of<K: GemmKernel>(number: u32, p: &GemmParams) -> Self {
        let ([row, column], [height, width]) = (p.order.place(number), K::CLUSTER_SIZE);
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

/// Returns the row and the column in `y` of the first result of part `part`. A part of a warp's results has
/// the size of a staging buffer. `first` is the place of the warp's first sum.
#[inline(always)]
pub(crate) fn part_place<K: GemmKernel>(first: [u32; 2], part: u32) -> [u32; 2] {
    [first[0] + part % K::TILE.blocks * WGMMA_ROWS, first[1] + part / K::TILE.blocks * SLICE]
}
