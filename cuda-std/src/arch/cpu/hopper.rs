//! Asynchronous instructions of Hopper on the CPU executor. The functions have the same names as the PTX
//! versions in `arch/ptx/hopper.rs`, which document them.
//!
//! # Safety
//! The requirements of the PTX versions apply. The executor checks the addresses in shared memory, but not
//! those in global memory.
#![allow(clippy::missing_safety_doc, reason = "see the documentation of the file")]
use super::memory::shared_base;
use super::thread::lane;
use crate::cpu::cluster::{self, FIRST_ADDRESS};
use crate::cpu::{Operation, bulk, exchange_here, here, mbarrier, named, note, registers, tma, with};

#[track_caller]
pub unsafe fn barrier_init(barrier: u32, arrivals: u32) {
    here();
    mbarrier::init(barrier, arrivals);
}

#[track_caller]
pub unsafe fn barrier_init_fence() {
    here();
    mbarrier::init_fence();
}

#[track_caller]
pub unsafe fn barrier_arrive(barrier: u32) {
    here();
    mbarrier::arrive(barrier);
}

#[track_caller]
pub unsafe fn barrier_arrive_remote(barrier: u32) {
    here();
    mbarrier::arrive(barrier);
}

#[track_caller]
pub unsafe fn barrier_arrive_remote_after_wgmma(barrier: u32) {
    here();
    mbarrier::arrive_after_wgmma(barrier);
}

#[track_caller]
pub unsafe fn barrier_expect(barrier: u32, bytes: u32) {
    here();
    mbarrier::expect(barrier, bytes);
}

#[track_caller]
pub unsafe fn barrier_wait(barrier: u32, parity: u32) {
    here();
    mbarrier::wait(barrier, parity);
}

#[track_caller]
pub unsafe fn barrier_test(barrier: u32, parity: u32) -> bool {
    here();
    mbarrier::test_wait(barrier, parity)
}

#[track_caller]
pub unsafe fn named_sync(id: u32, threads: u32) {
    here();
    named::named_sync(id, threads);
}

#[track_caller]
pub unsafe fn named_arrive(id: u32, threads: u32) {
    here();
    named::named_arrive(id, threads);
}

#[track_caller]
pub unsafe fn shared_store(address: u32, value: f32) {
    let offset = own_bytes(address, 4, true);
    // SAFETY: `own_bytes` checked the offset and its alignment.
    unsafe { shared_base().add(offset).cast::<f32>().write(value) };
}

#[track_caller]
pub unsafe fn shared_load_pair(address: u32) -> [f32; 2] {
    let offset = own_bytes(address, 8, false);
    // SAFETY: `own_bytes` checked the offset and its alignment.
    unsafe { shared_base().add(offset).cast::<[f32; 2]>().read() }
}

/// Checks an access of the running thread to shared memory and returns its offset.
#[track_caller]
pub(super) fn own_bytes(address: u32, bytes: usize, writes: bool) -> usize {
    super::memory::check_aligned(address as usize, bytes);
    let offset = (address as usize).wrapping_sub(FIRST_ADDRESS as usize);
    super::memory::check_shared(offset, bytes);
    note(offset, bytes, writes);
    offset
}

pub unsafe fn tensor_map_prefetch(_: u64) {}

#[track_caller]
pub unsafe fn fence_async_shared() {
    here();
    cluster::proxy_fence();
}

#[track_caller]
pub unsafe fn bulk_commit() {
    here();
    bulk::bulk_commit();
}

#[track_caller]
pub unsafe fn bulk_wait_read() {
    here();
    bulk::bulk_wait(0, false);
}

#[track_caller]
pub unsafe fn bulk_wait_write() {
    here();
    bulk::bulk_wait(0, true);
}

#[track_caller]
pub unsafe fn bulk_wait_pending<const PENDING: u32>() {
    here();
    bulk::bulk_wait(PENDING, false);
}

#[track_caller]
pub unsafe fn bulk_wait_write_pending<const PENDING: u32>() {
    here();
    bulk::bulk_wait(PENDING, true);
}

#[track_caller]
pub unsafe fn tensor_copy<const D: usize>(to: u32, map: u64, at: [u32; D], barrier: u32) {
    here();
    tma::tensor_copy(to, map, &at.map(u32::cast_signed), barrier, None);
}

