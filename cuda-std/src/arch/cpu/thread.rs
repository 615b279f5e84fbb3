//! Thread indices and launch bounds on the CPU executor.
use core::panic::Location;

use crate::cpu::{FaultKind, expect_no_global, with};

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
}

/// Raises a fault if the block has more than `MAX_THREADS` threads. The CUDA driver also rejects such a
/// launch.
#[inline]
#[track_caller]
pub fn launch_bounds<const MAX_THREADS: u32, const MIN_BLOCKS: u32>() {
    let at = Location::caller();
    with(|block| {
        let threads = block.threads();
        if threads > MAX_THREADS {
            block.raise_at(at, FaultKind::LaunchBounds { threads, declared: MAX_THREADS });
        }
    });
}

/// Raises a fault if the thread has accessed global memory before this call. On a GPU, such an access could
/// happen before the earlier launches end. The executor itself does not wait here, because its launches do
/// not overlap.
#[track_caller]
pub fn wait_for_earlier_launches(_address: u64) {
    expect_no_global();
}

/// Returns `words` unchanged. The PTX version of this function is an optimization barrier.
#[inline]
pub fn opaque<const N: usize>(words: [u32; N]) -> [u32; N] {
    words
}

/// Returns `address` unchanged. The PTX version of this function is an optimization barrier.
#[inline]
pub fn opaque_address(address: u64) -> u64 {
    address
}
