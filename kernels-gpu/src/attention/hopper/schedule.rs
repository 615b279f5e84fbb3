//! The order in which a block of the Hopper attention kernels processes its query tiles, and the keys that
//! each query tile attends to.
use cuda_std::thread;

use super::params::HopperParams;
use super::shape::Shape;

/// A tile of queries of one head of one batch.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile {
    /// Index of the batch.
    pub batch: u32,
    /// Index of the query head.
    pub head: u32,
    /// Index of the tile's first query.
    pub row: u32,
    /// Number of key tiles, from key 0 on, in which at least one key is visible to a query of this query
    /// tile.
    pub key_tiles: u32,
}

/// Iterates over the numbers of the query tiles of this block. If the grid has fewer blocks than query tiles,
/// a block computes several query tiles. Otherwise, each block has one query tile.
#[inline(always)]
pub(crate) fn numbers(p: &HopperParams) -> impl Iterator<Item = u32> {
    let (mut next, step, end) = (thread::block_index()[0], thread::grid_dim()[0], p.tiles);
    core::iter::from_fn(move || {
        let number = next;
        next += step;
        (number < end).then_some(number)
    })
}

impl QueryTile {
    /// Returns query tile number `number` of the launch.
    ///
    /// Causal kernels process the heads in sections (groups of heads). All query tiles of one section come
    /// before those of the next section. The keys and values of a section therefore stay in L2. Within a
    /// section, the query tiles that attend to the most keys come first. The launch then ends with query
    /// tiles that take little time, so the SMs finish at about the same time.
    #[inline(always)]
    pub fn of<K: Shape>(number: u32, p: &HopperParams) -> Self {
        let (query_tile, head) = if K::CAUSAL {
            let (section, within) = (number / p.section_tiles, number % p.section_tiles);
            (p.query_tiles.get() - 1 - within / p.section, section * p.section.get() + within % p.section)
        } else {
            (number % p.query_tiles, number / p.query_tiles)
        };
        let row = query_tile * K::ROWS;
        let mut keys = p.keys;
        if K::CAUSAL {
            let seen = (row + K::ROWS).min(p.queries) as i32 + p.diagonal;
            keys = keys.min(seen.max(0).cast_unsigned());
        }
        Self { batch: head / p.heads, head: head % p.heads, row, key_tiles: keys.div_ceil(K::KEYS) }
    }

    /// Returns the coordinates of a key tile in the tensor map of the keys: the index `first` of its first
    /// key, the key head and the batch.
    #[inline(always)]
    pub fn keys_at(self, first: u32, p: &HopperParams) -> [u32; 3] {
        [first, self.head / p.shared_by, self.batch]
    }

    /// For the queries `row` and `row + 8`, returns the index of the last visible key plus one. Both indices
    /// are relative to the key with index `first`.
    #[inline(always)]
    pub fn ends<K: Shape>(self, row: u32, first: u32, p: &HopperParams) -> [i32; 2] {
        let all = p.keys as i32 - first as i32;
        [0, 8].map(|below| match K::CAUSAL {
            true => all.min((row + below + 1) as i32 + p.diagonal - first as i32),
            false => all,
        })
    }

    /// Returns the number of key tiles, from key 0 on, in which every key is visible to all queries of this
    /// query tile. The scores of these key tiles need no masking.
    #[inline(always)]
    pub fn clear_tiles<K: Shape>(self, p: &HopperParams) -> u32 {
        let seen = if K::CAUSAL { (self.row as i32 + 1 + p.diagonal).max(0).cast_unsigned() } else { p.keys };
        seen.min(p.keys) / K::KEYS
    }
}
