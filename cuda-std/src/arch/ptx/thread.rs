//! Thread indices, launch bounds, the wait for earlier launches (`griddepcontrol.wait`), and optimization
//! barriers.
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
    // SAFETY: the assembly is only a comment. The crate `cuda_builder` converts the comment into directives
    // of the kernel's PTX entry.
    unsafe {
        asm!("//@entry .maxntid {}, 1, 1 .minnctapersm {}", const MAX_THREADS, const MIN_BLOCKS, options(nomem, nostack))
    };
}

/// Computes `address`, then waits for earlier launches of the stream (`griddepcontrol.wait`).
///
/// The code has a conditional `exit`, which prevents ptxas from moving the computation of `address` after the
/// wait. No thread executes this `exit`, because its condition is `address == -1`, which no valid address
/// satisfies. When the host loads the PTX, it searches for the line with `griddepcontrol.wait`. The host
/// inserts further instructions after this line (`host/runtime/src/kernels/overlap.rs`).
#[inline(always)]
pub fn wait_for_earlier_launches(address: u64) {
    if cfg!(target_feature = "sm_90") {
        // SAFETY: the instruction only waits. LLVM moves no memory access across this `asm!`.
        unsafe {
            asm!("{{ .reg .pred none; setp.eq.u64 none, {}, -1; @none exit; }}", "\tgriddepcontrol.wait;",
                in(reg64) address, options(nostack));
        }
    }
}

/// Returns `words` unchanged and hides their origin from the compiler (an optimization barrier).
#[inline(always)]
pub fn opaque<const N: usize>(words: [u32; N]) -> [u32; N] {
    words.map(|mut word| {
        // SAFETY: the assembly is only a comment.
        unsafe { asm!("// {}", inout(reg32) word, options(nomem, nostack)) };
        word
    })
}

/// Returns `address` unchanged and hides its origin from the compiler (an optimization barrier).
#[inline(always)]
pub fn opaque_address(mut address: u64) -> u64 {
    // SAFETY: the assembly is only a comment.
    unsafe { asm!("// {}", inout(reg64) address, options(nomem, nostack)) };
    address
}
