//! Rows of packed tensors behind the last sequence: padding, which is in none. Blocks that have no tile of a
//! sequence write its results, apart from the work on sequences, whose registers are all in use.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::AttentionParams;
use super::tile_coords::tile_of_block;
use crate::layout::heads::{Heads, Token, divide};

/// A tile of padding.
#[derive(Clone, Copy)]
pub(crate) struct UnusedRows {
    first: u32,
    rows: u32,
    cols: u32,
    head: u32,
}

impl UnusedRows {
    /// The block's own tile of `rows` queries, or of `keys`. Of a block to which
    /// [`TileCoords::of_rows`](super::tile_coords::Place::of_rows) gave nothing.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn of_block(p: &AttentionParams, rows: u32, keys: bool) -> Self {
        let [_, head, tile] = tile_of_block(p, keys);
        let (starts, there) = if keys { (p.key_starts, p.keys) } else { (p.query_starts, p.queries) };
        // SAFETY: as the caller promises: the numbers of all sequences, and one more.
        let end = unsafe { mem::load_u32(starts.wrapping_add(p.batches as usize).cast(), Load::ReadOnly) };
        let end = end.min(there);
        // The first tiles' numbers are those of sequences: see `TileCoords::in_sequence`.
        let before = end / rows + p.batches;
        let first = end + tile.saturating_sub(before) * rows;
        let rows = if tile < before { 0 } else { rows.min(there.saturating_sub(first)) };
        Self { first, rows, cols: p.dim, head: if keys { divide(head, p.group).0 } else { head } }
    }

    /// Writes zeros.
    ///
    /// # Safety
    /// The rows of `heads`, of 16-bit elements, are writable.
    #[inline(always)]
    pub unsafe fn clear(self, heads: &Heads) {
        let mut at = thread::index()[0];
        while at < self.rows * self.cols {
            let (row, col) = divide(at, self.cols);
            let to: *mut u16 = heads.at(Token { batch: 0, number: self.first + row }, self.head);
            // SAFETY: a column of a row that is there.
            unsafe { mem::store_u16(to.wrapping_add(col as usize).cast(), 0, Store::Default) };
            at += thread::block_dim()[0];
        }
    }

    /// Writes minus infinity: what queries that see no key have in `lse`, unless that is null.
    ///
    /// # Safety
    /// It has a number for each query.
    #[inline(always)]
    pub unsafe fn clear_lse(self, p: &AttentionParams) {
        let row = thread::index()[0];
        if p.lse.is_null() || row >= self.rows {
            return;
        }
        let number = u64::from(self.head) * u64::from(p.queries) + u64::from(self.first + row);
        let to = p.lse.wrapping_add(number as usize);
        // SAFETY: as the caller promises.
        unsafe { mem::store_u32(to.cast(), f32::NEG_INFINITY.to_bits(), Store::Default) };
    }
}
