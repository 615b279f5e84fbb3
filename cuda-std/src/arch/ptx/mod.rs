//! The PTX backend: every `asm!` and every NVPTX intrinsic of the project.
//!
//! Exchange and barriers go through LLVM's intrinsics, which it knows to be convergent; loads, stores and
//! conversions are `asm!`, so that the width and the cache hint written here are what the GPU gets.
mod cluster;
pub use cluster::*;
mod convert;
pub use convert::*;
mod copy;
pub use copy::{copy_async, copy_async_or_zero, copy_wait, prefetch, shared_window};
pub mod hopper;
mod mma;
pub use mma::{load_matrices, load_matrices_transposed, mma_bf16, mma_f16};
mod packed;
pub use packed::{add_bf16x2, add_f16x2, mul_bf16x2, mul_f16x2};
pub mod wgmma;

use core::arch::asm;
use core::arch::nvptx as nv;

use crate::simt::mem::{Load, Store};

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down_(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up_(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx_(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp(mask: u32);
}

macro_rules! index {
    ($($name:ident: $x:ident, $y:ident, $z:ident;)*) => { $(
        #[inline(always)]
        pub fn $name() -> [u32; 3] {
            // SAFETY: reads a special register.
            unsafe { [nv::$x() as u32, nv::$y() as u32, nv::$z() as u32] }
        }
    )* };
}
index! {
    thread_idx: _thread_idx_x, _thread_idx_y, _thread_idx_z;
    block_idx: _block_idx_x, _block_idx_y, _block_idx_z;
    block_dim: _block_dim_x, _block_dim_y, _block_dim_z;
    grid_dim: _grid_dim_x, _grid_dim_y, _grid_dim_z;
}

macro_rules! register {
    ($($name:ident: $register:literal;)*) => { $(
        #[inline(always)]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a special register that does not change while the kernel runs.
            unsafe { asm!(concat!("mov.u32 {}, ", $register, ";"), out(reg32) value, options(pure, nomem, nostack)) };
            value
        }
    )* };
}
register! {
    lane: "%laneid";
    shared_bytes: "%dynamic_smem_size";
}

#[inline(always)]
pub fn launch_bounds<const MAX_THREADS: u32, const MIN_BLOCKS: u32>() {
    // SAFETY: a comment; `cuda_builder` writes it into the entry.
    unsafe {
        asm!("//@entry .maxntid {}, 1, 1 .minnctapersm {}", const MAX_THREADS, const MIN_BLOCKS, options(nomem, nostack))
    };
}

/// The exit, which nobody takes (the address is that of more than a byte), keeps ptxas from waiting first and finding the address
/// then. The host knows the line with the wait, and writes there what else it takes (`host/src/device/ptx/overlap.rs`).
#[inline(always)]
pub fn wait_for_earlier_launches(address: u64) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: waits; no access to memory is moved in front of it.
        unsafe {
            asm!("{{ .reg .pred none; setp.eq.u64 none, {}, -1; @none exit; }}", "\tgriddepcontrol.wait;",
                in(reg64) address, options(nostack));
        }
    }
}

/// # Safety
/// A line of global memory begins at `ptr`.
#[inline(always)]
pub unsafe fn l2_give_back(ptr: *const u8) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: a hint for memory that may be read.
        unsafe { asm!("applypriority.global.L2::evict_normal [{}], 128;", in(reg64) ptr, options(nostack)) };
    }
}

#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier; that all threads reach it is tested on the CPU executor.
    unsafe { nv::_syncthreads() }
}

#[inline(always)]
pub fn sync_warp(mask: u32) {
    // SAFETY: as `sync_threads`, for the lanes of `mask`.
    unsafe { bar_warp(mask) }
}

#[inline(always)]
pub fn shfl_xor(mask: u32, value: u32, lane_mask: u32) -> u32 {
    // SAFETY: exchanges registers; that all lanes of `mask` are here is tested on the CPU executor.
    unsafe { shfl_bfly(mask, value, lane_mask, 31) }
}

#[inline(always)]
pub fn shfl_down(mask: u32, value: u32, delta: u32) -> u32 {
    // SAFETY: as `shfl_xor`.
    unsafe { shfl_down_(mask, value, delta, 31) }
}

#[inline(always)]
pub fn shfl_up(mask: u32, value: u32, delta: u32) -> u32 {
    // SAFETY: as `shfl_xor`; going up, the clamp is the lowest lane.
    unsafe { shfl_up_(mask, value, delta, 0) }
}

#[inline(always)]
pub fn shfl_idx(mask: u32, value: u32, lane: u32) -> u32 {
    // SAFETY: as `shfl_xor`.
    unsafe { shfl_idx_(mask, value, lane, 31) }
}

#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: as `shfl_xor`.
    unsafe { vote_ballot(mask, predicate) }
}

#[inline(always)]
pub fn shared_base() -> *mut u8 {
    // The 16-byte element gives the base its alignment. LLVM knows the address to be shared: plain reads and writes
    // through it are `ld.shared` and `st.shared`.
    core::intrinsics::gpu::gpu_launch_sized_workgroup_mem::<u128>().cast()
}

/// The CPU executor checks; the GPU has only the launch's size.
#[inline(always)]
pub fn check_shared(_offset: usize, _bytes: usize) {}

