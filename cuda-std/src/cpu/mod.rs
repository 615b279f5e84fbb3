//! The CPU executor: runs a kernel on the host as the GPU would, and names what the GPU would hang or corrupt on.
//!
//! Every GPU thread is a stackful coroutine; the blocks of a grid run in parallel (rayon), the threads of one block
//! take turns on one core, each warp as far as it gets, in an order that is the block's own and the same each time. So
//! a kernel's results never depend on the machine or its load, and one that lacks a barrier computes something else in
//! some block: with `OXIWARP_THREAD_ORDER=<number>` in others, with `index` all in the order of their index.
//!
//! - **Barriers** want every thread of the block, **warp exchanges** every lane of their mask. One that can never
//!   complete ends the launch with a [`Fault`] that says who waits and who is missing; so do accesses past the
//!   launch-sized shared memory, misaligned vector accesses and panics. A thread that has returned never counts as
//!   arrived: hardware forgives that at some barriers, and a kernel that relies on it is one edit from a hang.
//! - **Which fault wins** is fixed: the lowest block index, and in it the first in the block's order.
//! - **What the GPU leaves undefined** shows: shared memory starts as 0xFF bytes (NaN), and a shuffle from a lane
//!   outside its mask gives the same.
//! - A thread changes only at a barrier or an exchange. A kernel that spins on memory until another thread writes
//!   it never ends here.
//!
//! Some files of this folder depend on each other in a cycle, the one cycle that `test_rust_modules.py` allows. They are
//! one scheduler: a block resumes its threads; a thread that reaches a barrier, an exchange, a copy or a matrix operation
//! changes the state of its block and gives control back to it; and the block completes the operation when all threads
//! have arrived. Each operation has a file, and the state of the block has fields for it. To put the operations below
//! the block, that state would have to be generic over them.
//!
//! Speed, on one core of an AMD EPYC: 5 ns per wait at a barrier; a block of 256 threads that reduces through shared
//! memory (9 barriers) takes 28 µs, one that never waits 3 µs (benches/results/cpu/2026-11-20). Printed anew by
//! `cargo test --release -p oxiwarp-cuda-std --test executor -- --ignored --nocapture`. A thread that never waits
//! leaves its stack to the next one, so a kernel without barriers uses one stack per core.
mod block;
pub(crate) mod copies;
mod crew;
mod fault;
mod grid;
mod matrix;
mod order;
mod race;
mod stack;
mod warp;

use core::ffi::c_void;

pub use fault::{Absence, Fault, FaultKind};

pub(crate) use block::{Block, with};
pub(crate) use matrix::{Fragments, multiply};
pub(crate) use race::note;
pub(crate) use warp::{Operation, exchange};

/// Most bytes of shared memory that a block may ask for: what compute capability 9.0 has.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// Of an L2 that is not there, in bytes: so few that the rows of a test are more.
pub const L2_BYTES: u64 = 4 << 10;

/// A kernel that the executor can launch; [`entry!`](crate::entry!) makes these.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The name under which both devices know it, such as `rms_norm_bf16`.
    pub name: &'static str,
    /// Reads the arguments, as `cuLaunchKernel`'s `kernelParams` a list of pointers to the values, and runs the body
    /// of one thread.
    pub run: unsafe fn(&[*const c_void]),
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks, `[x, y, z]`.
    pub grid: [u32; 3],
    /// Threads of a block, `[x, y, z]`.
    pub block: [u32; 3],
    /// Launch-sized shared memory of a block.
    pub shared_bytes: u32,
}

impl Launch {
    /// In 128 bits, which hold the product of any three sizes.
    fn threads(&self) -> u128 {
        self.block.iter().map(|&n| u128::from(n)).product()
    }

    /// Why a driver would refuse this shape.
    fn check(&self) -> Result<(), String> {
        let [_, y, z] = self.grid;
        if self.grid.contains(&0) {
            return Err(format!("grid is {:?}, expected at least one block in each dimension", self.grid));
        }
        if self.grid[0] > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("grid is {:?}, expected at most [2147483647, 65535, 65535]", self.grid));
        }
        if self.block.contains(&0) {
            return Err(format!("block is {:?}, expected at least one thread in each dimension", self.block));
        }
        if self.threads() > 1_024 {
            return Err(format!(
                "block is {:?}, {} threads, expected at most 1024",
                self.block,
                self.threads()
            ));
        }
        if self.block[2] > 64 {
            return Err(format!("block is {:?}, expected at most 64 in z", self.block));
        }
        if self.shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{} bytes of shared memory, expected at most {MAX_SHARED_BYTES}",
                self.shared_bytes
            ));
        }
        Ok(())
    }
}

/// Runs `kernel` over the whole grid and returns when every block is done, or with the fault of the first block (by
/// index) that had one; blocks after it may then not have run.
///
/// May be called from any number of threads at once, inside rayon's pools (whose workers it then uses), and in the
/// child of a fork, where the blocks run on the calling thread because the pool did not survive.
///
/// # Errors
/// [`FaultKind::BadLaunch`] for a shape that a driver would refuse, else what went wrong in the kernel.
///
/// # Safety
/// `args` point to values of the types that `kernel` reads, and the memory they name is valid for what the kernel
/// does with it, from several host threads at once.
pub unsafe fn launch(kernel: &Kernel, shape: &Launch, args: &[*const c_void]) -> Result<(), Fault> {
    let bad =
        |why| Fault { kernel: kernel.name, block: [0; 3], thread: [0; 3], kind: FaultKind::BadLaunch(why) };
    shape.check().map_err(bad)?;
    let draw = order::Draw::of_process().map_err(bad)?;
    // SAFETY: the shape was checked; the caller vouches for the arguments.
    unsafe { grid::run(kernel, shape, args, draw) }
}
