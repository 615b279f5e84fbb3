//! Operations of thread-block clusters on the CPU executor.
use super::memory::shared_base;
use crate::cpu::cluster::{FIRST_ADDRESS, map_address as map};
use crate::cpu::{FaultKind, here, mbarrier, named, tma, with};

/// Declares that the clusters of this kernel have `BLOCKS` blocks. If the launch runs with another cluster
/// size, the function raises a fault, and the executor starts the launch again with clusters of `BLOCKS`
/// blocks.
#[track_caller]
pub fn cluster_bounds<const BLOCKS: u32>() {
    here();
    with(|block| {
        let blocks = block.cluster_size();
        if blocks != BLOCKS {
            block.raise(FaultKind::ClusterSize { declared: BLOCKS, blocks });
        }
    });
}

pub fn cluster_size<const BLOCKS: u32>() -> u32 {
    with(|block| block.cluster_size())
}

pub fn cluster_rank() -> u32 {
    with(|block| block.cluster_rank())
}

#[track_caller]
pub fn cluster_arrive() {
    here();
    named::cluster_arrive(false);
}

#[track_caller]
pub fn cluster_arrive_release() {
    here();
    named::cluster_arrive(true);
}

#[track_caller]
pub fn cluster_wait() {
    here();
    named::cluster_wait();
}

#[track_caller]
pub fn map_address(address: u32, rank: u32) -> u32 {
    here();
    map(address, rank)
}

/// # Safety
/// `address` is the address of a word in the shared memory of a block of the cluster.
#[track_caller]
pub unsafe fn remote_load(address: u32) -> u32 {
    here();
    tma::remote_load(address)
}

/// # Safety
/// `address` is the address of a word in the shared memory of a block of the cluster.
#[track_caller]
pub unsafe fn remote_store(address: u32, value: u32) {
    here();
    tma::remote_store(address, value);
}

fn address_of(word: *mut u64) -> u32 {
    FIRST_ADDRESS + (word.addr() - shared_base().addr()) as u32
}

/// # Safety
/// `barrier` points to a 64-bit word of the block's shared memory.
#[track_caller]
pub unsafe fn cluster_expect(barrier: *mut u64, bytes: u32) {
    here();
    let barrier = address_of(barrier);
    mbarrier::init(barrier, 1);
    mbarrier::init_fence();
    mbarrier::expect(barrier, bytes);
}

/// # Safety
/// `to` and `barrier` point to 64-bit words of the block's shared memory.
#[track_caller]
pub unsafe fn cluster_send(to: *mut u64, barrier: *mut u64, rank: u32, value: u64) {
    here();
    tma::send(map(address_of(to), rank), map(address_of(barrier), rank), value);
}

/// # Safety
/// `barrier` points to an mbarrier in the block's shared memory.
#[track_caller]
pub unsafe fn cluster_receive(barrier: *mut u64) {
    here();
    mbarrier::wait(address_of(barrier), 0);
}
