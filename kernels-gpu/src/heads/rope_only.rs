//! Heads rotated in all columns, in pairs of neighbours: a thread has a quad of a token's queries and of its
//! keys, whose angles it reads once. For long heads, and for angles of each head, which are most of what is
//! read.
use cuda_std::prelude::*;

use super::params::{HeadParams, HeadsOperand, Rotary};
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::{Heads, Token, divide, put_vec4_at, vec4_at};

/// # Safety
/// As [`head_lanes`](super::warp::head_lanes), for heads of any number of columns; `rotary` rotates all of
/// them, in pairs of neighbours, by tables. The grid is one of groups of tokens, which are `y` in a block,
/// blocks of a token and batches.
#[inline(always)]
pub(crate) unsafe fn rotated_rows<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    let ([rank, nth, _], [threads, tokens, _], [group, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let token = Token { batch, number: group * tokens + nth };
    let at = 4 * (rank + threads * block);
    // Of a single head there is nothing to divide, which loads would wait for.
    let (head, column) = if at < p.dim { (0, at) } else { divide(at, p.dim) };
    let is_rotated = rotary.rotates(token, column);
    let exists = token.number < p.tokens;
    let (is_query, is_key) = (exists && head < q.heads, exists && head < k.heads);
    let head_address = |tensor: &Heads| tensor.at::<T>(token, head);
    // SAFETY: as the caller promises; the columns are this thread's alone.
    unsafe {
        let (query, key) = (
            vec4_at::<T>(head_address(&q.x), column, is_query),
            vec4_at::<T>(head_address(&k.x), column, is_key),
        );
        let mut angles = [Angles::NONE];
        if is_rotated && (is_query || is_key) {
            angles = rotary.vec4s::<T, 1>(token, head, [column]);
        }
        let rotated = |x: Vec4<T>| {
            if !is_rotated {
                return x;
            }
            let [y] = rotary.rotate::<T, 1>([x.lanes()], [interleaved_partners(x.lanes())], &angles);
            Vec4::from_lanes(y)
        };
        put_vec4_at(head_address(&q.y), column, rotated(query), is_query);
        put_vec4_at(head_address(&k.y), column, rotated(key), is_key);
    }
}
