//! The device handle [`Device`]. It launches kernels through the CUDA driver, or on the CPU executor, which
//! runs the same Rust kernels thread by thread on the host.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cuda_std::cpu::{self, Kernel};

use super::cuda::{self, Cuda, OwnedStream};
use super::launch::{Launch, LaunchOverride, LaunchRecorder, Stream};
use super::ptx::Ptx;
use super::ptx::arch::Arch;
use crate::{Dtype, Error, Result};

/// The memory that a pointer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Host,
    Cuda(usize),
}

/// A device on which ops run: a GPU, or the CPU executor, which runs kernels on the host. A clone refers to
/// the same device. All methods can be called from any thread.
#[derive(Clone)]
pub struct Device {
    kind: Kind,
    /// Launch override and recorded launches, for a device from [`Device::with_override`].
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
    /// Returns GPU number `index`. Its context is the primary context, which torch and the CUDA runtime also
    /// use. Each GPU is opened once per process.
    ///
    /// By default, a GPU loads the newest PTX that it can run. If the environment variable `OXIWARP_ARCH` is
    /// set, for example to `sm_80`, all GPUs load this PTX instead. The variable is read when the first GPU
    /// is opened.
    ///
    /// # Errors
    /// Returns an error if there is no driver, no such GPU, or no embedded PTX that the GPU can run.
    pub fn cuda(index: usize) -> Result<Self> {
        Cuda::open(index).map(|cuda| Kind::Cuda(cuda).into())
    }

    /// Opens GPU number `index` with the PTX of `arch` instead of the newest PTX. Tests use this function to
    /// run old PTX on a new GPU.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such GPU. Also fails if this build has no PTX for `arch`,
    /// or if the GPU cannot run this PTX.
    pub fn cuda_as(index: usize, arch: Arch) -> Result<Self> {
        Cuda::new(index, Some(arch), None).map(|cuda| Kind::Cuda(Arc::new(cuda)).into())
    }

    /// Opens GPU number `index` with the PTX text of the caller, which is written for `arch`. Use this
    /// function to try out PTX that you edited by hand.
    ///
    /// # Safety
    /// Ops launch the entries of `text`. An entry with the name of an oxiwarp kernel must take the same
    /// arguments and access the same memory as this kernel.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such GPU. If the driver rejects the PTX, the first launch
    /// returns an error with the driver's log.
    pub unsafe fn cuda_with_ptx(index: usize, arch: Arch, text: &'static str) -> Result<Self> {
        let own: &'static Ptx = Box::leak(Box::new(Ptx::new(arch, &[("", text)])));
        Cuda::new(index, Some(arch), Some(own)).map(|cuda| Kind::Cuda(Arc::new(cuda)).into())
    }

    /// Returns the name of GPU number `index` and the architecture of the PTX that [`Device::cuda`] would
    /// load on it. It does not create a context.
    ///
    /// # Errors
    /// Returns an error if there is no driver, no such GPU, or no embedded PTX that the GPU can run.
    pub fn describe(index: usize) -> Result<(String, Arch)> {
        cuda::describe(index)
    }

    /// Returns the CPU executor.
    pub fn cpu() -> Self {
        Kind::Cpu.into()
    }

    /// Returns the number of GPUs.
    ///
    /// # Errors
    /// Returns an error if there is no driver.
    pub fn count() -> Result<usize> {
        cuda::count()
    }

    /// Returns the name of the device, as the driver reports it.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Cuda(cuda) => &cuda.name,
            Kind::Cpu => "CPU executor",
        }
    }

    /// Returns the architecture of the PTX that the device loads, or `None` for the CPU executor.
    pub fn arch(&self) -> Option<Arch> {
        match &self.kind {
            Kind::Cuda(cuda) => Some(cuda.ptx.arch),
            Kind::Cpu => None,
        }
    }

    /// Returns the same device with a launch override, for `tune` and tests. On the returned device, ops use
    /// the launch configuration `over` instead of their own choice.
    #[doc(hidden)]
    #[must_use]
    pub fn with_override(&self, over: LaunchOverride) -> Self {
        Self { kind: self.kind.clone(), recorder: Some(Arc::new(LaunchRecorder::new(over))) }
    }

    /// Returns the launches since the last call of this function, and clears the list. Only a device with a
    /// launch override has a list.
    #[doc(hidden)]
    pub fn take_launches(&self) -> Vec<String> {
        self.recorder.as_ref().map_or(vec![], |recorder| recorder.take())
    }

    /// Returns the launch override, which is empty by default.
    pub(crate) fn launch_override(&self) -> LaunchOverride {
        self.recorder.as_ref().map_or(LaunchOverride::default(), |recorder| recorder.over)
    }

    /// Returns the maximum bytes of shared memory per block.
    pub(crate) fn max_shared_bytes(&self) -> u32 {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.max_shared_bytes,
            Kind::Cpu => cpu::MAX_SHARED_BYTES,
        }
    }

    /// Returns the bytes of L2, or `None` if kernels should load with the default L2 policy on this device.
    /// The alternative is `evict_last`, which [`L2Policy`](cuda_std::l2::L2Policy) describes.
    pub(crate) fn l2_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.l2_bytes,
            Kind::Cpu => Some(cpu::L2_BYTES),
        }
    }

    /// Returns the memory that the device's kernels can access.
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

    /// Launches the variant of `kernel` for the element type `dtype`.
    ///
    /// On a GPU, this is one `cuLaunchKernelEx` on the caller's stream, so a CUDA graph can capture it. The
    /// first launch of a kernel also loads its PTX.
    ///
    /// # Safety
    /// `args` must point to values of the types that the kernel declares. The kernel's own safety
    /// requirements must hold until the launch is done.
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
            // SAFETY: the caller passes the arguments that the kernel declares.
            Kind::Cuda(cuda) => unsafe { cuda.launch(kernel, dtype, shape, stream, args) },
            Kind::Cpu => {
                let Launch { grid, block, shared_bytes, .. } = shape;
                // SAFETY: the caller passes the arguments that the kernel declares.
                unsafe {
                    cpu::launch(cpu_kernel(kernel, dtype)?, &cpu::Launch { grid, block, shared_bytes }, &args)
                }?;
                Ok(())
            }
        }
    }

    /// Blocks until all work submitted to the device is done.
    ///
    /// # Errors
    /// Returns a driver error if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        match &self.kind {
            Kind::Cuda(cuda) => cuda.synchronize(),
            Kind::Cpu => Ok(()),
        }
    }
}

impl OwnedStream {
    /// Creates a stream on a GPU.
    ///
    /// # Errors
    /// Returns a driver error if the stream cannot be created. Also fails on the CPU executor, which has no
    /// streams.
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
