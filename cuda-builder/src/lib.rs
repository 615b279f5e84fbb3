//! `CudaBuilder` compiles a Rust device crate to PTX from a build script: one file per architecture.
//!
//! ```no_run
//! // build.rs of the crate that embeds the PTX
//! use cuda_builder::{Arch, CudaBuilder, Error};
//!
//! fn main() -> Result<(), Error> {
//!     CudaBuilder::new("../kernels-gpu").archs([Arch::Sm75, Arch::Sm80, Arch::Sm90]).build()?;
//!     Ok(())
//! }
//! // lib.rs: const SM_90: &str = include_str!(concat!(env!("OUT_DIR"), "/sm_90.ptx"));
//! ```
//!
//! The device crate is an ordinary `no_std` library, `extern "ptx-kernel"` functions and all. It is
//! built by a nested cargo for `nvptx64-nvidia-cuda`, with the toolchain of the `rust-toolchain.toml`
//! that governs it, whatever toolchain builds the host:
//! - all architectures side by side, each in a build folder of its own
//!   (`<target>/cuda-builder/<package>-<hash of the crate's folder>/<arch>`): no lock is shared with the outer cargo,
//!   and a debug and a release build of the host share one set of PTX;
//! - whole, or in units ([`CudaBuilder::units`]): a crate of many kernels takes long to compile, a unit with one
//!   of them does not. What did not change since the last build is not compiled, nor is cargo
//!   asked about it;
//! - nothing of the outer cargo's environment reaches it (`RUSTFLAGS`, wrappers, `CARGO_*`): the PTX
//!   depends on the sources and the toolchain only;
//! - a kernel's launch bounds, for which Rust has no attribute, come from a comment in its body: see
//!   [`entry`]; so does the address of an argument, as tensor maps need it (`arguments.rs`);
//! - the PTX has no comments: they are more than a quarter of what the compiler writes;
//! - the build script runs again when a source of the device crate or of its path dependencies changes,
//!   and files are only written when their content did;
//! - it runs again when a settings file (`.cargo/config.toml`, `rust-toolchain.toml`) changes, or appears in one of these
//!   folders: that of the device crate, unless it holds a lock file or the target folder, and every `.cargo` that exists
//!   between it and the root of the workspace. One that appears elsewhere above the crate is noticed at the next run of the
//!   build script, which `touch build.rs` starts. (cargo would run a build script at every build if it were to watch a
//!   file that does not exist, and it watches a folder with all that is in it.)
//!
//! `OXIWARP_LINE_INFO=1` keeps the line information for profilers ([`CudaBuilder::line_info`]).
//!
//! # Prebuilt PTX
//! The builder copies all PTX to `<target>/ptx/<package>/<arch>.ptx`, or `<arch>/<unit>.ptx`. With
//! `OXIWARP_PTX_DIR=<folder>` nothing is compiled: the PTX comes from such a folder, and the host needs no nightly
//! toolchain. The folder has a folder for each device crate.
//!
//! A copy starts with comments that name its package, unit, architecture and sources, with hashes. The build fails if
//! the file is for something else, if it was edited, or if a source has changed since it was compiled: the host might
//! launch its kernels with other arguments than they expect. `OXIWARP_PTX_STALE=1` turns the last two into a warning.
//! Changes of manifests, of the lock file and of the toolchain are not checked.

mod arch;
mod arguments;
mod builder;
mod built;
mod cargo;
mod comments;
pub mod entry;
mod env;
mod error;
mod files;
mod prebuilt;
mod record;
mod scan;
mod stamp;
mod toolchain;

pub use arch::Arch;
pub use builder::CudaBuilder;
pub use built::{Built, PtxFile};
pub use error::Error;
