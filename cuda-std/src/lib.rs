//! Device standard library: what a GPU kernel in Rust is written with.
//!
//! One API, two backends. For `nvptx64` every function here becomes PTX; for any other target it runs on the
//! [CPU executor](cpu), which plays the GPU: grid, blocks, threads, barriers, warps and shared memory. So a kernel
//! is tested by `cargo test` on a machine without a GPU, and shipped from the same source.
//!
//! | CUDA C++ | here |
//! | --- | --- |
//! | `threadIdx`, `blockIdx`, `blockDim`, `gridDim` | [`thread`] |
//! | `__syncthreads()` | [`block::sync`] |
//! | `__shfl_xor_sync`, `__ballot_sync`, … | [`warp`] |
//! | `extern __shared__` | [`shared::SharedMemory`] |
//! | `float4` / 16-byte loads, `__ldg`, `__stcs` | [`pack::Pack`], [`mem`] |
//! | `__float2bfloat16_rn`, … | [`elem::Elem`] |
//! | `rsqrtf`, `__expf`, `fmaf` | [`math`] |
//! | `expf`, `erff`, `tanhf` | [`libdevice`] |
//! | `__launch_bounds__` | [`thread::launch_bounds`] |
//! | `__pipeline_memcpy_async` | [`copy`] |
//! | `mbarrier`, tensor maps, `wgmma`, `setmaxnreg` | `hopper`, on PTX only |
//! | `__cluster_dims__`, `cluster.map_shared_rank` | [`cluster`] |
//! | `mma.sync`, `ldmatrix` | [`mma`] |
//! | `__global__` | [`entry!`] |
//!
//! On top of these stands the vocabulary that row kernels share: [`team::Team`] (the threads of one row) and
//! [`row::Row`] (a row read and written in tiles of one 16-byte pack a thread).
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        asm_experimental_arch,
        core_intrinsics,
        gpu_intrinsics,
        gpu_launch_sized_workgroup_mem,
        link_llvm_intrinsics,
        stdarch_nvptx
    ),
    allow(internal_features)
)]

#[cfg_attr(target_arch = "nvptx64", path = "arch/ptx.rs")]
#[cfg_attr(not(target_arch = "nvptx64"), path = "arch/cpu.rs")]
pub(crate) mod arch;
#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;

pub mod block;
pub mod cluster;
pub mod copy;
pub mod elem;
mod entry;
#[cfg(target_arch = "nvptx64")]
pub mod hopper;
pub mod l2;
pub mod libdevice;
pub mod math;
pub mod mem;
pub mod mma;
pub mod pack;
pub mod quad;
pub mod row;
pub mod shared;
pub mod staged;
pub mod team;
pub mod thread;
pub mod trig;
pub mod warp;

/// What nearly every kernel uses.
pub mod prelude {
    pub use crate::elem::{Elem, Lanes};
    pub use crate::math::{fma, rsqrt};
    pub use crate::mem::{Load, Store};
    pub use crate::pack::Pack;
    pub use crate::quad::{MixedRow, Quad, QuadColumns, QuadRow, QuadRowMut};
    pub use crate::row::{Row, RowAt, RowMut, Rows};
    pub use crate::shared::{Shared, SharedMemory};
    pub use crate::staged::Staged;
    pub use crate::team::Team;
    pub use crate::{block, entry, thread, warp};
    pub use half::{bf16, f16};
}

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: `trap` ends the kernel with an error that the host sees at its next driver call.
    unsafe { core::arch::nvptx::trap() }
}
