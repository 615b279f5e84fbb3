//! Matrix multiplication by a warp on the CPU executor. The functions have the same names as the PTX versions
//! in `arch/ptx/mma.rs`.
use super::hopper::own_bytes;
use super::memory::shared_base;
use super::thread::lane;
use crate::cpu::cluster::FIRST_ADDRESS;
use crate::cpu::tensor_core::OperandType;
use crate::cpu::{Fragments, Operation, exchange_here, here, multiply};

macro_rules! products {
    ($($name:ident: $t:ident;)*) => { $(
        /// Emulates `mma.sync.m16n8k16`. The function is not inlined, because a kernel may contain hundreds
        /// of calls and would become very large.
        #[inline(never)]
        #[track_caller]
        pub fn $name(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
            multiply(Fragments { a, b, c, elements: OperandType::$t })
        }
    )* };
}
products! {
    mma_f16: F16;
    mma_bf16: Bf16;
}

/// Returns the 16-bit element with index `element` of the matrix row whose address the lane `lane` passed to
/// `ldmatrix`. `address` is the shared-memory address that the calling lane passed to `ldmatrix`.
///
/// # Safety
/// Every lane of the warp satisfies the requirements of [`load_matrices`].
#[inline(always)]
unsafe fn element(address: u32, lane: u32, element: u32) -> u32 {
    let row = exchange_here(Operation::LoadMatrices, address, lane);
    // SAFETY: the read covers element `element` of the 16 bytes at `row`, and `element` is less than 8.
    // `own_bytes` checked that these bytes lie in shared memory.
    u32::from(unsafe {
        shared_base().add((row - FIRST_ADDRESS) as usize).cast::<u16>().add(element as usize).read()
    })
}

/// # Safety
/// `row` is the address of 16 bytes in shared memory, and a multiple of 16. A barrier separates this load
/// from the writes of other threads to these bytes.
#[inline(never)]
#[track_caller]
pub unsafe fn load_matrices(row: u32) -> [u32; 4] {
    here();
    own_bytes(row, 16, false);
    let lane = lane();
    // SAFETY: every lane passes the address of 16 bytes in shared memory, and a barrier separates this load
    // from writes to these bytes.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + lane / 4, at) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}

/// # Safety
/// The requirements of [`load_matrices`] apply.
#[inline(never)]
#[track_caller]
pub unsafe fn load_matrices_transposed(row: u32) -> [u32; 4] {
    here();
    own_bytes(row, 16, false);
    let lane = lane();
    // SAFETY: every lane passes the address of 16 bytes in shared memory, and a barrier separates this load
    // from writes to these bytes.
    let word = |matrix: u32, at: u32| unsafe { element(row, 8 * matrix + at, lane / 4) };
    [0, 1, 2, 3].map(|matrix| word(matrix, lane % 4 * 2) | word(matrix, lane % 4 * 2 + 1) << 16)
}
