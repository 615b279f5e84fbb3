//! oxiwarp: GPU kernels for diffusion transformers and language models, written in Rust.
//!
//! An op, such as `rms_norm`, takes a [`Device`], [`View`]s of tensors, its parameters and a [`Stream`]. The
//! caller owns the tensors: a [`Buffer`] of this crate, or memory of torch or another library. The op checks
//! shapes, dtypes and strides and launches its kernels. It does not allocate memory and does not wait for the
//! GPU. To launch kernels of your own crate, use [`Kernels`]. The crate `oxiwarp-runtime` has devices, memory
//! and launches, but no ops. The present crate re-exports everything of `oxiwarp-runtime`.
//!
//! ```
//! use oxiwarp::{Device, RmsNorm, Stream, rms_norm};
//!
//! let device = Device::cuda(0).unwrap_or_else(|_| Device::cpu());
//! let x = device.upload(&[3.0_f32, 4.0, 6.0, 8.0])?;
//! let weight = device.upload(&[1.0_f32, 2.0])?;
//! let mut y = device.alloc::<f32>(4)?;
//! let params = RmsNorm { eps: 0.0, ..RmsNorm::default() };
//! let (input, output) = (x.view(&[2, 2])?, y.view_mut(&[2, 2])?);
//! rms_norm(&device, input, Some(weight.view(&[2])?), output, params, Stream::default())?;
//! assert!((y.download()?[1] - 2.0 * 4.0 / 12.5_f32.sqrt()).abs() < 1e-5);
//! # Ok::<(), oxiwarp::Error>(())
//! ```
pub mod arguments;
mod launch;
mod library;
mod operands;
mod ops;
mod plan;

#[doc(hidden)]
pub use launch::{LaunchOverride, Overridable};
pub use launch::{Rung, rung};
#[doc(hidden)]
pub use library::cuda_with_ptx;
pub use library::{KernelInfo, kernel_info, kernel_names, prepare_kernel};
pub use operands::attention::{Attention, AttentionInputs};
pub use operands::heads::{Heads, HeadsOrder};
pub use operands::modulation::{Affine, Modulation, ScaleShift};
pub use operands::rope::{Angles, Rope};
pub use ops::*;
pub use plan::norm_backward::{ParameterGradients, norm_backward_workspace};
pub use plan::vec4_norm::Norm;
pub use runtime::{
    Arch, Argument, Buffer, DEFAULT_SMEM_BYTES, Device, Dtype, DtypeSite, E4m3, E5m2, Element, Entry, Error,
    Event, Fp8, Graph, HeadsMap, Kernel, Kernels, Launch, Launcher, MAX_GRID_YZ, MAX_RANK, OwnedStream, Ptx,
    Result, Scalar, Site, Stream, Unit, View, ViewMut, args,
};
