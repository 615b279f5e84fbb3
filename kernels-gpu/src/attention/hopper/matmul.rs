//! The two matrix products of a tile of keys: begun here, waited for by the consumer.
use cuda_std::hopper::wgmma::{self, Descriptor};

use super::layout::{Layout, PART_ROW};
use super::shape::Shape;

/// Begins `scores = q k^T`, with both operands in shared memory.
///
/// # Safety
/// The tiles are there, a fence was made, the whole warp group is here, and the scores are left alone until they settle.
#[inline(always)]
pub(super) unsafe fn begin_scores<K: Shape>(scores: &mut K::Scores, queries: u32, keys: u32) {
    let (q, k) = (Descriptor::swizzled_128(queries, 16), Descriptor::swizzled_128(keys, 16));
    for step in 0..K::DIM / 16 {
        // 64 columns are a part, and the swizzle lets 16 of them begin at every 32 bytes of its rows.
        let (part, within) = (step / 4, step % 4 * 32);
        let q = q.offset(part * Layout::<K>::QUERY_PART + within);
        let k = k.offset(part * Layout::<K>::KEY_PART + within);
        // SAFETY: as the caller promises.
        unsafe { wgmma::mma_shared::<K::Elem, K::Scores>(scores, q, k, step > 0) };
    }
    // SAFETY: as above.
    unsafe { wgmma::commit() };
}

/// Begins `result += weights v`, with the weights in registers.
///
/// # Safety
/// As [`begin_scores`]; the weights too are left alone.
#[inline(always)]
pub(super) unsafe fn begin_result<K: Shape>(result: &mut K::Result, weights: &K::Weights, values: u32) {
    let v = Descriptor::swizzled_128(values, Layout::<K>::KEY_PART);
    for (step, &weights) in weights.as_ref().iter().enumerate() {
        let v = v.offset(step as u32 * 16 * PART_ROW);
        // SAFETY: as the caller promises.
        unsafe { wgmma::mma_registers::<K::Elem, K::Result>(result, weights, v) };
    }
    // SAFETY: as above.
    unsafe { wgmma::commit() };
}
