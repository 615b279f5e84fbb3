//! Barriers, shuffles and votes. The functions call LLVM intrinsics, which LLVM treats as convergent
//! operations.
use core::arch::nvptx as nv;

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

#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier accesses no memory. Tests on the CPU executor check that all threads of the block
    // reach each barrier.
    unsafe { nv::_syncthreads() }
}

#[inline(always)]
pub fn sync_warp(mask: u32) {
    // SAFETY: a barrier accesses no memory. Tests on the CPU executor check that all lanes in `mask` reach
    // each warp barrier.
    unsafe { bar_warp(mask) }
}

#[inline(always)]
pub fn shfl_xor(mask: u32, value: u32, lane_mask: u32) -> u32 {
    // SAFETY: a shuffle only exchanges registers. Tests on the CPU executor check that all lanes in `mask`
    // take part.
    unsafe { shfl_bfly(mask, value, lane_mask, 31) }
}

#[inline(always)]
pub fn shfl_down(mask: u32, value: u32, delta: u32) -> u32 {
    // SAFETY: a shuffle only exchanges registers. Tests on the CPU executor check that all lanes in `mask`
    // take part.
    unsafe { shfl_down_(mask, value, delta, 31) }
}

#[inline(always)]
pub fn shfl_up(mask: u32, value: u32, delta: u32) -> u32 {
    // SAFETY: a shuffle only exchanges registers. Tests on the CPU executor check that all lanes in `mask`
    // take part. The last argument of the intrinsic is 0, the lowest lane from which `shfl.up` reads.
    unsafe { shfl_up_(mask, value, delta, 0) }
}

#[inline(always)]
pub fn shfl_idx(mask: u32, value: u32, lane: u32) -> u32 {
    // SAFETY: a shuffle only exchanges registers. Tests on the CPU executor check that all lanes in `mask`
    // take part.
    unsafe { shfl_idx_(mask, value, lane, 31) }
}

#[inline(always)]
pub fn ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: a vote only exchanges registers. Tests on the CPU executor check that all lanes in `mask` take
    // part.
    unsafe { vote_ballot(mask, predicate) }
}
