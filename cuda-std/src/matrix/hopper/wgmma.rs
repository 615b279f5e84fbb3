//! Asynchronous warpgroup matrix multiplication (`wgmma`): 64 rows, f16 or bf16 operands, f32 accumulators in
//! registers.
//!
//! Layout of the result, 64 rows: thread `t` of the warpgroup has row `16 * (t / 32) + t % 32 / 4` and the
//! row 8 below it. Register `4 * j + 2 * r + c` is in the first (`r = 0`) or second row (`r = 1`) of the
//! thread. Its column is `8 * j + 2 * (t % 4) + c`, with `c` 0 or 1.
//!
//! Eight consecutive registers, rounded and packed in pairs, form the operand `a` for 16 columns of a
//! following product. No data is exchanged between threads.
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

/// A shared memory descriptor of an operand: rows of 128 bytes with TMA's 128-byte swizzle. Groups of eight
/// rows start at multiples of 1024 bytes.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

impl Descriptor {
    /// Returns the descriptor of the operand at `address`. If the columns of the operand are contiguous, its
    /// next 64 columns start `leap` bytes later.
    #[inline(always)]
    pub fn swizzled_128(address: u32, leap: u32) -> Self {
        let low = (address & 0x3ffff) >> 4 | leap >> 4 << 16;
        let high = 1024 >> 4 | 1 << 30;
        Self(u64::from(low) | high << 32)
    }

    /// Returns the descriptor advanced by `bytes`.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes >> 4))
    }
}

/// Starts `d = a * b`, or `d += a * b` if `add`, for 16 columns of `a` and 16 rows of `b`. Both operands are
/// contiguous along this dimension of 16.
///
/// # Safety
/// The whole warpgroup calls it. The operands are complete in shared memory. `d` is not read before [`wait`]
/// and [`settle`].
#[inline(always)]
pub unsafe fn mma_shared<T: Operand, D: Accumulator>(d: &mut D, a: Descriptor, b: Descriptor, add: bool) {
    // SAFETY: the caller promises the whole warpgroup and complete operands.
    unsafe { d.mma_shared(T::BF16, add, a.0, b.0) }
}

/// Starts `d += a * b`, with `a` from registers. The columns of `b` are contiguous.
///
/// # Safety
/// As for [`mma_shared`].
#[inline(always)]
pub unsafe fn mma_registers<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller promises the whole warpgroup and a complete operand `b`.
    unsafe { d.mma_registers(T::BF16, a, b.0) }
}

/// Orders earlier register writes before the products that start after this call (`wgmma.fence`).
///
/// # Safety
/// The whole warpgroup calls it.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: the caller promises that the whole warpgroup is here.
    unsafe { arch::wgmma_fence() }
}

/// Commits the products started since the last call as one group.
///
/// # Safety
/// The whole warpgroup calls it.
#[inline(always)]
pub unsafe fn commit() {
    // SAFETY: the caller promises that the whole warpgroup is here.
    unsafe { arch::wgmma_commit() }
}

/// Waits until at most `PENDING` committed groups are unfinished.
///
/// # Safety
/// The whole warpgroup calls it.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: the caller promises that the whole warpgroup is here.
    unsafe { arch::wgmma_wait::<PENDING>() }
}

/// Marks `d` as changed by the products, so that the compiler reads it only after the preceding [`wait`].
#[inline(always)]
pub fn settle<D: Accumulator>(d: &mut D) {
    arch::settle(d.as_mut());
}
