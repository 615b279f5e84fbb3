//! Clears the padding rows of packed tensors. A packed tensor contains several sequences, and its padding
//! rows are the rows after the last sequence.
//!
//! A launch with packed sequences can have more blocks than there are tiles in the sequences. The additional
//! blocks clear the padding. This module computes all its indices again, instead of using those of the
//! attention loop. Shared index values would stay in registers during the loop, which has no free registers.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use super::tile_coords::tile_of_block;
use crate::layout::heads::{Heads, Token, divide};

/// A tile of padding rows of one head. Padding rows are the rows of a packed tensor (several sequences in one
/// tensor) after its last sequence.
#[derive(Clone, Copy)]
pub(crate) struct UnusedRows {
    first: u32,
    rows: u32,
    cols: u32,
    head: u32,
}

impl UnusedRows {
    /// Returns the tile of at most `rows` padding rows that this block clears. The rows belong to a tensor of
    /// keys if `keys` is true, otherwise to a tensor of queries. The result can be an empty tile.
    ///
    /// # Safety
    /// [`TileCoords::of_rows`](super::tile_coords::TileCoords::of_rows) returned `None` for the same
    /// arguments, which it does only in a launch with packed sequences (several sequences in one tensor).
    #[inline(always)]
    pub unsafe fn of_block(p: &AttentionParams, rows: u32, keys: bool) -> Self {
        let [_, head, tile] = tile_of_block(p, keys);
        let (starts, there) = if keys { (p.key_starts, p.keys) } else { (p.query_starts, p.queries) };
        // SAFETY: the load reads the element of `starts` with index `p.batches`. The element exists, because
        // the host checked that the array has one more element than there are sequences.
        let end = unsafe { mem::load_u32(starts.wrapping_add(p.batches as usize).cast(), Load::ReadOnly) };
        let end = end.min(there);
        // Tile numbers below `before` belong to the sequences, and larger numbers to the padding.
        // `TileCoords::in_sequence` explains the tile numbers.
        let before = end / rows + p.batches;
        let first = end + tile.saturating_sub(before) * rows;
        let rows = if tile < before { 0 } else { rows.min(there.saturating_sub(first)) };
        Self { first, rows, cols: p.dim, head: if keys { divide(head, p.group).0 } else { head } }
    }

    /// Writes zeros to these padding rows of the tensor `heads`.
    ///
    /// # Safety
    /// The tensor `heads` has 16-bit elements and is writable.
    #[inline(always)]
    pub unsafe fn clear(self, heads: &Heads) {
        let mut at = thread::index()[0];
        while at < self.rows * self.cols {
            let (row, col) = divide(at, self.cols);
            let to: *mut u16 = heads.at(Token { batch: 0, number: self.first + row }, self.head);
            // SAFETY: the store writes column `col` of row `row` of the tensor. This element exists, because
            // the loop bound keeps `row` below `rows` and `col` below `cols`. The caller passes a writable
            // tensor.
            unsafe { mem::store_u16(to.wrapping_add(col as usize).cast(), 0, Store::Default) };
            at += thread::block_dim()[0];
        }
    }

    /// Writes minus infinity to these padding rows of the log-sum-exp tensor `lse`. Minus infinity is the
    /// log-sum-exp of a query without visible keys. If `lse` is null, this function does nothing.
    ///
    /// # Safety
    /// The pointer `lse` is null, or the tensor has one element per head and query.
    #[inline(always)]
    pub unsafe fn clear_lse(self, p: &AttentionParams) {
        let row = thread::index()[0];
        if p.lse.is_null() || row >= self.rows {
            return;
        }
        let number = u64::from(self.head) * u64::from(p.queries) + u64::from(self.first + row);
        let to = p.lse.wrapping_add(number as usize);
        // SAFETY: the store writes the element of `lse` for this padding row. `row` is less than the number
        // of padding rows of this block, and the caller guarantees one element per head and query.
        unsafe { mem::store_u32(to.cast(), f32::NEG_INFINITY.to_bits(), Store::Default) };
    }
}
