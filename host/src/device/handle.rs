//! The handle of a device, which launches through the CUDA driver or on the CPU executor.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cuda_std::cpu::{self, Kernel};

use super::cuda::{self, Cuda, OwnedStream};
use super::launch::{Launch, LaunchOverride, LaunchRecorder, Stream};
use super::ptx::Ptx;
use super::ptx::arch::Arch;
use crate::{Dtype, Error, Result};

/// A memory that pointers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Host,
    Cuda(usize),
}

/// Where ops run. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Device {
    kind: Kind,
    /// The launch override, and the launches so far, of a device that [`Device::with_override`] made.
    recorder: Option<Arc<LaunchRecorder>>,
}

#[derive(Clone)]
enum Kind {
    Cuda(Arc<Cuda>),
    Cpu,
}

impl From<Kind> for Device {
    fn from(kind: Kind) -> Self {
        Self { kind, recorder: None }
    }
}

impl Device {
    /// GPU number `index`, in the context that torch and the CUDA runtime use too. Opened once in a process.
    ///
    /// # Errors
    /// No driver, no such GPU, or one that no PTX of ours runs on. `OXIWARP_ARCH=sm_80`, read when the first
    /// GPU is opened, makes all take that PTX instead of the newest that they can run.
    pub fn cuda(index: usize) -> Result<Self> {
        Cuda::open(index).map(|cuda| Kind::Cuda(cuda).into())
    }

    /// GPU number `index` with the PTX of `arch`, whatever newer there is: for tests and comparisons.
    ///
    /// # Errors
    /// As [`Device::cuda`]; also when the GPU does not run `arch`.
    pub fn cuda_as(index: usize, arch: Arch) -> Result<Self> {
        Cuda::new(index, Some(arch), None).map(|cuda| Kind::Cuda(Arc::new(cuda)).into())
    }

    /// GPU number `index` with PTX text of the caller's, written for `arch`: to try out kernels edited by
    /// hand.
    ///
    /// # Safety
    /// Ops launch the entries of this text with the arguments of this crate's kernels: an entry with the name
    /// of a kernel takes the kernel's arguments and accesses the same memory.
    ///
    /// # Errors
    /// As [`Device::cuda`]. PTX that the driver refuses shows at the first launch, with the driver's log.
    pub unsafe fn cuda_with_ptx(index: usize, arch: Arch, text: &'static str) -> Result<Self> {
        let own: &'static Ptx = Box::leak(Box::new(Ptx::new(arch, &[("", text)])));
        Cuda::new(index, Some(arch), Some(own)).map(|cuda| Kind::Cuda(Arc::new(cuda)).into())
    }

    /// Name of GPU number `index` and the PTX that it would load, without a context on it.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn describe(index: usize) -> Result<(String, Arch)> {
        cuda::describe(index)
    }

    /// The CPU executor.
    pub fn cpu() -> Self {
        Kind::Cpu.into()
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    /// No driver.
    pub fn count() -> Result<usize> {
        cuda::count()
    }

    /// Its name, as the driver gives it.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Cuda(cuda) => &cuda.name,
            Kind::Cpu => "CPU executor",
        }
    }

    /// The PTX that it loads; `None` on the CPU.
    pub fn arch(&self) -> Option<Arch> {
        match &self.kind {
            Kind::Cuda(cuda) => Some(cuda.ptx.arch),
            Kind::Cpu => None,
        }
    }

    /// The same device, on which ops launch as `over` says instead of what they choose: for `tune` and tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_override(&self, over: LaunchOverride) -> Self {
        Self { kind: self.kind.clone(), recorder: Some(Arc::new(LaunchRecorder::new(over))) }
    }

    /// What was launched on a device with an override since the last call of this function.
    #[doc(hidden)]
    pub fn take_launches(&self) -> Vec<String> {
        self.recorder.as_ref().map_or(vec![], |recorder| recorder.take())
    }

    /// What ops launch instead of what they choose.
    pub(crate) fn launch_override(&self) -> LaunchOverride {
        self.recorder.as_ref().map_or(LaunchOverride::default(), |recorder| recorder.over)
    }

    /// The most shared memory that a block may have, in bytes.
    pub(crate) fn max_shared_bytes(&self) -> u32 {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.max_shared_bytes,
            Kind::Cpu => cpu::MAX_SHARED_BYTES,
        }
    }

    /// Its L2, if what kernels read once is to be kept there ([`L2Policy`](cuda_std::l2::L2Policy)).
    pub(crate) fn l2_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.l2_bytes,
            Kind::Cpu => Some(cpu::L2_BYTES),
        }
    }

    /// The memory that its kernels reach.
    pub(crate) fn location(&self) -> Location {
        match &self.kind {
            Kind::Cuda(cuda) => Location::Cuda(cuda.index),
            Kind::Cpu => Location::Host,
        }
    }

    pub(crate) fn as_cuda(&self) -> Option<&Arc<Cuda>> {
        match &self.kind {
            Kind::Cuda(cuda) => Some(cuda),
            Kind::Cpu => None,
        }
    }

    /// Launches `kernel` for `dtype`. On a GPU this is `cuLaunchKernelEx` on the caller's stream and nothing
    /// else, so that it can be captured into a CUDA graph (the kernel's first launch loads it before).
    ///
    /// # Safety
    /// `args` point to values of the types that the kernel declares, and the kernel's own promises are kept
    /// until the launch is done.
    pub(crate) unsafe fn launch<const N: usize>(
        &self,
        kernel: &'static str,
        dtype: Dtype,
        mut shape: Launch,
        stream: Stream,
        args: [*const c_void; N],
    ) -> Result<()> {
        if let Some(recorder) = &self.recorder {
            shape.carveout = recorder.over.carveout.or(shape.carveout);
            recorder.note(kernel, &shape);
            if let Kind::Cuda(cuda) = &self.kind {
                cuda.prefer_shared(kernel, dtype, &shape)?;
            }
        }
        match &self.kind {
            // SAFETY: as the caller promises.
            Kind::Cuda(cuda) => unsafe { cuda.launch(kernel, dtype, shape, stream, args) },
            Kind::Cpu => {
                let Launch { grid, block, shared_bytes, .. } = shape;
                // SAFETY: as the caller promises.
                unsafe {
                    cpu::launch(cpu_kernel(kernel, dtype)?, &cpu::Launch { grid, block, shared_bytes }, &args)
                }?;
                Ok(())
            }
        }
    }

    /// Waits for everything given to the device so far.
    ///
    /// # Errors
    /// A kernel that failed.
    pub fn synchronize(&self) -> Result<()> {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.synchronize(),
            Kind::Cpu => Ok(()),
        }
    }
}

impl OwnedStream {
    /// A new stream of a GPU.
    ///
    /// # Errors
    /// The CPU executor has none; a driver error.
    pub fn new(device: &Device) -> Result<Self> {
        let Some(cuda) = device.as_cuda() else {
            let why = "the CPU executor has no streams".into();
            return Err(Error::Unsupported { op: "OwnedStream::new", why });
        };
        Self::on(cuda)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.name(), self.arch().map_or("executor", Arch::name))
    }
}

fn cpu_kernel(kernel: &'static str, dtype: Dtype) -> Result<&'static Kernel> {
    static BY_NAME: OnceLock<HashMap<&'static str, &'static Kernel>> = OnceLock::new();
    let kernels =
        BY_NAME.get_or_init(|| kernels_gpu::kernels().map(|kernel| (kernel.name, kernel)).collect());
    let name = format!("{kernel}_{dtype}");
    kernels.get(name.as_str()).copied().ok_or(Error::NoKernel(name))
}
