//! Matrix products of a warp group, asynchronous: 64 rows, f16 or bf16 in, f32 accumulators in registers.
//!
//! Thread `t` of the group has, of the 64 x columns result, rows `16 * (t / 32) + t % 32 / 4` and 8 below; register
//! `4 * j + 2 * r + c` is row `8 * r`, column `8 * j + 2 * (t % 4) + c` of these. Rounded and paired, 8 registers in a row are
//! the operand `a` of 16 columns as the next product takes it from registers: nothing is exchanged.
use crate::arch::wgmma as arch;
use crate::numeric::elem::Elem;

pub use arch::Accumulator;

/// An element type of the operands.
pub trait Operand: Elem {
    /// Is it bf16? f16 otherwise.
    const BF16: bool;
}

impl Operand for half::bf16 {
    const BF16: bool = true;
}

impl Operand for half::f16 {
    const BF16: bool = false;
}

/// Where an operand lies in shared memory: rows of 128 bytes, swizzled by the copy engine in groups of eight, which start
/// at multiples of 1024.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

impl Descriptor {
    /// That at `address`; `leap` bytes further on lie the next 64 columns of an operand whose columns are contiguous.
    #[inline(always)]
    pub fn swizzled_128(address: u32, leap: u32) -> Self {
        let low = (address & 0x3ffff) >> 4 | leap >> 4 << 16;
        let high = 1024 >> 4 | 1 << 30;
        Self(u64::from(low) | high << 32)
    }

    /// `bytes` further on.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes >> 4))
    }
}

/// `d = a * b`, or `d += a * b` if `add`, for 16 columns of `a` and rows of `b`, both with these contiguous.
///
/// # Safety
/// The whole warp group is here, the operands are, and `d` is not read before [`wait`] and [`settle`].
#[inline(always)]
pub unsafe fn mma_shared<T: Operand, D: Accumulator>(d: &mut D, a: Descriptor, b: Descriptor, add: bool) {
    // SAFETY: as the caller promises.
    unsafe { d.mma_shared(T::BF16, add, a.0, b.0) }
}

/// `d += a * b`, `a` from registers, the columns of `b` contiguous.
///
/// # Safety
/// As [`mma_shared`].
#[inline(always)]
pub unsafe fn mma_registers<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: as the caller promises.
    unsafe { d.mma_registers(T::BF16, a, b.0) }
}

/// What registers hold now is what the products begun after this take.
///
/// # Safety
/// The whole warp group is here.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: as the caller promises.
    unsafe { arch::wgmma_fence() }
}

/// Closes the group of products begun since the last.
///
/// # Safety
/// The whole warp group is here.
#[inline(always)]
pub unsafe fn commit() {
    // SAFETY: as the caller promises.
    unsafe { arch::wgmma_commit() }
}

/// Waits until at most `PENDING` groups are unfinished.
///
/// # Safety
/// The whole warp group is here.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: as the caller promises.
    unsafe { arch::wgmma_wait::<PENDING>() }
}

/// After a wait: `d` may be read.
#[inline(always)]
pub fn settle<D: Accumulator>(d: &mut D) {
    arch::settle(d.as_mut());
}
