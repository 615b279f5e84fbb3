//! Keys that queries do not see, and what is added to scores.
use cuda_std::hopper::{shared_load_pair, shared_store};
use cuda_std::mem;
use cuda_std::prelude::*;

use super::own_thread::own_thread;
use super::params::HopperParams;
use super::softmax::{VEC4, row_of};
use crate::attention::mma::mask::addend;
use crate::attention::mma::params::Mask;

/// The number in its tile of the first column that a register of the thread belongs to: `4 * j + 2 * row +
/// c`.
#[inline(always)]
fn column(register: usize) -> u32 {
    (register / 4 * 8 + register % 2) as u32
}

/// Scores of keys from number `ends` of their row on become -inf: it counts from the tile's first key.
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

/// Adds the mask of a tile, at `mask` in shared memory.
///
/// # Safety
/// It is there.
#[inline(always)]
pub(crate) unsafe fn add(scores: &mut [f32], mask: u32) {
    let first = mask + own_thread() % VEC4 * 8;
    for j in 0..scores.len() / 4 {
        // SAFETY: as the caller promises.
        let pair = unsafe { shared_load_pair(first + 4 * column(4 * j)) };
        for i in 0..4 {
            scores[4 * j + i] += pair[i % 2];
        }
    }
}

/// Brings the mask of the keys from `first` on to `mask` in shared memory, divided by the scale that scores
/// are multiplied by later.
///
/// # Safety
/// The whole warp is here; `mask` has room for `keys` numbers; the mask is readable at every key of the
/// batch.
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
        // Past the last key any will do: those scores are hidden.
        let at = row + i64::from((first + key).min(p.keys - 1)) * stride;
        // SAFETY: as the caller promises.
        unsafe { shared_store(mask + 4 * key, addend(load::<T>(&p.mask, at), p.unscale)) };
        key += 32;
    }
}

/// Element `at` of the mask, as what is added.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn load<T: Elem>(mask: &Mask, at: i64) -> f32 {
    let at = at as isize;
    // SAFETY: as the caller promises, of elements of the type that the kind says.
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
