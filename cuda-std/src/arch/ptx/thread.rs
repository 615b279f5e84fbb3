//! Where a thread stands, and what its kernel promises about launches.
use core::arch::asm;
use core::arch::nvptx as nv;

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

/// The exit, which nobody takes (the address is that of more than a byte), keeps ptxas from waiting first and
/// finding the address then. The host knows the line with the wait, and writes there what else it takes
/// (`host/src/device/ptx/overlap.rs`).
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
