//! Barriers, shuffles and votes on the CPU executor.
use core::panic::Location;

use crate::cpu::{Operation, current, exchange};

#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    let at = Location::caller();
    // SAFETY: the block is used only for this call.
    unsafe { current() }.barrier(at);
}

#[inline(always)]
#[track_caller]
pub fn sync_warp(mask: u32) {
    exchange(Operation::Sync, mask, 0, 0);
}

macro_rules! shuffles {
    ($($name:ident = $operation:ident;)*) => { $(
        #[inline(always)]
        #[track_caller]
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
#[track_caller]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    exchange(Operation::Ballot, mask, u32::from(predicate), 0)
}
