//! Starts the asynchronous matrix multiplications QKᵀ and PV of one key tile. The functions return before the
//! results are complete, and the caller waits for them.
use cuda_std::hopper::wgmma::{self, Descriptor};

use super::layout::{Layout, PART_ROW};
use super::shape::Shape;

/// Starts the matrix multiplication `scores = Q Kᵀ` with `wgmma`. Both operands are in shared memory.
///
/// # Safety
/// The query and key tiles have arrived in shared memory, and `wgmma::fence` was called. The whole warpgroup
/// calls this function. The caller does not access the scores before it calls `wgmma::settle`.
#[inline(always)]
pub(super) unsafe fn begin_scores<K: Shape>(scores: &mut K::Scores, queries: u32, keys: u32) {
    let (q, k) = (Descriptor::swizzled_128(queries, 16), Descriptor::swizzled_128(keys, 16));
    for step in 0..K::DIM / 16 {
        // A column slice has 64 columns, or 128 bytes per row. A `wgmma` instruction takes 16 columns (32
        // bytes) of each operand, so four instructions process one slice.
        let (part, within) = (step / 4, step % 4 * 32);
        let q = q.offset(part * Layout::<K>::QUERY_PART + within);
        let k = k.offset(part * Layout::<K>::KEY_PART + within);
        // SAFETY: the caller guarantees that the tiles are in shared memory, and that no code accesses the
        // scores while `wgmma` runs.
        unsafe { wgmma::mma_shared::<K::Elem, K::Scores>(scores, q, k, step > 0) };
    }
    // SAFETY: the whole warpgroup executes this code.
    unsafe { wgmma::commit() };
}

/// Starts the matrix multiplication `result += P V`. `weights` are the unnormalized probabilities P, in
/// registers.
///
/// # Safety
/// The value tile has arrived in shared memory, and `wgmma::fence` was called. The whole warpgroup calls this
/// function. The caller accesses neither `weights` nor the result before it calls `wgmma::settle`.
#[inline(always)]
pub(super) unsafe fn begin_result<K: Shape>(result: &mut K::Result, weights: &K::Weights, values: u32) {
    let v = Descriptor::swizzled_128(values, Layout::<K>::KEY_PART);
    for (step, &weights) in weights.as_ref().iter().enumerate() {
        let v = v.offset(step as u32 * 16 * PART_ROW);
        // SAFETY: `wgmma` reads the values in shared memory, and accesses the registers of P and of the
        // result. The caller guarantees that the values have arrived, and that no other code accesses these
        // registers while `wgmma` runs.
        unsafe { wgmma::mma_registers::<K::Elem, K::Result>(result, weights, v) };
    }
    // SAFETY: the whole warpgroup executes this code.
    unsafe { wgmma::commit() };
}
