//! Device standard library for GPU kernels in Rust, with a PTX backend and a CPU backend.
//!
//! For the target `nvptx64`, every function compiles to PTX. For any other target, the functions run on the
//! [CPU executor](cpu), which emulates grid, blocks, threads, barriers, warps and shared memory. `cargo test`
//! can therefore test the source code of a kernel without a GPU.
//!
//! | CUDA C++ | here |
//! | --- | --- |
//! | `threadIdx`, `blockIdx`, `blockDim`, `gridDim` | [`simt::thread`] |
//! | `__syncthreads()` | [`simt::block::sync`] |
//! | `__shfl_xor_sync`, `__ballot_sync`, … | [`simt::warp`] |
//! | `extern __shared__` | [`simt::shared::SharedMemory`] |
//! | `float4` / 16-byte loads, `__ldg`, `__stcs` | [`rows::pack::Pack`], [`simt::mem`] |
//! | `__float2bfloat16_rn`, … | [`numeric::elem::Elem`] |
//! | `__nv_cvt_float2_to_fp8x2` | [`numeric::fp8::Fp8`] |
//! | `rsqrtf`, `__expf`, `fmaf` | [`numeric::math`] |
//! | `expf`, `erff`, `tanhf` | [`numeric::libdevice`] |
//! | `__launch_bounds__` | [`simt::thread::launch_bounds`] |
//! | `__pipeline_memcpy_async` | [`simt::copy`] |
//! | `mbarrier`, tensor maps, `wgmma`, `setmaxnreg` | [`hopper`] |
//! | `__cluster_dims__`, `cluster.map_shared_rank` | [`simt::cluster`] |
//! | `mma.sync`, `ldmatrix` | [`matrix::mma`] |
//! | `__global__` | [`entry!`] |
//!
//! Two types build on these functions. [`rows::team::Team`] is the group of threads that share one row of a
//! tensor. [`rows::row::Row`] is a row that a team reads. Each thread of the team reads one 16-byte vector of
//! elements (a pack) at a time.
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

#[cfg_attr(target_arch = "nvptx64", path = "arch/ptx/mod.rs")]
#[cfg_attr(not(target_arch = "nvptx64"), path = "arch/cpu/mod.rs")]
pub(crate) mod arch;
mod base;
#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;

mod entry;
#[cfg(not(target_arch = "nvptx64"))]
pub mod launch;
pub mod matrix;
pub mod numeric;
pub mod rows;
pub mod simt;

pub use matrix::{hopper, mma, tensor_map};
pub use numeric::{elem, fp8, libdevice, math, trig};
pub use rows::vec4::shared_row;
pub use rows::{pack, row, team, vec4};
pub use simt::{block, cluster, copy, l2, mem, shared, thread, warp};

/// The names that most kernels use.
pub mod prelude {
    pub use crate::entry;
    pub use crate::numeric::elem::{Elem, F32Vec};
    pub use crate::numeric::fp8::{E4m3, E5m2, Fp8};
    pub use crate::numeric::math::{fma, rsqrt};
    pub use crate::rows::pack::Pack;
    pub use crate::rows::row::fp8::Fp8RowMut;
    pub use crate::rows::row::{Row, RowIndex, RowMut, Rows};
    pub use crate::rows::team::Team;
    pub use crate::rows::vec4::shared_row::SharedRow;
    pub use crate::rows::vec4::{MixedRow, Vec4, Vec4Columns, Vec4Row, Vec4RowMut};
    pub use crate::simt::mem::{Load, Store};
    pub use crate::simt::shared::{Shared, SharedMemory};
    pub use crate::simt::{block, thread, warp};
    pub use half::{bf16, f16};
}

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: the instruction `trap` accesses no memory. It ends the kernel with an error, which a later CUDA
    // call on the host returns.
    unsafe { core::arch::nvptx::trap() }
}
