//! The CPU executor, which runs a kernel on the host with the semantics of a GPU. The executor reports errors
//! that would cause a GPU to hang or to return wrong results.
//!
//! Every GPU thread is a stackful coroutine. The blocks of a grid run in parallel on a rayon thread pool. The
//! threads of one block take turns on one core. A warp runs until all its threads wait or have returned. Then
//! the next warp runs.
//!
//! The order in which the threads of a block run depends on the block's number, but is the same in every run.
//! The result of a block therefore never depends on the machine or its load. Only global atomics of several
//! blocks can run in another order. Because blocks have different orders, a missing barrier leads to a wrong
//! result in at least one of several blocks. The environment variable
//! `OXIWARP_THREAD_ORDER=<number>` selects other orders, which depend on this number. With
//! `OXIWARP_THREAD_ORDER=index`, the threads run in the order of their index.
//!
//! - **Barriers and warp exchanges.** A barrier waits for every thread of the block. A warp exchange, such as
//!   a shuffle, waits for every lane of its mask. If a wait can never end, the launch returns a [`Fault`].
//!   The fault names a thread that waits and a thread that never arrives. At the barrier of
//!   a cluster, a thread that has returned counts as arrived, as on a GPU. At a barrier of a block, it does
//!   not: the executor reports a fault. Some GPUs do not wait for a returned thread there, but CUDA does not
//!   promise this.
//! - **Other faults** are accesses past the end of the dynamic shared memory, data races in this memory,
//!   misaligned vector accesses and panics.
//! - **If several threads fault**, the launch reports the first fault of the block with the lowest index. The
//!   order in which the threads of this block run determines which fault is the first.
//! - **Undefined values** are 0xFF bytes, which are NaN as floats and therefore visible in the results. New
//!   shared memory contains 0xFF bytes, and a shuffle from a lane outside its mask returns 0xFF bytes.
//! - **Hopper.** The executor supports mbarriers, named barriers, TMA and bulk copies, `wgmma`, `setmaxnreg`
//!   and clusters. One host thread runs all blocks of a cluster. The file `cluster` describes how
//!   asynchronous copies run and how the executor finds races between them.
//! - **Spinning is not supported.** The executor switches threads only at a barrier, a warp exchange, or a
//!   wait for an mbarrier. A kernel that spins until another thread writes memory never ends.
//!
//! When a thread returns, the next thread that starts on the same core uses its stack. A kernel without
//! barriers and warp exchanges therefore needs only one stack per core. The table shows times on one core of
//! an AMD EPYC (benches/results/decisions/executor.txt):
//!
//! | case | time |
//! | --- | --- |
//! | one wait at a barrier | 11 ns |
//! | block of 256 threads, reduction in shared memory with 9 barriers | 55 µs |
//! | block of 256 threads that never wait | 5 µs |
//!
//! The command `cargo test --release -p oxiwarp-cuda-std --test executor -- --ignored --nocapture` measures
//! these times.
//!
//! The files `block`, `bulk`, `cluster`, `copies`, `matrix`, `mbarrier`, `multiplication`, `named`,
//! `operands`, `race`, `registers`, `tma`, `warp` and `wgmma` of this module depend on each other. These
//! dependencies are the only cycle between files that the test `test_rust_modules.py` allows. The types
//! `Block` and `Cluster` store what each thread waits for, the accesses to shared memory, the pending copies
//! and the mbarriers. The other files define the types of the fields of `Block` and `Cluster`. The functions
//! in these files call `block::with` to find the running thread.
pub(crate) mod approximate;
mod block;
pub(crate) mod bulk;
mod clock;
pub(crate) mod cluster;
pub(crate) mod copies;
mod crew;
mod fault;
mod fault_kind;
mod grid;
mod history;
mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod multiplication;
pub(crate) mod named;
mod operands;
mod order;
mod race;
pub(crate) mod registers;
mod shape;
mod stack;
pub(crate) mod tensor_core;
mod tensor_map;
pub(crate) mod tma;
mod warp;
pub(crate) mod wgmma;

use core::ffi::c_void;

use crate::launch::{Entry, Kernel, KernelElement, Launcher};

pub use fault::Fault;
pub use fault_kind::{Absence, FaultKind, Origin};
pub use history::Swizzle;
pub use shape::{Launch, MAX_SHARED_BYTES};
pub use tensor_map::{Reduction, TensorMapElement, TensorMapShape};

pub(crate) use block::{Block, current, expect_no_global, here, note_global, operate, with};
pub(crate) use matrix::{Fragments, multiply};
pub(crate) use race::note;
pub(crate) use warp::{Operation, exchange, exchange_here};

/// L2 cache size in bytes that the CPU executor reports to the host code. The size is small, so that the
/// tensors of tests are larger than L2.
pub const L2_BYTES: u64 = 4 << 10;

/// Runs `kernel` for the whole grid, and returns when every block is done. If some blocks fault, the function
/// returns the fault of the block with the lowest index. Blocks with a higher index than this block may not
/// have run.
///
/// Several host threads may call the function at once. If the calling thread belongs to a rayon thread pool,
/// the function uses the workers of this pool. In the child process of a fork, the blocks run on the calling
/// thread, because rayon's workers exist only in the parent.
///
/// # Errors
/// Returns [`FaultKind::BadLaunch`] for a launch shape that a CUDA driver would reject, and for an invalid
/// value of `OXIWARP_THREAD_ORDER`. Other errors are faults that the kernel caused.
///
/// # Safety
/// `args` has one pointer per kernel parameter, which points to a value of the parameter's type. If this
/// value contains a pointer, the pointer is valid for the accesses that the kernel makes through it. Several
/// host threads access this memory at the same time, and the pointer must permit this.
pub unsafe fn launch(kernel: &Kernel, shape: &Launch, args: &[*const c_void]) -> Result<(), Fault> {
    let bad = |why| Fault {
        kernel: kernel.name,
        block: [0; 3],
        thread: [0; 3],
        location: None,
        kind: FaultKind::BadLaunch(why),
    };
    // SAFETY: the caller passes arguments of the kernel's types.
    let shared_bytes = unsafe { kernel.shared_bytes(shape.block, args) }.unwrap_or(shape.shared_bytes);
    let shape = &Launch { shared_bytes, ..*shape };
    shape.check().map_err(bad)?;
    let draw = order::Draw::of_process().map_err(bad)?;
    // SAFETY: `grid::run` requires a checked launch shape, and `check` accepted this shape. The caller passes
    // pointers to values of the kernel's parameter types.
    unsafe { grid::run(kernel.name, kernel.run, shape, args, draw) }
}

/// A [`Launcher`] that runs kernels on the CPU executor with this launch shape.
impl<T: KernelElement> Launcher<T> for Launch {
    type Error = Fault;

    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<(), Fault> {
        let kernel = T::ELEMENT.and_then(|element| entry.kernel(element));
        let kernel = kernel.unwrap_or_else(|| panic!("{} needs an element type", entry.name));
        // SAFETY: `launch` requires pointers to values of the kernel's parameter types, and the safety
        // conditions of the kernel. The caller guarantees both.
        unsafe { launch(kernel, &self, args) }
    }
}
