//! Asynchronous matrix multiplication by a warpgroup (`wgmma`). The operands are f16 or bf16, and the f32
//! accumulators are in registers.
//!
//! The result has 64 rows. Thread `t` of the warpgroup has elements of two rows, `row = 16 * (t / 32) + t %
//! 32 / 4` and `row + 8`. Let `r` be 0 for the first row and 1 for the second row, and let `c` be 0 or 1.
//! Register `4 * j + 2 * r + c` of the thread then has the element of column `8 * j + 2 * (t % 4) + c`.
//!
//! A result can be operand `a` (16 columns) of a following multiplication. For this purpose, a thread rounds
//! eight consecutive registers to 16 bits and packs the values in pairs. The threads exchange no data between
//! the two multiplications.
use crate::arch::wgmma as arch;
use crate::numeric::elem::Elem;

pub use arch::Accumulator;

/// An element type of the operands.
pub trait Operand: Elem {
    /// Whether the type is bf16. Otherwise it is f16.
    const BF16: bool;
}

impl Operand for half::bf16 {
    const BF16: bool = true;
}

impl Operand for half::f16 {
    const BF16: bool = false;
}

/// A shared memory descriptor of a `wgmma` operand. The operand has rows of 128 bytes with TMA's 128-byte
/// swizzle. Each group of eight rows starts at a multiple of 1024 bytes.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

impl Descriptor {
    /// Returns the descriptor of the operand at `address`. If the operand is contiguous along its columns
    /// (N), it consists of groups of 64 columns. Each group then starts `leap` bytes after the previous
    /// group.
    #[inline(always)]
    pub fn swizzled_128(address: u32, leap: u32) -> Self {
        let low = (address & 0x3ffff) >> 4 | leap >> 4 << 16;
        let high = 1024 >> 4 | 1 << 30;
        Self(u64::from(low) | high << 32)
    }

    /// Returns the descriptor of an operand that starts `bytes` bytes later.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes >> 4))
    }
}

/// Starts `d += a * b` if `add` is true, otherwise `d = a * b`. `a` has 16 columns and `b` has 16 rows (K =
/// 16). Both operands are in shared memory and contiguous along K.
///
/// # Safety
/// The whole warpgroup calls this function. The operands are complete in shared memory. No thread reads `d`
/// before it has called [`wait`] and [`settle`].
#[inline(always)]
pub unsafe fn mma_shared<T: Operand, D: Accumulator>(d: &mut D, a: Descriptor, b: Descriptor, add: bool) {
    // SAFETY: the caller promises that the whole warpgroup makes the call and that the operands are complete.
    unsafe { d.mma_shared(T::BF16, add, a.0, b.0) }
}

/// Starts `d += a * b`. Operand `a` is in registers. Operand `b` (K x N) is in shared memory and contiguous
/// along N.
///
/// # Safety
/// The whole warpgroup calls this function. Operand `b` is complete in shared memory. No thread reads `d`
/// before it has called [`wait`] and [`settle`].
#[inline(always)]
pub unsafe fn mma_registers<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller ensures that the whole warpgroup makes the call and that operand `b` is complete.
    unsafe { d.mma_registers(T::BF16, a, b.0) }
}

/// Orders earlier register writes before the multiplications that start after this call (`wgmma.fence`).
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_fence() }
}

/// Commits all multiplications that started since the last call of this function as one group
/// (`wgmma.commit_group`).
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
pub unsafe fn commit() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_commit() }
}

/// Waits until at most `PENDING` committed groups of multiplications are unfinished (`wgmma.wait_group`).
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_wait::<PENDING>() }
}

/// An optimization barrier for the accumulators `d`. The compiler reads `d` only after the preceding
/// [`wait`]. Without this barrier, the compiler could read the accumulators while asynchronous
/// multiplications still write them.
#[inline(always)]
pub fn settle<D: Accumulator>(d: &mut D) {
    arch::settle(d.as_mut());
}
