//! Masks of the Hopper attention kernels. The functions set the scores of invisible keys to minus infinity,
//! and add an additive mask to the scores of a key tile.
use cuda_std::hopper::{shared_load_pair, shared_store};
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::HopperParams;
use super::softmax::{VEC4, row_of};
use crate::attention::mma::mask::addend;
use crate::attention::mma::params::Mask;
use crate::layout::own_thread::own_thread;

/// Returns the column of accumulator register `register`, relative to the thread's first column. In a `wgmma`
/// accumulator, register `4 * j + 2 * row + c` has the relative column `8 * j + c`. Here, `row` and `c` are 0
/// or 1.
#[inline(always)]
fn column(register: usize) -> u32 {
    (register / 4 * 8 + register % 2) as u32
}

/// Hides keys from the thread's two rows. In row `row` (0 or 1), this function sets the scores of all keys
/// with index `ends[row]` or higher to minus infinity. Key indices are relative to the first key of the tile.
#[inline(always)]
pub(crate) fn hide(scores: &mut [f32], ends: [i32; 2]) {
    let first = (own_thread() % VEC4 * 2) as i32;
    let ends = ends.map(|end| end - first);
    for i in 0..scores.len() {
        if column(i) as i32 >= ends[row_of(i)] {
            scores[i] = f32::NEG_INFINITY;
        }
    }
}

/// Adds the additive mask of a key tile to the scores of the tile. `mask` is the address of the mask values
/// in shared memory, one f32 per key.
///
/// # Safety
/// All mask values of the tile have been written, and the writes are visible to this thread.
#[inline(always)]
pub(crate) unsafe fn add(scores: &mut [f32], mask: u32) {
    let first = mask + own_thread() % VEC4 * 8;
    for j in 0..scores.len() / 4 {
        // SAFETY: the load reads two mask values at `mask`. The caller guarantees that the mask has one value
        // per key of the tile.
        let pair = unsafe { shared_load_pair(first + 4 * column(4 * j)) };
        for i in 0..4 {
            scores[4 * j + i] += pair[i % 2];
        }
    }
}

/// Writes the additive mask values of `keys` keys, from key `first` on, to address `mask` in shared memory.
/// The function divides the mask values by the scale of the scores. This is necessary because consumer warps
/// add the values to unscaled scores, and multiply the sums by the scale.
///
/// # Safety
/// The whole warp calls this function. The buffer at `mask` has at least `keys` f32 elements. The mask is
/// readable at every key of the batch.
#[inline(always)]
pub(crate) unsafe fn prefetch<T: Elem>(
    mask: u32,
    keys: u32,
    [first, head, batch]: [u32; 3],
    p: &HopperParams,
) {
    let [batches, heads, _, stride] = p.mask.strides;
    let row = i64::from(batch) * batches + i64::from(head) * heads;
    let mut key = warp::lane();
    while key < keys {
        // The last tile can extend past the last key of the batch. For an index after the last key, the
        // function loads the mask value of the last key instead. Any value would do, because the consumer
        // warps set the scores of such keys to minus infinity.
        let at = row + i64::from((first + key).min(p.keys - 1)) * stride;
        // SAFETY: the load reads the mask at an existing key, because `min` clamps the index. The store
        // writes element `key` of the buffer. The caller passes a buffer of `keys` values, and `key` is less
        // than `keys`.
        unsafe { shared_store(mask + 4 * key, addend(load::<T>(&p.mask, at), p.unscale)) };
        key += 32;
    }
}

/// Loads the mask element at index `at`, and converts it to an f32 value to add to a score. For a boolean
/// mask, true becomes 0, and false becomes minus infinity.
///
/// # Safety
/// The element is readable.
#[inline(always)]
unsafe fn load<T: Elem>(mask: &Mask, at: i64) -> f32 {
    let at = at as isize;
    // SAFETY: the load reads one mask element, which the caller guarantees to be readable. Each branch reads
    // exactly the bytes of one element of its mask type.
    unsafe {
        match mask.kind {
            Mask::BOOL if mem::load_u8(mask.base.wrapping_offset(at), Load::ReadOnly) == 0 => {
                f32::NEG_INFINITY
            }
            Mask::BOOL => 0.0,
            Mask::F32 => f32::from_bits(mem::load_u32(mask.base.wrapping_offset(4 * at), Load::ReadOnly)),
            _ => T::from_bits(u32::from(mem::load_u16(mask.base.wrapping_offset(2 * at), Load::ReadOnly)))
                .to_f32(),
        }
    }
}
