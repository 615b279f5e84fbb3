//! Compiles a Rust device crate (a crate of GPU kernels) to PTX. A build script calls [`CudaBuilder`]. Each
//! GPU architecture gets its own PTX files.
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
//! The device crate is an ordinary `no_std` library with `extern "ptx-kernel"` functions. The builder runs a
//! second (nested) cargo for the target `nvptx64-nvidia-cuda`. The nested cargo uses the toolchain in the
//! device crate's `rust-toolchain.toml`, independent of the host's toolchain.
//! - **Architectures** are compiled in parallel. Each architecture has its own result folder,
//!   `<target>/cuda-builder/<package>-<hash of the crate's folder>/<arch>`. Debug and release builds of the
//!   host use the same PTX. The nested cargo does not wait for locks of the outer cargo.
//! - **`core`** is compiled once for all architectures and all device crates of a target folder, in
//!   `<target>/cuda-builder/sysroot`. Other dependencies are compiled once per architecture for all device
//!   crates of a workspace, in `<target>/cuda-builder/build/<hash of the workspace's folder>/<arch>`.
//! - **Units** ([`CudaBuilder::units`]) split a crate of many kernels into several PTX files, so that an edit
//!   recompiles only some kernels. The builder does not start cargo for a unit whose inputs have not changed.
//! - **Environment**: the builder removes `RUSTFLAGS`, wrappers and most `CARGO_*` variables of the outer
//!   cargo. The PTX then depends only on the sources, the settings files and the toolchain.
//! - **Launch bounds** (PTX directives such as `.maxntid`) come from a comment in the kernel's body, because
//!   Rust has no attribute for launch bounds. The module [`entry`] describes this comment. Another module,
//!   `arguments.rs`, provides the address of a kernel argument, which TMA needs for tensor maps.
//! - **Comments** are removed from the PTX, because they are more than a quarter of the compiler's output.
//! - **Sources**: the build script runs again if a source of the device crate or of a path dependency
//!   changes. The builder writes a file only if its content has changed.
//! - **Settings files**: the build script runs again if `.cargo/config.toml` or `rust-toolchain.toml`
//!   changes.
//!
//! The build script also runs again if a settings file appears in one of these folders:
//! - the device crate's folder, unless it contains a lock file or the target folder;
//! - every existing `.cargo` folder from the device crate up to the workspace root.
//!
//! If a settings file appears in another folder above the crate, run `touch build.rs`. The builder cannot
//! name the missing file to cargo, because cargo would then run the build script at every build. The builder
//! cannot name the whole folder either, because cargo would watch everything in the folder.
//!
//! `OXIWARP_LINE_INFO=1` keeps the line information for profilers ([`CudaBuilder::line_info`]).
//!
//! # Prebuilt PTX
//! The builder copies all PTX to `<target>/ptx/<package>/<arch>.ptx`, or to `<arch>/<unit>.ptx` if there are
//! units. With [`CudaBuilder::prebuilt`], the builder compiles nothing and takes the PTX from a copy of the
//! folder `<target>/ptx`. The build then needs no nightly toolchain. The folder contains one folder per
//! device crate.
//!
//! A copied PTX file starts with comments that name its package, unit, architecture and sources, with hashes.
//! A build with prebuilt PTX fails in these cases:
//! - The file is for another package, unit or architecture.
//! - The file was edited after the builder wrote it.
//! - A source has changed since the file was compiled. The arguments of the kernels may then differ from the
//!   arguments that the host passes.
//!
//! The environment variable `OXIWARP_PTX_STALE=1` turns the last two errors into a warning. The builder does
//! not check whether manifests, the lock file or the toolchain have changed.

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
mod sysroot;
mod toolchain;

pub use arch::Arch;
pub use builder::CudaBuilder;
pub use built::{Built, PtxFile};
pub use error::Error;