macro_rules! accesses {
    ($($load:ident, $store:ident: $t:ty = $value:ident in $suffix:literal $list:literal, $class:ident
        ($($part:expr => $r:ident: $reg:ty),*) => $join:expr;)*) => { $(
        #[inline(always)]
        pub unsafe fn $load(ptr: *const u8, hint: Load) -> $t {
            $(let $r: $reg;)*
            // SAFETY: the caller vouches for the address.
            unsafe {
                match hint {
                    Load::By(policy) if cfg!(target_feature = "sm_90") =>
                        asm!(concat!("ld.global.nc.L2::cache_hint", $suffix, " ", $list, ", [{p}], {policy};"),
                            $($r = out($class) $r,)* p = in(reg64) ptr, policy = in(reg64) policy.0,
                            options(pure, readonly, nostack)),
                    Load::Default => asm!(concat!("ld.global", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                    Load::ReadOnly | Load::By(_) => asm!(concat!("ld.global.nc", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                    Load::Once => asm!(concat!("ld.global.nc.L1::no_allocate", $suffix, " ", $list, ", [{p}];"),
                        $($r = out($class) $r,)* p = in(reg64) ptr, options(pure, readonly, nostack)),
                }
            }
            $join
        }
        #[inline(always)]
        pub unsafe fn $store(ptr: *mut u8, $value: $t, hint: Store) {
            // SAFETY: the caller vouches for the address.
            unsafe {
                match hint {
                    Store::Default => asm!(concat!("st.global", $suffix, " [{p}], ", $list, ";"),
                        $($r = in($class) $part,)* p = in(reg64) ptr, options(nostack)),
                    Store::Streaming => asm!(concat!("st.global.cs", $suffix, " [{p}], ", $list, ";"),
                        $($r = in($class) $part,)* p = in(reg64) ptr, options(nostack)),
                }
            }
        }
    )* };
}
accesses! {
    load_u32x4, store_u32x4: [u32; 4] = v in ".v4.b32" "{{{a}, {b}, {c}, {d}}}", reg32
        (v[0] => a: u32, v[1] => b: u32, v[2] => c: u32, v[3] => d: u32) => [a, b, c, d];
    load_u32x2, store_u32x2: [u32; 2] = v in ".v2.b32" "{{{a}, {b}}}", reg32 (v[0] => a: u32, v[1] => b: u32) => [a, b];
    load_u32, store_u32: u32 = v in ".b32" "{a}", reg32 (v => a: u32) => a;
    load_u8, store_u8: u8 = v in ".b8" "{a}", reg16 (v => a: u8) => a;
    load_u16, store_u16: u16 = v in ".b16" "{a}", reg16 (v => a: u16) => a;
}

macro_rules! math {
    ($($name:ident($($arg:ident),*): $instruction:literal, $operands:literal;)*) => { $(
        #[inline(always)]
        pub fn $name($($arg: f32),*) -> f32 {
            let result: f32;
            // SAFETY: arithmetic.
            unsafe {
                asm!(concat!($instruction, " {r}, ", $operands, ";"), r = out(reg32) result, $($arg = in(reg32) $arg,)*
                    options(pure, nomem, nostack))
            };
            result
        }
    )* };
}
math! {
    fma(a, b, c): "fma.rn.f32", "{a}, {b}, {c}";
    sqrt(x): "sqrt.rn.f32", "{x}";
    rsqrt(x): "rsqrt.approx.f32", "{x}";
    rcp(x): "rcp.approx.f32", "{x}";
    ex2(x): "ex2.approx.f32", "{x}";
    lg2(x): "lg2.approx.f32", "{x}";
    tanh(x): "tanh.approx.f32", "{x}";
    ex2_ftz(x): "ex2.approx.ftz.f32", "{x}";
    rcp_ftz(x): "rcp.approx.ftz.f32", "{x}";
    fma_sat(a, b, c): "fma.rn.sat.f32", "{a}, {b}, {c}";
    fma_rm(a, b, c): "fma.rm.f32", "{a}, {b}, {c}";
}

/// The same words, of which the compiler knows nothing.
#[inline(always)]
pub fn opaque<const N: usize>(words: [u32; N]) -> [u32; N] {
    words.map(|mut word| {
        // SAFETY: no instruction.
        unsafe { asm!("// {}", inout(reg32) word, options(nomem, nostack)) };
        word
    })
}

/// The same address, of which the compiler knows nothing.
#[inline(always)]
pub fn opaque_address(mut address: u64) -> u64 {
    // SAFETY: no instruction.
    unsafe { asm!("// {}", inout(reg64) address, options(nomem, nostack)) };
    address
}

macro_rules! max_pairs {
    ($($name:ident: $instruction:literal;)*) => { $(
        /// The larger values of two pairs.
        #[inline(always)]
        pub fn $name(a: u32, b: u32) -> u32 {
            if cfg!(not(target_feature = "sm_80")) {
                return crate::numeric::elem::max_halves(a, b);
            }
            let pair: u32;
            // SAFETY: arithmetic; the instruction needs sm_80.
            unsafe {
                asm!(concat!($instruction, " {}, {}, {};"), out(reg32) pair, in(reg32) a, in(reg32) b,
                    options(pure, nomem, nostack))
            };
            pair
        }
    )* };
}
max_pairs! {
    max_f16x2: "max.f16x2";
    max_bf16x2: "max.bf16x2";
}
