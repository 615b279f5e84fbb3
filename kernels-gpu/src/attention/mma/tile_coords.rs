//! What a block works on.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use crate::layout::heads::{Heads, Token, divide};

/// A tile of queries of one head of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct TileCoords {
    /// The batch; 0 in packed tensors.
    pub batch: u32,
    pub head: u32,
    /// The first query of the tile, counted from the beginning of its sequence.
    pub first: u32,
    /// Queries and keys of the sequence.
    pub queries: u32,
    pub keys: u32,
    /// Where the sequence begins in packed tensors.
    query_start: u32,
    key_start: u32,
}

impl TileCoords {
    /// The block's own tile of queries; `None`: there is nothing to do.
    ///
    /// # Safety
    /// The parameters are those of a launch that the host checked.
    #[inline(always)]
    pub unsafe fn of_block(p: &AttentionParams, rows: u32) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::of_rows(p, rows, false) }
    }

    /// The block's own tile of queries, or of `keys`: then the head is the first of those that share them.
    ///
    /// # Safety
    /// As [`TileCoords::of_block`].
    #[inline(always)]
    pub unsafe fn of_rows(p: &AttentionParams, rows: u32, keys: bool) -> Option<Self> {
        let [batch, head, tile] = tile_of_block(p, keys);
        if p.query_starts.is_null() {
            let (first, queries, keys) = (tile * rows, p.queries, p.keys);
            return Some(Self { batch, head, first, queries, keys, query_start: 0, key_start: 0 });
        }
        let coords = Self { batch: 0, head, first: 0, queries: 0, keys: 0, query_start: 0, key_start: 0 };
        // SAFETY: as the caller promises: the numbers of all sequences, and one more.
        unsafe { coords.in_sequence(p, tile, rows, keys) }
    }

    /// Tile number `tile` of all sequences together. That of a sequence which begins at row `start` and is
    /// number `s` has the numbers from `start / rows + s` on: enough for its tiles, and each is found without
    /// knowing the others'.
    ///
    /// # Safety
    /// As [`TileCoords::of_block`], of packed sequences.
    #[inline(always)]
    unsafe fn in_sequence(self, p: &AttentionParams, tile: u32, rows: u32, keys: bool) -> Option<Self> {
        // SAFETY: as the caller promises.
        let start = |starts: *const i32, at: u32| unsafe {
            mem::load_u32(starts.wrapping_add(at as usize).cast(), Load::ReadOnly)
        };
        // Starts that are none must not lead outside the tensors.
        let span = |starts: *const i32, at: u32, there: u32| {
            let [first, end] = [at, at + 1].map(|at| start(starts, at).min(there));
            (first, end.saturating_sub(first))
        };
        let starts = if keys { p.key_starts } else { p.query_starts };
        let (mut sequence, mut end) = (0, p.batches);
        while end - sequence > 1 {
            let middle = sequence.midpoint(end);
            if start(starts, middle) / rows + middle <= tile {
                sequence = middle;
            } else {
                end = middle;
            }
        }
        let (query_start, queries) = span(p.query_starts, sequence, p.queries);
        let (key_start, keys_there) = span(p.key_starts, sequence, p.keys);
        let (row_start, there) = if keys { (key_start, keys_there) } else { (query_start, queries) };
        let first = tile.saturating_sub(row_start / rows + sequence) * rows;
        let there = first < there;
        there.then_some(Self {
            batch: 0,
            head: self.head,
            first,
            queries,
            keys: keys_there,
            query_start,
            key_start,
        })
    }

    /// All of a batch, which is not of packed sequences, for a head.
    #[inline(always)]
    pub fn whole(p: &AttentionParams, batch: u32, head: u32) -> Self {
        Self { batch, head, first: 0, queries: p.queries, keys: p.keys, query_start: 0, key_start: 0 }
    }

    /// With another head of those that share keys.
    #[inline(always)]
    pub fn with_member(&self, member: u32) -> Self {
        Self { head: self.head + member, ..*self }
    }

    /// The first query of the sequence, and what stands in its place in `out`.
    #[inline(always)]
    pub fn query<T>(&self, heads: &Heads) -> *mut T {
        heads.at(Token { batch: self.batch, number: self.query_start }, self.head)
    }

    /// The first key, or value, of the sequence.
    #[inline(always)]
    pub fn key<T>(&self, heads: &Heads, group: u32) -> *mut T {
        heads.at(Token { batch: self.batch, number: self.key_start }, divide(self.head, group).0)
    }

    /// Where the number of a query is in tensors of one number a query.
    #[inline(always)]
    pub fn number(&self, p: &AttentionParams, query: u32) -> usize {
        let head = u64::from(self.batch) * u64::from(p.heads) + u64::from(self.head);
        (head * u64::from(p.queries)) as usize + (self.query_start + query) as usize
    }
}

/// Batch, head and tile of the block.
#[inline(always)]
pub(crate) fn tile_of_block(p: &AttentionParams, keys: bool) -> [u32; 3] {
    let group = if keys { p.group } else { 1 };
    let (above, tile) = divide(thread::block_index()[0], p.tiles);
    let (batch, head) = divide(above, divide(p.heads, group).0);
    let tile = if !keys && p.backwards != 0 { p.tiles - 1 - tile } else { tile };
    [batch, head * group, tile]
}
