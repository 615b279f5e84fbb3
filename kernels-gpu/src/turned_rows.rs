//! Heads rotated in all columns, in pairs of neighbours, a thread having eight columns of a token's queries and of its keys,
//! whose angles it reads once: where angles are many, because every column of a token has its own.
use cuda_std::prelude::*;

use crate::angles::Angles;
use crate::head_lanes::{Params, Side};
use crate::heads::{Token, divide};
use crate::octet::{LEN, Octet};
use crate::rotary::{Rotary, neighbours};

/// # Safety
/// As [`head_lanes`](crate::head_lanes::head_lanes), for heads of a number of columns divisible by 8 that can be accessed 16
/// bytes at a time; `rotary` rotates all columns in pairs of neighbours. The grid is one of tokens, blocks of a token and
/// batches.
#[inline(always)]
pub(crate) unsafe fn turned_rows<T: Elem>(q: Side, k: Side, rotary: Rotary, p: Params) {
    let ([rank, ..], [threads, ..], [number, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let token = Token { batch, number };
    let (head, column) = divide(LEN * (rank + threads * block), p.dim);
    let turns = rotary.rotates(token, column);
    let (is_query, is_key) = (head < q.heads, head < k.heads);
    // SAFETY: as the caller promises; the columns are this thread's alone.
    unsafe {
        let query = Octet::<T>::load(q.x.at::<T>(token, head).wrapping_add(column as usize), is_query);
        let key = Octet::<T>::load(k.x.at::<T>(token, head).wrapping_add(column as usize), is_key);
        let mut angles = [Angles::NONE; 2];
        if turns && (is_query || is_key) {
            angles = rotary.quads::<T, 2>(token, head, [column, column + 4]);
        }
        let turned = |x: Octet<T>| {
            let x = x.quads();
            if turns { rotary.turn::<T, 2>(x, x.map(neighbours), &angles) } else { x }
        };
        if is_query {
            Octet::store(q.y.at::<T>(token, head).wrapping_add(column as usize), turned(query));
        }
        if is_key {
            Octet::store(k.y.at::<T>(token, head).wrapping_add(column as usize), turned(key));
        }
    }
}
