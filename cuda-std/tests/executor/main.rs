//! Tests of the CPU executor. They compare its results with simple models of a GPU, and cause each kind of
//! fault that the executor can report.
mod barrier;
mod copies;
mod faults;
mod hopper;
mod hopper_faults;
mod hopper_races;
mod mma;
mod process;
mod races;
mod speed;
mod unwinding;
mod warps;
mod wgmma;
mod wgmma_rules;

use core::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cuda_std::cpu::{self, Fault, Launch};
use cuda_std::launch::{Cache, ElementType, Kernel, Overlap, Parameter};
use cuda_std::prelude::*;

/// A closure that serves as the body of the kernel. Every GPU thread calls it. The closure captures all data
/// that the kernel needs.
type Body<'a> = &'a (dyn Fn() + Sync);

fn kernel(name: &'static str) -> Kernel {
    static CACHE: Cache = Cache::new(core::ptr::null_mut());
    Kernel {
        name,
        element: ElementType::F32,
        overlap: Overlap::Both,
        parameters: &[const { Parameter::new::<Body>("body", "Body") }],
        shared: None,
        cache: &CACHE,
        only: None,
        // SAFETY: `run` passes one argument, a `Body`.
        run: |args| unsafe { args[0].cast::<Body>().read()() },
    }
}

/// Launches `body` as a kernel named `probe`.
fn run(grid: [u32; 3], block: [u32; 3], shared_bytes: u32, body: Body) -> Result<(), Fault> {
    let shape = Launch { grid, block, shared_bytes };
    // SAFETY: the kernel reads exactly one argument, a `Body`, and the call passes a pointer to a `Body`.
    // Several host threads may call this closure at the same time, because it is `Sync`.
    unsafe { cpu::launch(&kernel("probe"), &shape, &[(&raw const body).cast::<c_void>()]) }
}

/// Launches one block of `threads` threads and returns the fault of the launch. Panics if there is no fault.
fn fault(threads: u32, shared_bytes: u32, body: Body) -> Fault {
    run([1; 3], [threads, 1, 1], shared_bytes, body).expect_err("the launch must fault")
}

/// Returns the message of a fault, without the location in the source code.
fn message(fault: &Fault) -> String {
    Fault { location: None, ..fault.clone() }.to_string()
}

/// Returns the index of the thread in its block.
fn me() -> u32 {
    block::linear_index()
}

fn zeros(len: u32) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

fn values(cells: &[AtomicU32]) -> Vec<u32> {
    cells.iter().map(|cell| cell.load(Relaxed)).collect()
}

/// Returns the sum of `value` over the block. The sum is a tree reduction in shared memory with one barrier
/// per step. The block may have any number of threads. The function uses 4 bytes of shared memory per thread.
fn tree_sum(value: f32, threads: u32) -> f32 {
    let sums = SharedMemory::of_launch().take::<f32>(threads);
    let mut width = threads.next_power_of_two();
    // SAFETY: each thread writes only the element with its index. A barrier separates this write from the
    // reads of other threads.
    unsafe { sums.set(me(), value) };
    while width > 1 {
        block::sync();
        width /= 2;
        if me() < width && me() + width < threads {
            // SAFETY: each thread writes only the element with its own index, which is less than `width`. In
            // this step, the elements that threads read from other threads have the index `width` or higher,
            // so no thread writes them.
            unsafe { sums.set(me(), sums.get(me()) + sums.get(me() + width)) };
        }
    }
    block::sync();
    // SAFETY: thread 0 wrote the element before the last barrier.
    unsafe { sums.get(0) }
}
