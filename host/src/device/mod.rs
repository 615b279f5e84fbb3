//! Devices: a GPU through the CUDA driver, or the CPU executor.
//!
//! From low to high: `ptx` (the embedded PTX), `launch` (grid, stream and launch configuration as data),
//! `cuda` (the CUDA driver), then the files of this folder, which choose between the driver and the executor.
pub(crate) mod cuda;
pub(crate) mod handle;
pub(crate) mod kernels;
pub(crate) mod launch;
pub(crate) mod ptx;
