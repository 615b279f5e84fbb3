//! Maps the index of a block to the coordinates of the tile that the block computes. The coordinates are the
//! batch, the head, and the first row. A packed tensor contains several sequences, and for such a tensor, the
//! sequence takes the role of the batch.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use crate::layout::heads::{Heads, Token, divide};

/// The coordinates of a tile. The rows of a tile belong to one head of one sequence. The rows are queries,
/// except in the backward kernels for dK and dV. There, the rows are keys.
#[derive(Clone, Copy)]
pub(crate) struct TileCoords {
    /// Index of the batch, or 0 for packed sequences (several sequences in one tensor).
    pub batch: u32,
    /// Index of the query head.
    pub head: u32,
    /// The first row of the tile, counted from the start of its sequence.
    pub first: u32,
    /// Number of queries in the sequence.
    pub queries: u32,
    /// Number of keys in the sequence.
    pub keys: u32,
    /// Index of the sequence's first query in the packed tensor (several sequences in one tensor). The value
    /// is 0 if the tensors are not packed.
    query_start: u32,
    /// Index of the sequence's first key in the packed tensor (several sequences in one tensor). The value is
    /// 0 if the tensors are not packed.
    key_start: u32,
}

impl TileCoords {
    /// Returns the coordinates of the tile of `rows` queries that this block computes. Returns `None` if the
    /// block has no tile. Only launches with packed sequences (several sequences in one tensor) have blocks
    /// without a tile.
    ///
    /// # Safety
    /// The host validated the kernel argument `p` for this launch.
    #[inline(always)]
    pub unsafe fn of_block(p: &AttentionParams, rows: u32) -> Option<Self> {
        // SAFETY: `of_rows` requires that the host validated `p` for this launch. The caller guarantees this.
        unsafe { Self::of_rows(p, rows, false) }
    }

    /// Returns the coordinates of the tile of `rows` rows that this block computes. Returns `None` if the
    /// block has no tile. Only launches with packed sequences (several sequences in one tensor) have blocks
    /// without a tile.
    ///
    /// The rows are keys if `keys` is true, otherwise queries. In the coordinates of a tile of keys, the
    /// field `head` is the first of the query heads that share the key head (GQA).
    ///
    /// # Safety
    /// The host validated the kernel argument `p` for this launch.
    #[inline(always)]
    pub unsafe fn of_rows(p: &AttentionParams, rows: u32, keys: bool) -> Option<Self> {
        let [batch, head, tile] = tile_of_block(p, keys);
        if p.query_starts.is_null() {
            let (first, queries, keys) = (tile * rows, p.queries, p.keys);
            return Some(Self { batch, head, first, queries, keys, query_start: 0, key_start: 0 });
        }
        let coords = Self { batch: 0, head, first: 0, queries: 0, keys: 0, query_start: 0, key_start: 0 };
        // SAFETY: `in_sequence` requires a validated kernel argument, which the caller guarantees, and packed
        // sequences (several sequences in one tensor). The launch has packed sequences, because
        // `query_starts` is not null.
        unsafe { coords.in_sequence(p, tile, rows, keys) }
    }

    /// Returns the coordinates of tile number `tile` of a packed tensor (several sequences in one tensor), or
    /// `None` if no tile has this number. The tiles are numbered in the order of the sequences, but some
    /// numbers between two sequences are unused.
    ///
    /// A tile has `rows` rows. Sequence number `s`, whose first row in the packed tensor is `start`, has the
    /// tile numbers from `start / rows + s` on. The formula leaves enough numbers for all tiles of sequence
    /// `s` before the first number of sequence `s + 1`. It depends only on the start of the sequence, so a
    /// block can find its sequence by binary search over the starts.
    ///
    /// # Safety
    /// The host validated the kernel argument `p` for this launch. The launch has packed sequences.
    #[inline(always)]
    unsafe fn in_sequence(self, p: &AttentionParams, tile: u32, rows: u32, keys: bool) -> Option<Self> {
        // SAFETY: the load is inside the array of start rows. `at` is at most `p.batches`, the number of
        // sequences, and the host checked that the array has one more element than there are sequences.
        let start = |starts: *const i32, at: u32| unsafe {
            mem::load_u32(starts.wrapping_add(at as usize).cast(), Load::ReadOnly)
        };
        // Clamp the start offsets of the sequences to the length of the tensor. Otherwise, an invalid offset
        // could cause an access outside the tensor.
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

    /// Returns coordinates for query head `head` of batch `batch`, with the first query of the batch as first
    /// row. The launch must not have packed sequences (several sequences in one tensor).
    #[inline(always)]
    pub fn whole(p: &AttentionParams, batch: u32, head: u32) -> Self {
        Self { batch, head, first: 0, queries: p.queries, keys: p.keys, query_start: 0, key_start: 0 }
    }

    /// Returns a copy of these coordinates for query head `head + member`. `head` is the first of the query
    /// heads that share a key head (GQA), and `member` is the index of one of these query heads.
    #[inline(always)]
    pub fn with_member(&self, member: u32) -> Self {
        Self { head: self.head + member, ..*self }
    }

    /// Returns a pointer into the tensor `heads`, to the sequence's first query of this query head. The
    /// tensor is `q` or has the shape of `q`, for example the output.
    #[inline(always)]
    pub fn query<T>(&self, heads: &Heads) -> *mut T {
        heads.at(Token { batch: self.batch, number: self.query_start }, self.head)
    }

    /// Returns a pointer into the tensor `heads`, to the sequence's first key of the key head that this query
    /// head uses. The tensor is `k`, `v` or one of their gradients. `group` is the number of query heads per
    /// key head (GQA).
    #[inline(always)]
    pub fn key<T>(&self, heads: &Heads, group: u32) -> *mut T {
        heads.at(Token { batch: self.batch, number: self.key_start }, divide(self.head, group).0)
    }

    /// Returns the index of the element of query `query` in a tensor with one f32 per head and query, such as
    /// `lse` (log-sum-exp).
    #[inline(always)]
    pub fn number(&self, p: &AttentionParams, query: u32) -> usize {
        let head = u64::from(self.batch) * u64::from(p.heads) + u64::from(self.head);
        (head * u64::from(p.queries)) as usize + (self.query_start + query) as usize
    }
}

/// Returns `[batch, query head, tile number]` for this block. If `keys` is true, the tile contains keys.
/// Several query heads can share its key head (GQA), and the second value is the first of these query heads.
#[inline(always)]
pub(crate) fn tile_of_block(p: &AttentionParams, keys: bool) -> [u32; 3] {
    let group = if keys { p.group } else { 1 };
    let (above, tile) = divide(thread::block_index()[0], p.tiles);
    let (batch, head) = divide(above, divide(p.heads, group).0);
    let tile = if !keys && p.backwards != 0 { p.tiles - 1 - tile } else { tile };
    [batch, head * group, tile]
}
