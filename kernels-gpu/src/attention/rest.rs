//! Rows of packed tensors behind the last sequence: padding, which is in none.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::Params;
use super::place::tile_of_block;
use crate::heads::{Heads, Token, divide};

/// What a block does that has no tile of a sequence: it writes zeros to the padding, if a tile of that is its own, and minus
/// infinity to `lse`. Apart from the work on sequences, whose registers are all in use.
///
/// # Safety
/// As [`Place::of_rows`](super::place::Place::of_rows), for a block to which that gave nothing; `outputs`, of 16-bit elements, have
/// the rows of `keys`, or of the queries, and are writable.
#[inline(always)]
pub(super) unsafe fn clear<const N: usize>(p: &Params, rows: u32, keys: bool, outputs: [Option<&Heads>; N]) {
    let [_, head, tile] = tile_of_block(p, keys);
    let (starts, there) = if keys { (p.key_starts, p.keys) } else { (p.query_starts, p.queries) };
    let end = starts.wrapping_add(p.batches as usize).cast();
    // SAFETY: as the caller promises: the numbers of all sequences, and one more.
    let end = unsafe { mem::load_u32(end, Load::ReadOnly) }.min(there);
    // See `Place::in_sequence`.
    let before = end / rows + p.batches;
    if tile < before {
        return;
    }
    let first = end + (tile - before) * rows;
    let rows = (first + rows).min(there).saturating_sub(first);
    let mut at = thread::index()[0];
    while at < rows * p.dim {
        let (row, col) = divide(at, p.dim);
        for heads in outputs.into_iter().flatten() {
            let head = if keys { divide(head, p.group).0 } else { head };
            let to: *mut u16 = heads.at(Token { batch: 0, number: first + row }, head);
            // SAFETY: a column of a row that is there.
            unsafe { mem::store_u16(to.wrapping_add(col as usize).cast(), 0, Store::Default) };
        }
        if !keys && col == 0 && !p.lse.is_null() {
            let number = u64::from(head) * u64::from(p.queries) + u64::from(first + row);
            let to = p.lse.wrapping_add(number as usize);
            // SAFETY: the host checked that there is one for each query.
            unsafe { mem::store_u32(to.cast(), f32::NEG_INFINITY.to_bits(), Store::Default) };
        }
        at += thread::block_dim()[0];
    }
}
