//! Asynchronous matrix multiplication by a warpgroup (`wgmma`). The operands are f16, bf16, tf32, fp8 or
//! 8-bit integers. The accumulators, f32 or i32, are in registers.
//!
//! The result has 64 rows. Thread `t` of the warpgroup has elements of the rows `row` and `row + 8`, with
//! `row = 16 * (t / 32) + t % 32 / 4`. Its register `4 * j + 2 * r + c`, where `r` and `c` are 0 or 1, has
//! the element in row `row + 8 * r` and column `8 * j + 2 * (t % 4) + c`.
//!
//! Sixteen columns of a result can be operand `a` of a following multiplication. For this purpose, each
//! thread rounds the eight registers of these columns to 16 bits and packs the values in pairs. The threads
//! need not exchange data between the two multiplications.
use crate::arch::wgmma as arch;
use crate::arch::wgmma::Accumulator as _;
use crate::base::wgmma::Kind;
pub use crate::numeric::fp8::{E4m3, E5m2};

/// An element type of the operands. For some element types, there is no number type. This module represents
/// such an element type by an empty enum, such as [`Tf32`], which has no values and serves only as a name.
///
/// A multiplication of 16-bit floats has 16 elements along K. With [`E4m3`] or [`E5m2`], it has 32 elements
/// along K, and the tensor core keeps 14 significant bits of a sum.
pub trait Operand: Copy {
    /// The types of both operands, for the instruction.
    #[doc(hidden)]
    const KIND: Kind;
}

macro_rules! operands {
    ($($(#[$doc:meta])* $t:ty = $kind:ident;)*) => { $(
        impl Operand for $t {
            const KIND: Kind = Kind::$kind;
        }
    )* };
}
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}
        operands! { $name = $name; }
    )* };
}
operands! {
    half::bf16 = Bf16;
    half::f16 = F16;
    E4m3 = E4m3;
    E5m2 = E5m2;
}
names! {
    /// tf32: the upper 19 bits of an f32. A multiplication has 8 elements along K.
    Tf32;
    /// The left operand is [`E4m3`], the right operand [`E5m2`].
    E4m3E5m2;
    /// The left operand is [`E5m2`], the right operand [`E4m3`].
    E5m2E4m3;
    /// Signed 8-bit integers, with i32 accumulators.
    S8;
    /// Unsigned 8-bit integers, with i32 accumulators.
    U8;
}

/// The accumulator registers of one thread. `N` is the number of registers: the accumulators of a warpgroup
/// form a tile of 64 rows and `2 * N` columns. For floats, `N` is a multiple of 4 up to 128, so that the tile
/// has 8, 16, … 256 columns. For 8-bit integers, the tile has 8, 24, or a multiple of 16 columns.
///
/// The registers can be read after [`wait`] and [`settle`]. The CPU executor reports an error if a thread
/// accesses the registers before these two calls. It also reports the use of a copy of the registers that was
/// made before these calls.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Registers<const N: usize, E = f32>([E; N]);

/// The accumulator types, [`Registers`] of all supported sizes.
pub trait Accumulator: Copy + AsRef<[Self::Element]> + AsMut<[Self::Element]> {
    /// f32, or i32 for 8-bit integers.
    type Element: Copy;
    /// Number of registers per thread.
    const LEN: usize;
    /// An accumulator with zero in every register.
    const ZERO: Self;
    #[doc(hidden)]
    type Array: arch::Accumulator;
    #[doc(hidden)]
    fn array(&mut self) -> &mut Self::Array;
}

impl<const N: usize, E: Copy> Accumulator for Registers<N, E>
where
    [E; N]: arch::Accumulator,
{
    type Element = E;
    const LEN: usize = N;
    const ZERO: Self = Self(<[E; N] as arch::Accumulator>::ZERO);
    type Array = [E; N];
    #[inline(always)]
    fn array(&mut self) -> &mut [E; N] {
        &mut self.0
    }
}

impl<const N: usize, E: Copy> AsRef<[E]> for Registers<N, E>
where
    [E; N]: arch::Accumulator,
{
    #[inline(always)]
    #[track_caller]
    fn as_ref(&self) -> &[E] {
        arch::Accumulator::check_settled(&self.0);
        &self.0
    }
}

