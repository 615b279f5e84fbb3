//! Devices: GPUs through the CUDA driver, and the CPU executor, which runs kernels on the host.
//!
//! `ptx` has the embedded PTX, `launch` the launch parameters, and `cuda` the calls of the CUDA driver.
//! `handle.rs` and `kernels.rs` launch a kernel through `cuda` or on the CPU executor.
pub(crate) mod cuda;
pub(crate) mod handle;
pub(crate) mod kernels;
pub(crate) mod launch;
pub(crate) mod ptx;
