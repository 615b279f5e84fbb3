//! Kernels of a crate of one's own.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use cuda_std::cpu::{self, Kernel};

use super::cuda::{Cuda, OwnKernels};
use crate::{Arch, Device, Error, Launch, Result, Stream};

/// Kernels of a device crate that is not part of oxiwarp, loaded on a device: PTX on a GPU, functions on the CPU executor.
/// `examples/own-kernel` is a package that has one.
pub struct Kernels {
    device: Device,
    loaded: Loaded,
}

enum Loaded {
    Cuda(Arc<Cuda>, OwnKernels),
    Cpu(HashMap<&'static str, &'static Kernel>),
}

impl Kernels {
    /// Loads kernels: `functions` is the `KERNELS` that `cuda_std::entry!` made of a file, and `ptx` what `cuda_builder` made
    /// of the crate, for one architecture or more. A GPU takes the text for the newest that it runs, and keeps it until the
    /// process ends; the CPU executor takes the functions. A module whose kernels are in several files passes each by
    /// itself.
    ///
    /// # Errors
    /// No text that the GPU runs, one that its driver refuses (with the driver's log), or one without a kernel of `functions`.
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

    /// The device that they are loaded on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Gives a launch of the kernel `name`, such as `"l2_normalize_bf16"`, to `stream`; on the CPU executor it is done when
    /// this returns. [`args!`](crate::args) makes `args`. It can be captured in a CUDA graph.
    ///
    /// # Safety
    /// The arguments are of the number and types that the kernel declares, and until the launch is done whatever the kernel's
    /// own documentation asks for holds.
    ///
    /// # Errors
    /// No such kernel; a shape that the device does not take; on the CPU executor a fault of the kernel.
    pub unsafe fn launch(
        &self,
        name: &str,
        shape: Launch,
        stream: Stream,
        args: &[*const c_void],
    ) -> Result<()> {
        match &self.loaded {
            // SAFETY: as the caller promises.
            Loaded::Cuda(cuda, kernels) => unsafe { cuda.launch_own(kernels, name, &shape, stream, args) },
            Loaded::Cpu(kernels) => {
                let kernel = kernels.get(name).ok_or_else(|| Error::NoKernel(name.into()))?;
                let Launch { grid, block, shared_bytes, .. } = shape;
                // SAFETY: as the caller promises.
                unsafe { cpu::launch(kernel, &cpu::Launch { grid, block, shared_bytes }, args) }?;
                Ok(())
            }
        }
    }
}
