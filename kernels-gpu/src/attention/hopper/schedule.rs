//! Which tile of queries a block works on, in which order, and which keys these see.
use cuda_std::thread;

use super::params::HopperParams;
use super::shape::Shape;

/// A tile of queries of a head of a batch.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile {
    pub batch: u32,
    pub head: u32,
    /// Its first query.
    pub row: u32,
    /// How many tiles of keys it sees: the first ones.
    pub key_tiles: u32,
}

/// The numbers of the block's tiles: as many blocks as fit take turns, or each tile has a block of its own.
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
    /// Tile `number`. Causal: a section of heads at a time, whose keys and values stay in L2, and in it the
    /// longest tiles first, so that the short ones fill the gaps at the end.
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

    /// Where its keys from number `first` on lie: that, head and batch.
    #[inline(always)]
    pub fn keys_at(self, first: u32, p: &HopperParams) -> [u32; 3] {
        [first, self.head / p.shared_by, self.batch]
    }

    /// Where, among the keys from `first` on, those end that a row of the tile sees, for the row and the one
    /// 8 below.
    #[inline(always)]
    pub fn ends<K: Shape>(self, row: u32, first: u32, p: &HopperParams) -> [i32; 2] {
        let all = p.keys as i32 - first as i32;
        [0, 8].map(|below| match K::CAUSAL {
            true => all.min((row + below + 1) as i32 + p.diagonal - first as i32),
            false => all,
        })
    }

    /// How many tiles of keys, the first ones, need no mask: all rows see all of their keys.
    #[inline(always)]
    pub fn clear_tiles<K: Shape>(self, p: &HopperParams) -> u32 {
        let seen = if K::CAUSAL { (self.row as i32 + 1 + p.diagonal).max(0).cast_unsigned() } else { p.keys };
        seen.min(p.keys) / K::KEYS
    }
}
