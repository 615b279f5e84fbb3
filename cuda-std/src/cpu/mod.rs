//! The CPU executor, which runs a kernel on the host with the semantics of a GPU. The executor reports errors
//! that would cause a GPU to hang or to return wrong results.
//!
//! Every GPU thread is a stackful coroutine. The blocks of a grid run in parallel on a rayon thread pool. The
//! threads of one block run alternately on one core. A warp runs until all its threads wait or have returned.
//!
//! Each block has a different order of threads, which is the same in every run. Results therefore never
//! depend on the machine or its load. Because the orders differ, a missing barrier leads to a wrong result in
//! at least one of several blocks. The environment variable `OXIWARP_THREAD_ORDER=<number>` selects different
//! orders. With `OXIWARP_THREAD_ORDER=index`, all threads run in the order of their index.
//!
//! - **Barriers and warp exchanges.** A barrier waits for every thread of the block. A warp exchange, such as
//!   a shuffle, waits for every lane of its mask. If a wait can never end, the launch returns a [`Fault`]
//!   that names a waiting and a missing thread. A thread that has returned never counts as arrived. Some
//!   hardware barriers ignore returned threads, but a kernel that relies on this rule may hang after a small
//!   change.
//! - **Other faults** are accesses past the end of the dynamic shared memory, data races in this memory,
//!   misaligned vector accesses and panics.
//! - **If several threads fault**, the launch reports the fault of the lowest block index. Within this block,
//!   it reports the fault that occurs first in the block's thread order.
//! - **Undefined values** are visible in the results. Shared memory starts as 0xFF bytes (NaN), and a shuffle
//!   from a lane outside its mask returns 0xFF bytes.
//! - **Spinning is not supported.** The executor switches threads only at a barrier or a warp exchange. A
//!   kernel that spins until another thread writes memory never ends.
//!
//! When a thread returns, the next thread that starts on this core uses the same stack. A kernel without
//! barriers therefore needs only one stack per core. The table shows times on one core of an AMD EPYC
//! (benches/results/decisions/executor.txt):
//!
//! | case | time |
//! | --- | --- |
//! | one wait at a barrier | 5 ns |
//! | block of 256 threads, reduction in shared memory with 9 barriers | 28 µs |
//! | block of 256 threads that never wait | 3 µs |
//!
//! The command `cargo test --release -p oxiwarp-cuda-std --test executor -- --ignored --nocapture` measures
//! these times.
//!
//! The files `block`, `copies`, `matrix`, `race` and `warp` form the scheduler and depend on each other.
//! These dependencies are the only cycle between files that the test `test_rust_modules.py` allows. The type
//! `Block` stores three things for each thread: the call at which it waits, its accesses to shared memory,
//! and its pending copies. The files `copies`, `matrix`, `race` and `warp` call `block::with` to find the
//! running thread.
mod block;
pub(crate) mod copies;
mod crew;
mod fault;
mod grid;
mod matrix;
mod order;
mod race;
mod shape;
mod stack;
mod warp;

use core::ffi::c_void;

use crate::launch::{Entry, Kernel, KernelElement, Launcher};

pub use fault::{Absence, Fault, FaultKind};
pub use shape::{Launch, MAX_SHARED_BYTES};

pub(crate) use block::{Block, with};
pub(crate) use matrix::{Fragments, multiply};
pub(crate) use race::note;
pub(crate) use warp::{Operation, exchange};

/// Size in bytes of the L2 cache that the CPU executor reports. The size is small, so that the tensors of
/// tests are larger than L2.
pub const L2_BYTES: u64 = 4 << 10;

/// Runs `kernel` for the whole grid and returns when every block is done. If blocks fault, the function
/// returns the fault of the block with the lowest index. Blocks with a higher index may not have run.
///
/// Several host threads may call the function at once. If the caller is in a rayon thread pool, the function
/// uses the workers of this pool. In the child process of a fork, the blocks run on the calling thread,
/// because rayon's workers exist only in the parent.
///
/// # Errors
/// Returns [`FaultKind::BadLaunch`] for a launch shape that a CUDA driver would reject, and for a kernel that
/// the executor cannot run. Otherwise returns the fault that the kernel caused.
///
/// # Safety
/// `args` has one pointer per kernel parameter, which points to a value of the parameter's type. If this
/// value is itself a pointer, it points to memory that is valid for the kernel's accesses. Several host
/// threads may access this memory at once.
pub unsafe fn launch(kernel: &Kernel, shape: &Launch, args: &[*const c_void]) -> Result<(), Fault> {
    let bad =
        |why| Fault { kernel: kernel.name, block: [0; 3], thread: [0; 3], kind: FaultKind::BadLaunch(why) };
    let Some(run) = kernel.run else {
        return Err(bad("the CPU executor does not have the instructions of this kernel".into()));
    };
    // SAFETY: the caller passes arguments of the kernel's types.
    let shared_bytes = unsafe { kernel.shared_bytes(shape.block, args) }.unwrap_or(shape.shared_bytes);
    let shape = &Launch { shared_bytes, ..*shape };
    shape.check().map_err(bad)?;
    let draw = order::Draw::of_process().map_err(bad)?;
    // SAFETY: `check` accepted the launch shape. The caller passes arguments of the kernel's types.
    unsafe { grid::run(kernel.name, run, shape, args, draw) }
}

/// A launch shape for the CPU executor, used as a launcher: it runs kernels with this grid and block size.
impl<T: KernelElement> Launcher<T> for Launch {
    type Error = Fault;

    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<(), Fault> {
        let kernel = T::ELEMENT.and_then(|element| entry.kernel(element));
        let kernel = kernel.unwrap_or_else(|| panic!("{} needs an element type", entry.name));
        // SAFETY: the caller passes arguments of the kernel's types, and satisfies the safety conditions of
        // the kernel.
        unsafe { launch(kernel, &self, args) }
    }
}
