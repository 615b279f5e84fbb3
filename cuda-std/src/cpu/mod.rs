//! The CPU executor: runs a kernel on the host as the GPU would, and names what the GPU would hang or corrupt
//! on.
//!
//! Every GPU thread is a stackful coroutine; the blocks of a grid run in parallel (rayon), the threads of one
//! block take turns on one core, each warp as far as it gets, in an order that is the block's own and the
//! same each time. So a kernel's results never depend on the machine or its load, and one that lacks a
//! barrier computes something else in some block: with `OXIWARP_THREAD_ORDER=<number>` in others, with
//! `index` all in the order of their index.
//!
//! - **Barriers** want every thread of the block, **warp exchanges** every lane of their mask. One that can
//!   never complete ends the launch with a [`Fault`] that says who waits and who is missing; so do accesses
//!   past the launch-sized shared memory, misaligned vector accesses and panics. A thread that has returned
//!   never counts as arrived: hardware forgives that at some barriers, and a kernel that relies on it is one
//!   edit from a hang.
//! - **Which fault wins** is fixed: the lowest block index, and in it the first in the block's order.
//! - **What the GPU leaves undefined** shows: shared memory starts as 0xFF bytes (NaN), and a shuffle from a
//!   lane outside its mask gives the same.
//! - A thread changes only at a barrier or an exchange. A kernel that spins on memory until another thread
//!   writes it never ends here.
//!
//! Speed, on one core of an AMD EPYC: 5 ns per wait at a barrier; a block of 256 threads that reduces through
//! shared memory (9 barriers) takes 28 µs, one that never waits 3 µs (benches/results/decisions/executor.txt).
//! Printed anew by `cargo test --release -p oxiwarp-cuda-std --test executor -- --ignored --nocapture`. A
//! thread that never waits leaves its stack to the next one, so a kernel without barriers uses one stack per
//! core.
//!
//! The files `block`, `copies`, `matrix`, `race` and `warp` depend on each other, the one cycle that
//! `test_rust_modules.py` allows. They are one scheduler, in a file for each subject: the block holds what its
//! threads wait for, which accesses of shared memory they made and which copies are on their way, and each of
//! these asks the running block (`block::with`) which thread runs.
mod block;
pub(crate) mod copies;
mod crew;
mod fault;
mod grid;
mod kernel;
mod matrix;
mod order;
mod race;
mod stack;
mod warp;

use core::ffi::c_void;

pub use fault::{Absence, Fault, FaultKind};
pub use kernel::{Kernel, Launch, MAX_SHARED_BYTES, Overlap};

pub(crate) use block::{Block, with};
pub(crate) use matrix::{Fragments, multiply};
pub(crate) use race::note;
pub(crate) use warp::{Operation, exchange};

/// Of an L2 that is not there, in bytes: so few that the rows of a test are more.
pub const L2_BYTES: u64 = 4 << 10;

/// Runs `kernel` over the whole grid and returns when every block is done, or with the fault of the first
/// block (by index) that had one; blocks after it may then not have run.
///
/// May be called from any number of threads at once, inside rayon's pools (whose workers it then uses), and
/// in the child of a fork, where the blocks run on the calling thread because the pool did not survive.
///
/// # Errors
/// [`FaultKind::BadLaunch`] for a shape that a driver would refuse, else what went wrong in the kernel.
///
/// # Safety
/// `args` point to values of the types that `kernel` reads, and the memory they name is valid for what the
/// kernel does with it, from several host threads at once.
pub unsafe fn launch(kernel: &Kernel, shape: &Launch, args: &[*const c_void]) -> Result<(), Fault> {
    let bad =
        |why| Fault { kernel: kernel.name, block: [0; 3], thread: [0; 3], kind: FaultKind::BadLaunch(why) };
    shape.check().map_err(bad)?;
    let draw = order::Draw::of_process().map_err(bad)?;
    // SAFETY: the shape was checked; the caller vouches for the arguments.
    unsafe { grid::run(kernel, shape, args, draw) }
}
