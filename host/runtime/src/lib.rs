//! Loads GPU kernels written in Rust and launches them with typed arguments.
//!
//! A kernel crate declares kernels with [`entry!`](cuda_std::entry!), and `cuda_builder` compiles the crate
//! to PTX. This crate loads the PTX on a GPU, or runs the same Rust functions on the CPU executor:
//!
//! - [`Device`] is a GPU or the CPU executor. [`Buffer`] is memory on a device, and [`View`] is a tensor in
//!   memory of this crate, of `cust`, or of another library.
//! - [`Kernels`] are the kernels of a crate, loaded on a device. The documentation of [`Kernels::on`] shows a
//!   launch.
//! - [`Stream`], [`OwnedStream`], [`Event`] and [`Graph`] are CUDA streams, events and graphs.
//!
//! The crate uses the crate `cust` for contexts, modules, memory, events and streams.
mod arch;
mod cuda;
mod device;
mod dtype;
mod error;
mod extensions;
mod kernels;
mod launch;
mod stream;
mod tensor;

pub use arch::Arch;
pub use cuda::{Event, Graph, HeadsMap, OwnedStream};
pub use cuda_std::fp8::{E4m3, E5m2, Fp8};
pub use cuda_std::launch::{Argument, Entry, Kernel, Launcher};
pub use device::Device;
pub use dtype::{Dtype, Element, Scalar};
pub use error::{Error, Result};
pub use kernels::{DtypeSite, Kernels, Ptx, Site, Unit};
pub use launch::{DEFAULT_SMEM_BYTES, Launch, MAX_GRID_YZ};
pub use stream::Stream;
pub use tensor::buffer::Buffer;
pub use tensor::view::{MAX_RANK, View, ViewMut};
