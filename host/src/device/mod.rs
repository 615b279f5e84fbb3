//! Devices: GPUs through the CUDA driver, and the CPU executor.
//!
//! The modules from low to high level are `ptx` (the embedded PTX), `launch` (launch parameters) and `cuda`
//! (the CUDA driver). The files of this folder select between the driver and the CPU executor.
pub(crate) mod cuda;
pub(crate) mod handle;
pub(crate) mod kernels;
pub(crate) mod launch;
pub(crate) mod ptx;