impl<const N: usize, E: Copy> AsMut<[E]> for Registers<N, E>
where
    [E; N]: arch::Accumulator,
{
    #[inline(always)]
    #[track_caller]
    fn as_mut(&mut self) -> &mut [E] {
        arch::Accumulator::check_settled(&self.0);
        &mut self.0
    }
}

/// A shared memory descriptor of a `wgmma` operand. It contains the operand's address, the distances between
/// its parts, and its swizzle.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

impl Descriptor {
    /// Returns the descriptor with these bits, in the format of PTX.
    #[inline(always)]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits of the descriptor, in the format of PTX.
    #[inline(always)]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the descriptor of the operand at `address`, which has rows of 128 bytes with TMA's 128-byte
    /// swizzle. Each group of eight rows starts at a multiple of 1024 bytes. An operand that is contiguous
    /// along its columns (N) consists of groups of 64 columns. For such an operand, `leap` is the distance in
    /// bytes between the starts of consecutive groups.
    #[inline(always)]
    pub fn swizzled_128(address: u32, leap: u32) -> Self {
        let low = (address & 0x3ffff) >> 4 | leap >> 4 << 16;
        let high = 1024 >> 4 | 1 << 30;
        Self(u64::from(low) | high << 32)
    }

    /// Returns the descriptor of an operand with any layout. `leading` and `stride` are the distances in
    /// bytes that PTX calls leading and stride dimension byte offset. `swizzle` is the span of the swizzle in
    /// bytes: 128, 64, 32, or 16 for no swizzle.
    #[inline(always)]
    pub fn of(address: u32, leading: u32, stride: u32, swizzle: u32) -> Self {
        let mode = match swizzle {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        let low = (address & 0x3ffff) >> 4 | leading >> 4 << 16;
        Self(u64::from(low) | u64::from(stride >> 4 | mode << 30) << 32)
    }

    /// Returns the descriptor of an operand that starts `bytes` bytes later.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + u64::from(bytes >> 4))
    }
}

/// Starts `d += a * b` if `add` is true, otherwise `d = a * b`. Along K, each operand has 32 bytes: 16
/// elements of 16 bits, 8 elements of tf32, or 32 elements of 8 bits. `a` and `b` are in shared memory and
/// contiguous along K.
///
/// `add` should be known at compile time. If it is not, the kernel contains both instructions and a branch,
/// so use [`mma_shared_if`], which is faster.
///
/// # Safety
/// The whole warpgroup calls this function. All bytes of `a` and `b` have been written to shared memory. No
/// thread reads `d` before it has called [`wait`] and [`settle`].
#[inline(always)]
#[track_caller]
pub unsafe fn mma_shared<T: Operand, D: Accumulator>(d: &mut D, a: Descriptor, b: Descriptor, add: bool) {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction and that `a` and `b` have
    // been written.
    unsafe { d.array().mma_shared::<0, 0>(T::KIND, add, a.0, b.0) }
}

/// Starts `d += a * b`. `a` is in registers. `b` (K x N) is in shared memory and contiguous along N. K is 16,
/// because only 16-bit operands can be contiguous along N.
///
/// # Safety
/// The whole warpgroup calls this function. All bytes of `b` have been written to shared memory. No thread
/// reads `d` before it has called [`wait`] and [`settle`].
#[inline(always)]
#[track_caller]
pub unsafe fn mma_registers<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller ensures that the whole warpgroup executes the instruction and that `b` has been
    // written.
    unsafe { d.array().mma_registers::<1>(T::KIND, true, a, b.0) }
}

/// Does the same as [`mma_shared`], for 16-bit operands that are contiguous along M or N. Operand `a` is
/// contiguous along M if the flag `A` is 1, and `b` along N if the flag `B` is 1.
///
/// # Safety
/// The requirements of [`mma_shared`] apply.
#[inline(always)]
#[track_caller]
pub unsafe fn mma_shared_transposed<T: Operand, D: Accumulator, const A: u32, const B: u32>(
    d: &mut D,
    a: Descriptor,
    b: Descriptor,
    add: bool,
) {
    // SAFETY: the caller satisfies the requirements.
    unsafe { d.array().mma_shared::<A, B>(T::KIND, add, a.0, b.0) }
}

