//! The functions of [`arch`](crate::arch) on the CPU executor: the same names and results as `arch/ptx`.
//!
//! IEEE operations (`fma`, `sqrt`, the conversions) give the same bits as the GPU. The approximate ones are computed
//! in f64 and rounded once, so they differ from the GPU by at most the bound of their PTX instruction, written beside
//! each. A conversion to f16 or bf16 turns every NaN into 0x7FFF, as `cvt.rn` does; NaN bits that arithmetic makes
//! (`+`, `*`, `fma`) are the host's and not promised.
mod convert;
pub use convert::*;
mod copy;
pub use copy::{copy_async, copy_async_or_zero, copy_wait, prefetch, shared_window};
mod mma;
pub use mma::{load_matrices, load_matrices_transposed, mma_bf16, mma_f16};

use crate::cpu::{FaultKind, Operation, exchange, note, with};
use crate::simt::l2::LINE;
use crate::simt::mem::{Load, Store};

macro_rules! reads {
    ($($name:ident() -> $t:ty = |$block:ident| $value:expr;)*) => { $(
        #[inline]
        pub fn $name() -> $t {
            with(|$block| $value)
        }
    )* };
}
reads! {
    thread_idx() -> [u32; 3] = |block| block.thread_index();
    block_idx() -> [u32; 3] = |block| block.index.get();
    block_dim() -> [u32; 3] = |block| block.shape.block;
    grid_dim() -> [u32; 3] = |block| block.shape.grid;
    lane() -> u32 = |block| block.linear_index() as u32 % 32;
    shared_base() -> *mut u8 = |block| block.shared_base();
    shared_bytes() -> u32 = |block| block.shape.shared_bytes;
}

/// A block above the bounds is a fault; the driver refuses its launch.
#[inline]
pub fn launch_bounds<const MAX_THREADS: u32, const MIN_BLOCKS: u32>() {
    with(|block| {
        let threads = block.threads();
        if threads > MAX_THREADS {
            block.raise(FaultKind::LaunchBounds { threads, declared: MAX_THREADS });
        }
    });
}

/// # Safety
/// A line begins at `ptr`: its ends are read, so that a tool that checks addresses sees one that nobody has.
pub unsafe fn l2_give_back(ptr: *const u8) {
    check_aligned(ptr.addr(), LINE as usize);
    // SAFETY: as the caller promises.
    unsafe { std::hint::black_box([ptr.read(), ptr.wrapping_add(LINE as usize - 1).read()]) };
}

/// A launch is done when it returns.
pub fn wait_for_earlier_launches(_address: u64) {}

#[inline(always)]
pub fn sync_threads() {
    with(|block| block.barrier());
}

/// A cluster is one block here.
pub fn cluster_bounds<const BLOCKS: u32>() {}

pub fn cluster_size<const BLOCKS: u32>() -> u32 {
    1
}

pub fn cluster_rank() -> u32 {
    0
}

pub fn cluster_arrive() {}

pub fn cluster_wait() {}

/// # Safety
/// As on a GPU.
pub unsafe fn cluster_expect(_: *mut u64, _: u32) {}

/// # Safety
/// `to` is a word of the block's shared memory.
pub unsafe fn cluster_send(to: *mut u64, _: *mut u64, _: u32, value: u64) {
    note(to.addr() - shared_base().addr(), size_of::<u64>(), true);
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
}

/// # Safety
/// As on a GPU.
pub unsafe fn cluster_receive(_: *mut u64) {
    sync_threads();
}

#[inline(always)]
pub fn sync_warp(mask: u32) {
    exchange(Operation::Sync, mask, 0, 0);
}

macro_rules! shuffles {
    ($($name:ident = $operation:ident;)*) => { $(
        #[inline(always)]
        pub fn $name(mask: u32, value: u32, argument: u32) -> u32 {
            exchange(Operation::$operation, mask, value, argument)
        }
    )* };
}
shuffles! {
    shfl_xor = ShuffleXor;
    shfl_down = ShuffleDown;
    shfl_up = ShuffleUp;
    shfl_idx = ShuffleIdx;
}

