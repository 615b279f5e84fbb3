//! Matrix products of a warp on the CPU executor: what `arch/ptx/mma.rs` has.
use half::{bf16, f16};

use super::memory::shared_base;
use super::thread::lane;
use crate::cpu::{Fragments, Operation, exchange, multiply, note};

macro_rules! products {
    ($($name:ident: $t:ty;)*) => { $(
        /// Not inlined, as the loads are not: a kernel has hundreds of each.
        #[inline(never)]
        pub fn $name(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
            multiply(Fragments { a, b, c, widen: |bits| <$t>::from_bits(bits).to_f32() })
        }
    )* };
}
products! {
    mma_f16: f16;
    mma_bf16: bf16;
}

/// The 16-bit element number `element` of the chunk whose address lane `lane` gave.
///
/// # Safety
/// As [`load_matrices`].
#[inline(always)]
unsafe fn element(address: u32, lane: u32, element: u32) -> u32 {
    let row = exchange(Operation::ShuffleIdx, u32::MAX, address, lane);
    // SAFETY: in bounds, as `Shared::window` checked for the lane that gave it.
    u32::from(unsafe { shared_base().add(row as usize).cast::<u16>().add(element as usize).read() })
}

/// # Safety
/// `row` is the offset in shared memory of 16 bytes, aligned to them, which others have written before a
/// barrier.
#[inline(never)]
pub unsafe fn load_matrices(row: u32) -> [u32; 4] {
    note(row as usize, 16, false);
    let lane = lane();
    // SAFETY: as the caller promises.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + lane / 4, at) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}

/// # Safety
/// As [`load_matrices`].
#[inline(never)]
pub unsafe fn load_matrices_transposed(row: u32) -> [u32; 4] {
    note(row as usize, 16, false);
    let lane = lane();
    // SAFETY: as the caller promises.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + at, lane / 4) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}