/// Does the same as [`mma_registers`], but `b` is contiguous along K instead of N.
///
/// # Safety
/// The requirements of [`mma_registers`] apply.
#[inline(always)]
#[track_caller]
pub unsafe fn mma_registers_along_k<T: Operand, D: Accumulator>(d: &mut D, a: [u32; 4], b: Descriptor) {
    // SAFETY: the caller satisfies the requirements.
    unsafe { d.array().mma_registers::<0>(T::KIND, true, a, b.0) }
}

/// Does the same as [`mma_shared_transposed`], but `add` need not be known at compile time: the instruction
/// takes it as a predicate. In a loop, the first step can therefore overwrite `d`, and the other steps add to
/// it.
///
/// # Safety
/// The requirements of [`mma_shared`] apply. All threads of the warpgroup pass the same `add`.
#[inline(always)]
#[track_caller]
pub unsafe fn mma_shared_if<T: Operand, D: Accumulator, const A: u32, const B: u32>(
    d: &mut D,
    a: Descriptor,
    b: Descriptor,
    add: bool,
) {
    // SAFETY: the caller satisfies the requirements.
    unsafe { d.array().mma_shared_if::<A, B>(T::KIND, add, a.0, b.0) }
}

/// Starts `d = a * b`. `a` is in registers. `b` is contiguous along K, or along N if the flag `B` is 1.
///
/// # Safety
/// The requirements of [`mma_registers`] apply.
#[inline(always)]
#[track_caller]
pub unsafe fn mma_registers_overwrite<T: Operand, D: Accumulator, const B: u32>(
    d: &mut D,
    a: [u32; 4],
    b: Descriptor,
) {
    // SAFETY: the caller satisfies the requirements.
    unsafe { d.array().mma_registers::<B>(T::KIND, false, a, b.0) }
}

/// Starts `d += a * b` if `add` is true, otherwise `d = a * b`. `a` is in registers. `b` is contiguous along
/// K, or along N if the flag `B` is 1. `add` need not be known at compile time, as in [`mma_shared_if`].
///
/// # Safety
/// The requirements of [`mma_registers`] apply. All threads of the warpgroup pass the same `add`.
#[inline(always)]
#[track_caller]
pub unsafe fn mma_registers_if<T: Operand, D: Accumulator, const B: u32>(
    d: &mut D,
    a: [u32; 4],
    b: Descriptor,
    add: bool,
) {
    // SAFETY: the caller satisfies the requirements.
    unsafe { d.array().mma_registers_if::<B>(T::KIND, add, a, b.0) }
}

/// Orders the thread's earlier accesses to registers before the multiplications that start after this call
/// (`wgmma.fence`). A fence is necessary between an access to registers and a multiplication that has them as
/// accumulators or left operand, and before the first multiplication. No fence is necessary between
/// multiplications with the same accumulators.
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
#[track_caller]
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
#[track_caller]
pub unsafe fn commit() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_commit() }
}

/// Waits until all committed groups of multiplications, except at most the last `PENDING` ones, have finished
/// (`wgmma.wait_group`). A group belongs to the whole warpgroup: after the wait, all four warps have read the
/// operands of the finished multiplications.
///
/// # Safety
/// The whole warpgroup calls this function.
#[inline(always)]
#[track_caller]
pub unsafe fn wait<const PENDING: u32>() {
    // SAFETY: the caller promises that the whole warpgroup makes the call.
    unsafe { arch::wgmma_wait::<PENDING>() }
}

/// An optimization barrier for the accumulators `d`. Call it after [`wait`] and before you read `d`. Without
/// this barrier, the compiler could read the accumulators before [`wait`], while multiplications still write
/// them.
#[inline(always)]
#[track_caller]
pub fn settle<D: Accumulator>(d: &mut D) {
    d.array().settle();
}
