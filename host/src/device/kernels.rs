//! Loading and launching kernels of a user's crate.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cuda_std::cpu::{self, Kernel};

use super::cuda::{Cuda, OwnKernels};
use crate::{Arch, Device, Error, Launch, Result, Stream};

/// The kernels of a crate that is not part of oxiwarp, loaded on a device. A GPU runs their PTX. The CPU
/// executor runs their Rust functions. The package `examples/own-kernel` is a complete example.
pub struct Kernels {
    device: Device,
    loaded: Loaded,
}

enum Loaded {
    Cuda(Arc<Cuda>, OwnKernels),
    Cpu(HashMap<&'static str, &'static Kernel>),
}

impl Kernels {
    /// Loads kernels on `device`.
    ///
    /// - `functions` are the `KERNELS` tables that `cuda_std::entry!` defines, one table per source file.
    /// - `ptx` is the PTX that `cuda_builder` made from the crate, for one or more architectures.
    ///
    /// A GPU loads the PTX of the newest architecture that it can run, and keeps it until the process ends.
    /// The CPU executor calls the Rust functions in `functions` instead.
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - The GPU can run none of the architectures in `ptx`.
    /// - The driver rejects the PTX. The error contains the driver's log.
    /// - A kernel of `functions` is not in the PTX.
    pub fn load(
        device: &Device,
        ptx: &[(Arch, &str)],
        functions: &'static [&'static [Kernel]],
    ) -> Result<Self> {
        let all = functions.iter().copied().flatten();
        let loaded = match device.as_cuda() {
            None => Loaded::Cpu(all.map(|kernel| (kernel.name, kernel)).collect()),
            Some(cuda) => {
                let able = ptx.iter().filter(|(arch, _)| arch.runs_on(cuda.capability));
                let Some((arch, text)) = able.max_by_key(|(arch, _)| *arch) else {
                    let names: Vec<_> = ptx.iter().map(|(arch, _)| arch.name()).collect();
                    let (major, minor) = cuda.capability;
                    let why = format!(
                        "{} has compute capability {major}.{minor}, the PTX is for {}",
                        cuda.name,
                        names.join(", ")
                    );
                    return Err(Error::Unsupported { op: "Kernels::load", why });
                };
                Loaded::Cuda(cuda.clone(), cuda.load_all(*arch, text, all.map(|kernel| kernel.name))?)
            }
        };
        Ok(Self { device: device.clone(), loaded })
    }

    /// Returns the device on which the kernels are loaded.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Launches the kernel `name`, for example `"l2_normalize_bf16"`, on `stream`. Make `args` with the macro
    /// [`args!`](crate::args). A CUDA graph can capture the launch. On the CPU executor, the launch is done
    /// when this function returns.
    ///
    /// # Safety
    /// The number and types of the arguments must match the kernel's declaration. The kernel's own safety
    /// requirements must hold until the launch is done.
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - There is no kernel `name`.
    /// - The device does not support the launch configuration.
    /// - The CPU executor detects an error in the kernel, for example a data race.
    pub unsafe fn launch(
        &self,
        name: &str,
        shape: Launch,
        stream: Stream,
        args: &[*const c_void],
    ) -> Result<()> {
        match &self.loaded {
            // SAFETY: the caller passes the arguments that the kernel declares.
            Loaded::Cuda(cuda, kernels) => unsafe { cuda.launch_own(kernels, name, &shape, stream, args) },
            Loaded::Cpu(kernels) => {
                let kernel = kernels.get(name).ok_or_else(|| Error::NoKernel(name.into()))?;
                let Launch { grid, block, shared_bytes, .. } = shape;
                // SAFETY: the caller passes the arguments that the kernel declares.
                unsafe { cpu::launch(kernel, &cpu::Launch { grid, block, shared_bytes }, args) }?;
                Ok(())
            }
        }
    }
}
