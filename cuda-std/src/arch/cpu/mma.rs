//! Matrix multiplication by a warp on the CPU executor. The functions have the same names as the PTX versions
//! in `arch/ptx/mma.rs`.
use half::{bf16, f16};

use super::memory::shared_base;
use super::thread::lane;
use crate::cpu::{Fragments, Operation, exchange, multiply, note};

macro_rules! products {
    ($($name:ident: $t:ty;)*) => { $(
        /// Emulates `mma.sync.m16n8k16`. The function is not inlined, because a kernel contains hundreds of
        /// calls.
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

/// Returns element `element` (16 bits) of one matrix row. `lane` is the lane that passes the address of this
/// row. `address` is the shared-memory offset that the calling lane passes for its own row.
///
/// # Safety
/// The requirements of [`load_matrices`] apply to every lane.
#[inline(always)]
unsafe fn element(address: u32, lane: u32, element: u32) -> u32 {
    let row = exchange(Operation::ShuffleIdx, u32::MAX, address, lane);
    // SAFETY: `Shared::window` checked the bounds of `row` in lane `lane`. `element` is less than 8.
    u32::from(unsafe { shared_base().add(row as usize).cast::<u16>().add(element as usize).read() })
}

/// # Safety
/// `row` is the offset of 16 bytes in shared memory, and a multiple of 16. A barrier separates this load from
/// the writes of other threads.
#[inline(never)]
pub unsafe fn load_matrices(row: u32) -> [u32; 4] {
    note(row as usize, 16, false);
    let lane = lane();
    // SAFETY: the caller passes a valid, synchronized `row` in every lane.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + lane / 4, at) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}

/// # Safety
/// The requirements of [`load_matrices`] apply.
#[inline(never)]
pub unsafe fn load_matrices_transposed(row: u32) -> [u32; 4] {
    note(row as usize, 16, false);
    let lane = lane();
    // SAFETY: the caller passes a valid, synchronized `row` in every lane.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + at, lane / 4) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}
