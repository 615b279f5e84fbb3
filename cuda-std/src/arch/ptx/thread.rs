//! Thread indices, launch bounds, optimization barriers, and a function that waits for earlier launches
//! (`griddepcontrol.wait`).
use core::arch::asm;
use core::arch::nvptx as nv;

macro_rules! index {
    ($($name:ident: $x:ident, $y:ident, $z:ident;)*) => { $(
        #[inline(always)]
        pub fn $name() -> [u32; 3] {
            // SAFETY: the intrinsic only reads a special register.
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
            // SAFETY: `mov` only reads a special register, which does not change while the kernel runs.
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
    // SAFETY: the assembly is only a comment and executes nothing. The crate `cuda_builder` converts the
    // comment into directives of the kernel's PTX entry.
    unsafe {
        asm!("//@entry .maxntid {}, 1, 1 .minnctapersm {}", const MAX_THREADS, const MIN_BLOCKS, options(nomem, nostack))
    };
}

/// Waits for earlier launches of the stream (`griddepcontrol.wait`). The GPU computes `address` before the
/// wait.
///
/// A conditional `exit` before the wait depends on `address`. This `exit` prevents ptxas from moving the
/// computation of `address` after the wait. No thread exits, because the condition is `address == -1` and no
/// valid address is -1. When the host loads the PTX, it inserts further instructions after the line with
/// `griddepcontrol.wait` (`host/runtime/src/kernels/overlap.rs`).
#[inline(always)]
pub fn wait_for_earlier_launches(address: u64) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: the assembly only waits. LLVM moves no memory access across this `asm!`, because it lacks
        // the option `nomem`.
        unsafe {
            asm!("{{ .reg .pred none; setp.eq.u64 none, {}, -1; @none exit; }}", "\tgriddepcontrol.wait;",
                in(reg64) address, options(nostack));
        }
    }
}

/// Returns `words` unchanged. The compiler cannot see how the result was computed (an optimization barrier).
#[inline(always)]
pub fn opaque<const N: usize>(words: [u32; N]) -> [u32; N] {
    words.map(|mut word| {
        // SAFETY: the assembly is only a comment.
        unsafe { asm!("// {}", inout(reg32) word, options(nomem, nostack)) };
        word
    })
}

/// Returns `address` unchanged. The compiler cannot see how the result was computed (an optimization
/// barrier).
#[inline(always)]
pub fn opaque_address(mut address: u64) -> u64 {
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg64) address, options(nomem, nostack)) };
    address
}