#[track_caller]
pub unsafe fn tensor_multicast<const D: usize>(to: u32, map: u64, at: [u32; D], barrier: u32, blocks: u16) {
    here();
    tma::tensor_copy(to, map, &at.map(u32::cast_signed), barrier, Some(blocks));
}

#[track_caller]
pub unsafe fn tensor_store<const D: usize>(from: u32, map: u64, at: [u32; D]) {
    here();
    tma::tensor_store(from, map, &at.map(u32::cast_signed), None);
}

#[track_caller]
pub unsafe fn tensor_add<const D: usize>(from: u32, map: u64, at: [u32; D]) {
    here();
    tma::tensor_store(from, map, &at.map(u32::cast_signed), Some(crate::cpu::Reduction::Add));
}

#[track_caller]
pub unsafe fn bulk_copy(to: u32, from: *const u8, bytes: u32, barrier: u32) {
    here();
    // SAFETY: the caller passes readable bytes.
    unsafe { bulk::bulk_copy(to, from, bytes, barrier) };
}

#[track_caller]
pub unsafe fn bulk_store(to: *mut u8, from: u32, bytes: u32) {
    here();
    // SAFETY: the caller passes writable bytes.
    unsafe { bulk::bulk_store(to, from, bytes) };
}

#[track_caller]
pub unsafe fn bulk_send(to: u32, from: u32, bytes: u32, barrier: u32) {
    here();
    bulk::bulk_send(to, from, bytes, barrier);
}

/// Each lane writes one row of a matrix, to the address that it passes. Four lanes have the words of this
/// row.
#[inline(never)]
#[track_caller]
pub unsafe fn store_matrices(address: u32, words: [u32; 4]) {
    here();
    let lane = lane();
    let mut row = [0; 4];
    for matrix in 0..4 {
        for (word, to) in row.iter_mut().enumerate() {
            let from = lane % 8 * 4 + word as u32;
            let value = exchange_here(Operation::StoreMatrices, words[matrix as usize], from);
            *to = if lane / 8 == matrix { value } else { *to };
        }
    }
    store_row(address, row);
}

/// Does the same as [`store_matrices`], but stores the transposed matrices. Each lane writes one row, and
/// eight lanes have the elements of this row.
#[inline(never)]
#[track_caller]
pub unsafe fn store_transposed(address: u32, words: [u32; 4]) {
    here();
    let lane = lane();
    let mut row = [0; 4];
    for matrix in 0..4 {
        for element in 0..8 {
            let from = element * 4 + lane % 8 / 2;
            let value = exchange_here(Operation::StoreMatrices, words[matrix as usize], from);
            let half = value >> (lane % 2 * 16) & 0xFFFF;
            row[element as usize / 2] |= if lane / 8 == matrix { half << (element % 2 * 16) } else { 0 };
        }
    }
    store_row(address, row);
}

/// Writes a row of 16 bytes.
#[track_caller]
fn store_row(address: u32, row: [u32; 4]) {
    let offset = own_bytes(address, 16, true);
    // SAFETY: `own_bytes` checked the offset and its alignment.
    unsafe { shared_base().add(offset).cast::<[u32; 4]>().write(row) };
}

/// Returns the address `map` of a tensor map in global memory, and checks that it is aligned to 64 bytes.
/// This function is not for tensor maps that are kernel arguments. On the executor, an argument has only the
/// alignment of its Rust type, which is less than 64.
#[track_caller]
pub fn tensor_map_at(map: u64) -> u64 {
    super::memory::check_aligned(map as usize, 64);
    map
}

pub fn argument<const NUMBER: u32>() -> u64 {
    with(|block| block.argument(NUMBER).expose_provenance() as u64)
}

pub fn shared_address(pointer: *mut u8) -> u32 {
    FIRST_ADDRESS + (pointer.addr() - shared_base().addr()) as u32
}

#[track_caller]
pub unsafe fn registers_up<const COUNT: u32>() {
    here();
    registers::registers_up(COUNT);
}

#[track_caller]
pub unsafe fn registers_down<const COUNT: u32>() {
    here();
    registers::registers_down(COUNT);
}
