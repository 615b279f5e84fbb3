//! Heads rotated in all columns, in pairs of neighbours: a thread has a quad of a token's queries and of its
//! keys, whose angles it reads once. For long heads, and for angles of each head, which are most of what is
//! read.
use cuda_std::prelude::*;

use super::params::{Params, Rotary, Side};
use super::rope::neighbours;
use super::rope_angles::Angles;
use crate::layout::heads::{Heads, Token, divide, put_quad_at, quad_at};

/// # Safety
/// As [`head_lanes`](super::warp::head_lanes), for heads of any number of columns; `rotary` rotates all of
/// them, in pairs of neighbours, by tables. The grid is one of groups of tokens, which are `y` in a block,
/// blocks of a token and batches.
#[inline(always)]
pub(crate) unsafe fn turned_rows<T: Elem>(q: Side, k: Side, rotary: Rotary, p: Params) {
    let ([rank, nth, _], [threads, tokens, _], [group, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let token = Token { batch, number: group * tokens + nth };
    let at = 4 * (rank + threads * block);
    // Of a single head there is nothing to divide, which loads would wait for.
    let (head, column) = if at < p.dim { (0, at) } else { divide(at, p.dim) };
    let turns = rotary.rotates(token, column);
    let exists = token.number < p.tokens;
    let (is_query, is_key) = (exists && head < q.heads, exists && head < k.heads);
    let place = |tensor: &Heads| tensor.at::<T>(token, head);
    // SAFETY: as the caller promises; the columns are this thread's alone.
    unsafe {
        let (query, key) =
            (quad_at::<T>(place(&q.x), column, is_query), quad_at::<T>(place(&k.x), column, is_key));
        let mut angles = [Angles::NONE];
        if turns && (is_query || is_key) {
            angles = rotary.quads::<T, 1>(token, head, [column]);
        }
        let turned = |x: Quad<T>| {
            if !turns {
                return x;
            }
            let [y] = rotary.turn::<T, 1>([x.lanes()], [neighbours(x.lanes())], &angles);
            Quad::from_lanes(y)
        };
        put_quad_at(place(&q.y), column, turned(query), is_query);
        put_quad_at(place(&k.y), column, turned(key), is_key);
    }
}
