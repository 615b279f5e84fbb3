//! Heads of 128 columns whose angles are their own: a lane has a quad in each half of a head of the queries
//! and of the same head of the keys.
//!
//! The tables have as many bytes as queries and keys: they are read once for both, and all that a lane reads
//! is in flight together. At Mochi's size that takes 42 % of the time of `head_lanes`, whose warps go from
//! head to head: 102 µs, 96 % of a copy of as many bytes, on an H200.
use cuda_std::prelude::*;

use super::norm_halves::HalvesNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use super::rope_angles::Angles;
use super::warp_halves::rotated;
use crate::layout::heads::{Token, put_vec4_at, vec4_at};

/// Columns of a head.
pub const DIM: u32 = 128;
/// Lanes that share a head.
const WIDTH: u32 = DIM / 8;
/// Heads side by side in a warp.
pub const HEADS_AT_ONCE: u32 = warp::SIZE / WIDTH;

/// # Safety
/// As [`head_lanes`](super::warp::head_lanes), for heads of [`DIM`] columns, of which `rotary` rotates all or
/// none. The grid is one of tokens, blocks of a token and batches, with lanes for all heads.
#[inline(always)]
pub(crate) unsafe fn paired_heads<T: Elem, N: HalvesNorm>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let ([_, warp, _], [_, warps, _], [number, block, batch]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let (token, is_rotated) = (Token { batch, number }, rotary.rotates(Token { batch, number }, 0));
    let head = (block * warps + warp) * HEADS_AT_ONCE + warp::lane() / WIDTH;
    let column = warp::lane() % WIDTH * 4;
    let columns = [column, column + DIM / 2];
    let operands = [&q, &k];
    let has = operands.map(|operand| head < operand.heads);
    let mut x = [[Vec4::<T>::ZERO; 2]; 2];
    let mut angles = [Angles::NONE; 2];
    // SAFETY: as the caller promises; a head's columns are its lanes' alone.
    unsafe {
        for i in 0..2 {
            let start = operands[i].x.at::<T>(token, head);
            x[i] = columns.map(|at| vec4_at(start, at, has[i]));
        }
        if is_rotated && (has[0] || has[1]) {
            angles = rotary.vec4s::<T, 2>(token, head, columns);
        }
        let stats = N::of_halves::<T, DIM, 2>(&x, p.norm);
        for i in 0..2 {
            let parameters = N::parameters_at::<T>(&operands[i].affine, columns);
            let own = x[i].map(|vec4| vec4.opaque_lanes().lanes());
            let mut y = N::apply::<T, 2>(stats[i], own, &parameters, p.norm);
            if is_rotated {
                y = rotated::<T>(&rotary, y, &angles);
            }
            let start = operands[i].y.at::<T>(token, head);
            for half in 0..2 {
                put_vec4_at(start, columns[half], Vec4::from_lanes(y[half]), has[i]);
            }
        }
    }
}
