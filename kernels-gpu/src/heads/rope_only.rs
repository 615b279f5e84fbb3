//! RoPE without a norm, for heads whose columns are all rotated in interleaved pairs.
//!
//! A thread rotates one vec4 of a query and the same vec4 of a key, and loads their angles once. This suits
//! long heads. It also suits heads with their own angles, whose tables are then most of the memory traffic.
use cuda_std::prelude::*;

use super::params::{HeadParams, HeadsOperand, Rotary};
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::{Heads, Token, divide, put_vec4_at, vec4_at};

/// Rotates one vec4 of the queries and of the keys of a token.
///
/// # Safety
/// As [`head_lanes`](super::warp::head_lanes), for any head dimension. `rotary` rotates all columns, in
/// interleaved pairs, with angles from tables. The grid is `[groups of tokens, blocks per token, batches]`.
/// The y dimension of a block is the tokens of a group.
#[inline(always)]
pub(crate) unsafe fn rotated_rows<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    let ([rank, nth, _], [threads, tokens, _], [group, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let token = Token { batch, number: group * tokens + nth };
    let at = 4 * (rank + threads * block);
    // The first head needs no division. This shortens the time until the loads.
    let (head, column) = if at < p.dim { (0, at) } else { divide(at, p.dim) };
    let is_rotated = rotary.rotates(token, column);
    let exists = token.number < p.tokens;
    let (is_query, is_key) = (exists && head < q.heads, exists && head < k.heads);
    let head_address = |tensor: &Heads| tensor.at::<T>(token, head);
    // SAFETY: the caller passes checked operands. `is_query` and `is_key` exclude missing heads, and no other
    // thread writes these columns.
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
