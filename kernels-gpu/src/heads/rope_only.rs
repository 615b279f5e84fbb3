//! RoPE without a norm. All columns of a head are rotated, in interleaved pairs (pairs of adjacent columns).
//!
//! A thread rotates the same four columns of a query head and of the key head with the same index. The thread
//! loads the angles only once for both heads. This saves much memory traffic if each head has its own angles.
//! The kernel is also fast for long heads.
use cuda_std::prelude::*;

use super::params::{HeadParams, HeadsOperand, Rotary};
use super::rope::interleaved_partners;
use super::rope_angles::Angles;
use crate::layout::heads::{Heads, Token, divide, put_vec4_at, vec4_at};

/// Rotates the same four columns of one query head and of the key head with the same index.
///
/// # Safety
/// The safety conditions of [`head_lanes`](super::warp::head_lanes) apply, except that any head dimension is
/// permitted. `rotary` rotates all columns in interleaved pairs. The angles come from tables.
///
/// The grid is `[groups of tokens, blocks per group, batches]`. A block processes some columns of all tokens
/// of one group. `threadIdx.y` is the index of the token in the group.
#[inline(always)]
pub(crate) unsafe fn rotated_rows<T: Elem>(q: HeadsOperand, k: HeadsOperand, rotary: Rotary, p: HeadParams) {
    let ([rank, nth, _], [threads, tokens, _], [group, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let token = Token { batch, number: group * tokens + nth };
    let at = 4 * (rank + threads * block);
    // A division gives the index of the head. Threads of head 0 skip the division, so that their loads start
    // earlier.
    let (head, column) = if at < p.dim { (0, at) } else { divide(at, p.dim) };
    let is_rotated = rotary.rotates(token, column);
    let exists = token.number < p.tokens;
    let (is_query, is_key) = (exists && head < q.heads, exists && head < k.heads);
    let head_address = |tensor: &Heads| tensor.at::<T>(token, head);
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // The conditions `is_query` and `is_key` exclude heads that do not exist, and no other thread writes
    // these columns.
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
