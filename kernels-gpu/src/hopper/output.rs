//! From accumulators to rows in global memory.
use cuda_std::hopper::wgmma::Operand;
use cuda_std::mem::{Store, store_u32x4};
use cuda_std::warp;

use super::schedule::Tile;
use super::softmax::Softmax;
use super::{Params, own_thread};

const LN_2: f32 = core::f32::consts::LN_2;

/// Divides by the sums and stores the rows, and the logarithms of the sums if they are wanted. `row` is the first of the
/// thread's two.
///
/// # Safety
/// `p` is that of the launch, the whole warp is here.
#[inline(always)]
pub(crate) unsafe fn store<T: Operand<Lanes = [f32; 8]>>(
    out: &[f32],
    softmax: &Softmax,
    tile: Tile,
    row: u32,
    p: &Params,
) {
    let sums = softmax.sums();
    let inverse = sums.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
    let quad = own_thread() % 4;
    let [batches, queries, heads] = p.out_strides;
    let head = i64::from(tile.batch) * batches + i64::from(tile.head) * heads;
    for r in 0..2 {
        let row = row + 8 * r as u32;
        let inside = row < p.queries;
        if inside && quad == 0 && !p.lse.is_null() {
            let at =
                (u64::from(tile.batch * p.heads.get() + tile.head)) * u64::from(p.queries) + u64::from(row);
            let lse = (softmax.max[r] * softmax.scale + cuda_std::math::lg2(sums[r])) * LN_2;
            // SAFETY: `lse` has a number for each query of each head.
            unsafe { p.lse.add(at as usize).write(if sums[r] == 0.0 { f32::NEG_INFINITY } else { lse }) };
        }
        let to = p.out.wrapping_offset((head + i64::from(row) * queries) as isize);
        for block in 0..out.len() / 16 {
            // Registers of this row and of 32 columns: 4 pairs, each 8 columns further on.
            let at = |i: usize| 16 * block + i / 2 * 4 + 2 * r + i % 2;
            let words = transpose(T::pack(core::array::from_fn(|i| out[at(i)] * inverse[r])), quad);
            let column = 32 * block as u32 + 8 * quad;
            if inside && column < p.dim {
                // SAFETY: the row has these 8 columns; rows are aligned to 16 bytes, as the host checked.
                unsafe { store_u32x4(to.wrapping_add(2 * column as usize), words, Store::Default) }
            }
        }
    }
}

/// Word `j` of lane `i` of four goes to word `i` of lane `j`.
#[inline(always)]
fn transpose([a, b, c, d]: [u32; 4], lane: u32) -> [u32; 4] {
    let swap = |low: u32, high: u32, bit: u32| {
        let upper = lane & bit != 0;
        let other = warp::shuffle_xor(u32::MAX, if upper { low } else { high }, bit);
        if upper { (other, high) } else { (low, other) }
    };
    let ((a, b), (c, d)) = (swap(a, b, 1), swap(c, d, 1));
    let ((a, c), (b, d)) = (swap(a, c, 2), swap(b, d, 2));
    [a, b, c, d]
}
