//! Normalises and rotates (RoPE) heads of 128 columns if each head has its own angles.
//!
//! A lane processes the same columns of a query head and of the key head with the same index. The lane has
//! four columns in each half of a head. The tables of angles are about as large as queries and keys together,
//! so the kernel loads each angle only once for both heads. All loads of a lane are in flight together.
//!
//! For Mochi (11,130 tokens, 24 heads, bf16) on an H200, this kernel takes 102 µs. The kernel `head_lanes`,
//! which loads the angles for queries and again for keys, takes 241 µs. A copy of the same number of bytes
//! takes 98 µs (`benches/results/decisions/qk_norm_rope_angles_by_head.txt`).
use cuda_std::prelude::*;

use super::norm_halves::HalvesNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use super::rope_angles::Angles;
use super::warp_halves::rotated;
use crate::layout::heads::{Token, put_vec4_at, vec4_at};

/// Head dimension.
pub const DIM: u32 = 128;
/// Lanes that share a head.
const WIDTH: u32 = DIM / 8;
/// Heads that the lanes of a warp process at once.
pub const HEADS_AT_ONCE: u32 = warp::SIZE / WIDTH;

/// Each group of 16 lanes normalises, rotates and writes one query head and the key head with the same index.
///
/// # Safety
/// The safety conditions of [`head_lanes`](super::warp::head_lanes) apply. In addition, the head dimension is
/// [`DIM`], and `rotary` rotates all columns or none. The grid is `[tokens, blocks per token, batches]`, with
/// enough lanes for all query heads and key heads.
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
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // `has` is false if an operand has no head with index `head`. Only one lane writes each column of a head.
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