#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    exchange(Operation::Ballot, mask, u32::from(predicate), 0)
}

#[inline]
pub fn check_shared(offset: usize, bytes: usize) {
    with(|block| {
        let size = block.shape.shared_bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size as usize) {
            block.raise(FaultKind::SharedOutOfBounds { offset, bytes, size });
        }
    });
}

/// The GPU faults on a misaligned access, most hosts do not.
#[inline]
fn check_aligned(address: usize, bytes: usize) {
    if !address.is_multiple_of(bytes) {
        with(|block| block.raise(FaultKind::Misaligned { address, bytes }));
    }
}

macro_rules! accesses {
    ($($load:ident, $store:ident: $bits:ty;)*) => { $(
        /// # Safety
        /// `ptr` is valid for the read.
        #[inline]
        pub unsafe fn $load(ptr: *const u8, _: Load) -> $bits {
            check_aligned(ptr.addr(), size_of::<$bits>());
            // SAFETY: valid, as the caller promises, and aligned.
            unsafe { ptr.cast::<$bits>().read() }
        }

        /// # Safety
        /// `ptr` is valid for the write.
        #[inline]
        pub unsafe fn $store(ptr: *mut u8, value: $bits, _: Store) {
            check_aligned(ptr.addr(), size_of::<$bits>());
            // SAFETY: valid, as the caller promises, and aligned.
            unsafe { ptr.cast::<$bits>().write(value) }
        }
    )* };
}
accesses! {
    load_u32x4, store_u32x4: [u32; 4];
    load_u32x2, store_u32x2: [u32; 2];
    load_u32, store_u32: u32;
    load_u8, store_u8: u8;
    load_u16, store_u16: u16;
}

#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

#[inline]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// `rsqrt.approx.f32`: relative error at most 2^-22.9.
#[inline]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}

/// `rcp.approx.f32`: at most 1 ulp.
#[inline]
pub fn rcp(x: f32) -> f32 {
    1.0 / x
}

/// `ex2.approx.f32`: at most 2 ulp.
#[inline]
pub fn ex2(x: f32) -> f32 {
    libm::exp2(f64::from(x)) as f32
}

/// `lg2.approx.f32`: absolute error at most 2^-22 between 0.5 and 2, relative 2^-22 elsewhere.
#[inline]
pub fn lg2(x: f32) -> f32 {
    libm::log2(f64::from(x)) as f32
}

/// `tanh.approx.f32`: relative error at most 2^-11.
#[inline]
pub fn tanh(x: f32) -> f32 {
    libm::tanh(f64::from(x)) as f32
}

/// Subnormal numbers become zeros of their sign: what `.ftz` does to operands and results.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// `ex2.approx.ftz.f32`: at most 2 ulp.
#[inline]
pub fn ex2_ftz(x: f32) -> f32 {
    flush(ex2(flush(x)))
}

/// `rcp.approx.ftz.f32`: at most 1 ulp.
#[inline]
pub fn rcp_ftz(x: f32) -> f32 {
    flush(rcp(flush(x)))
}

/// `fma.rn.sat.f32`: between 0 and 1, and 0 for a NaN.
#[inline]
pub fn fma_sat(a: f32, b: f32, c: f32) -> f32 {
    let value = fma(a, b, c);
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

/// `fma.rm.f32`: rounded down.
#[inline]
pub fn fma_rm(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact in f64; the sum may not be, and then what it lost decides.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let lost = (product - (sum - (sum - product))) + (c - (sum - product));
    let nearest = sum as f32;
    let above = f64::from(nearest) > sum || f64::from(nearest) == sum && lost < 0.0;
    if above { nearest.next_down() } else { nearest }
}

/// The same words; on PTX the compiler knows nothing of them.
#[inline]
pub fn opaque<const N: usize>(words: [u32; N]) -> [u32; N] {
    words
}

/// The same address.
#[inline]
pub fn opaque_address(address: u64) -> u64 {
    address
}

#[cfg(test)]
mod tests;
