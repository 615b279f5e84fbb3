//! Asynchronous matrix multiplication by a warpgroup (`wgmma`). The operands are f16 or bf16, and the f32
//! accumulators are in registers.
//!
//! The result has 64 rows. Thread `t` of the warpgroup has elements of two rows,
//! `row = 16 * (t / 32) + t % 32 / 4` and `row + 8`. For `r` and `c` in 0 and 1, its register
//! `4 * j + 2 * r + c` has the element in row `row + 8 * r` and column `8 * j + 2 * (t % 4) + c`.
//!
//! Sixteen columns of a result can be operand `a` of a following multiplication. For this purpose, each
//! thread rounds the eight registers of these columns to 16 bits and packs the values in pairs. The threads
//! need not exchange data between the two multiplications.
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
    /// Returns the descriptor of the operand at `address`. An operand that is contiguous along its columns
    /// (N) consists of groups of 64 columns. For such an operand, `leap` is the distance in bytes between the
    /// starts of consecutive groups.
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
/// 16). `a` and `b` are in shared memory and contiguous along K.
///
/// # Safety
/// The whole warpgroup calls this function. All bytes of `a` and `b` have been written to shared memory. No
/// thread reads `d` before it has called [`wait`] and [`settle`].
#[inline(always)]
pub unsafe fn mma_shared<T: Operand, D: Accumulator>(d: &mut D, a: Descriptor, b: Descriptor, add: bool) {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction and that `a` and `b` have
    // been written.
    unsafe { d.mma_shared(T::BF16, add, a.0, b.0) }
}

/// Starts `d += a * b`. `a` has 16 columns and is in registers. `b` (K x N) has 16 rows, is in shared memory,
/// and is contiguous along N.
///
/// # Safety
/// The whole warpgroup calls this function. All bytes of `b` have been written to shared memory. No thread
/// reads `d` before it has called [`wait`] and [`settle`].
#[inline(always)]
pub unsafe fn mma_registers<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction and that `b` has been
    // written.
    unsafe { d.mma_registers(T::BF16, a, b.0) }
}

/// Orders the thread's earlier writes to registers before the multiplications that start after this call
/// (`wgmma.fence`).
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

/// Waits until at most the last `PENDING` committed groups of multiplications are unfinished
/// (`wgmma.wait_group`).
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_wait::<PENDING>() }
}

/// An optimization barrier for the accumulators `d`. Call it after [`wait`] and before you read `d`. Without
/// this barrier, the compiler could read the accumulators before [`wait`], while multiplications still write
/// them.
#[inline(always)]
pub fn settle<D: Accumulator>(d: &mut D) {
    arch::settle(d.as_mut());
}
