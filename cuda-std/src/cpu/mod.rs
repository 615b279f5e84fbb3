//! The CPU executor: runs a kernel on the host as a GPU would, and reports errors that would hang or corrupt
//! a GPU.
//!
//! Every GPU thread is a stackful coroutine. The blocks of a grid run in parallel (rayon). The threads of one
//! block run alternately on one core, and each warp runs until it must wait.
//!
//! Each block has its own thread order, which is the same in every run. Results therefore never depend on the
//! machine or its load. If a kernel lacks a barrier, some block computes a wrong result.
//! `OXIWARP_THREAD_ORDER=<number>` selects other orders, and `index` runs all threads in the order of their
//! index.
//!
//! - **Barriers** wait for every thread of the block, **warp exchanges** for every lane of their mask. If one
//!   can never complete, the launch ends with a [`Fault`] that names a waiting and a missing thread. A thread
//!   that has returned never counts as arrived. Hardware tolerates this at some barriers, but such a kernel
//!   hangs after a small change.
//! - **Other faults**: accesses past the launch-sized shared memory, data races in it, misaligned vector
//!   accesses and panics.
//! - **If several threads fault**, the launch reports the lowest block index, and in this block the first
//!   fault in its thread order.
//! - **Undefined values** are visible: shared memory starts as 0xFF bytes (NaN), and a shuffle from a lane
//!   outside its mask returns the same bits.
//! - **Spinning is not supported**: the executor switches threads only at a barrier or an exchange. A kernel
//!   that spins until another thread writes memory never ends.
//!
//! A thread that never waits passes its stack to the next thread. A kernel without barriers therefore uses
//! one stack per core. Speed on one core of an AMD EPYC (benches/results/decisions/executor.txt):
//!
//! | case | time |
//! | --- | --- |
//! | one wait at a barrier | 5 ns |
//! | block of 256 threads, reduction in shared memory with 9 barriers | 28 µs |
//! | block of 256 threads that never wait | 3 µs |
//!
//! `cargo test --release -p oxiwarp-cuda-std --test executor -- --ignored --nocapture` measures these times.
//!
//! The files `block`, `copies`, `matrix`, `race` and `warp` depend on each other. This is the only cycle that
//! `test_rust_modules.py` allows. Together they are one scheduler, with one file per subject. The block
//! stores what its threads wait for, their accesses to shared memory and their pending copies. The other
//! files call `block::with` to find the running thread.
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

/// Size in bytes of the L2 that the executor reports. It is small, so that rows in tests exceed it.
pub const L2_BYTES: u64 = 4 << 10;

/// Runs `kernel` for the whole grid and returns when every block is done. If blocks fault, it returns the
/// fault of the lowest block index. Blocks after that block may not have run.
///
/// Several threads may call it at once. Inside a rayon pool, it uses the workers of the pool. In the child of
/// a fork, the blocks run on the calling thread, because rayon's workers do not survive a fork.
///
/// # Errors
/// [`FaultKind::BadLaunch`] for a shape that a driver would refuse. Otherwise the fault of the kernel.
///
/// # Safety
/// `args` point to values of the types that `kernel` reads. The memory that they point to is valid for the
/// kernel's accesses, from several host threads at once.
pub unsafe fn launch(kernel: &Kernel, shape: &Launch, args: &[*const c_void]) -> Result<(), Fault> {
    let bad =
        |why| Fault { kernel: kernel.name, block: [0; 3], thread: [0; 3], kind: FaultKind::BadLaunch(why) };
    shape.check().map_err(bad)?;
    let draw = order::Draw::of_process().map_err(bad)?;
    // SAFETY: `check` accepted the shape. The caller passes arguments of the kernel's types.
    unsafe { grid::run(kernel, shape, args, draw) }
}
