//! The device handle [`Device`]: a GPU, or the CPU executor, which runs kernels thread by thread on the host.
use std::any::Any;
use std::sync::Arc;

use cuda_std::cpu;
use cuda_std::tensor_map::TensorMap;

use crate::arch::Arch;
use crate::cuda::{self, Gpu, HeadsMap, OwnedStream};
use crate::extensions::Extensions;
use crate::{Error, Result};

/// The memory that a pointer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Host,
    Cuda(usize),
}

/// A device on which kernels run: a GPU, or the CPU executor, which runs kernels on the host. A clone refers
/// to the same device. All methods can be called from any thread.
#[derive(Clone)]
pub struct Device {
    kind: Kind,
    /// See [`Device::with_tag`].
    tag: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Clone)]
enum Kind {
    Cuda(Arc<Gpu>),
    Cpu,
}

impl From<Kind> for Device {
    fn from(kind: Kind) -> Self {
        Self { kind, tag: None }
    }
}

impl Device {
    /// Returns GPU number `index`. Its context is the primary context, which torch and the CUDA runtime also
    /// use. Each GPU is opened once per process.
    ///
    /// By default, a GPU loads the newest PTX that it can run. If the environment variable `OXIWARP_ARCH` is
    /// set, for example to `sm_80`, all GPUs load the newest PTX up to this architecture. The variable is
    /// read when the first GPU is opened.
    ///
    /// # Errors
    /// Returns an error if there is no driver, no such GPU, or no architecture that the GPU can run.
    pub fn cuda(index: usize) -> Result<Self> {
        Gpu::open(index).map(|gpu| Kind::Cuda(gpu).into())
    }

    /// Opens GPU number `index` for PTX of `arch` instead of the newest PTX. Tests use this function to run
    /// old PTX on a new GPU.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such GPU, or if the GPU cannot run PTX of `arch`.
    pub fn cuda_as(index: usize, arch: Arch) -> Result<Self> {
        Gpu::new(index, Some(arch)).map(|gpu| Kind::Cuda(Arc::new(gpu)).into())
    }

    /// Returns the GPU to which a context of the crate `cust` belongs. The GPU has one primary context, so
    /// the result uses the same context.
    ///
    /// # Errors
    /// The same as [`Device::cuda`].
    pub fn from_context(context: &cust::context::Context) -> Result<Self> {
        Self::cuda(cuda::index_of(context)?)
    }

    /// Returns the name of GPU number `index` and the architecture of the PTX that [`Device::cuda`] would
    /// load on it. It does not create a context.
    ///
    /// # Errors
    /// The same as [`Device::cuda`].
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
        self.gpu().map_or("CPU executor", |gpu| &gpu.name)
    }

    /// Returns the newest architecture whose PTX the device loads, or `None` for the CPU executor. The value
    /// is one of [`Arch::PORTABLE`].
    pub fn arch(&self) -> Option<Arch> {
        self.gpu().map(|gpu| gpu.arch)
    }

    /// Returns the compute capability as `(major, minor)`, for example `(9, 0)`, or `None` for the CPU
    /// executor.
    pub fn capability(&self) -> Option<(u32, u32)> {
        self.gpu().map(|gpu| gpu.capability)
    }

    /// Returns the number of multiprocessors (SMs), or `None` for the CPU executor.
    pub fn multiprocessors(&self) -> Option<u32> {
        self.gpu().map(|gpu| gpu.multiprocessors)
    }

    /// Returns the maximum bytes of shared memory per block.
    pub fn max_shared_bytes(&self) -> u32 {
        self.gpu().map_or(cpu::MAX_SHARED_BYTES, |gpu| gpu.max_shared_bytes)
    }

    /// Returns the bytes of L2 cache. The CPU executor reports a small size.
    pub fn l2_bytes(&self) -> u64 {
        self.gpu().map_or(cpu::L2_BYTES, |gpu| gpu.l2_bytes.into())
    }

    /// Returns the memory that the device's kernels can access.
    pub(crate) fn location(&self) -> Location {
        self.gpu().map_or(Location::Host, |gpu| Location::Cuda(gpu.index))
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.kind {
            Kind::Cuda(gpu) => Some(gpu),
            Kind::Cpu => None,
        }
    }

    /// Returns the same device with a value that [`Device::tag`] returns. A library can pass its own settings
    /// to its functions in this way.
    #[must_use]
    pub fn with_tag<T: Any + Send + Sync>(&self, tag: T) -> Self {
        Self { kind: self.kind.clone(), tag: Some(Arc::new(tag)) }
    }

    /// Returns the value that was passed to [`Device::with_tag`], if it has type `T`.
    #[inline]
    pub fn tag<T: Any>(&self) -> Option<&T> {
        self.tag.as_deref().and_then(|tag| (tag as &dyn Any).downcast_ref())
    }

    /// Returns the value of type `T` that belongs to this device, for example the loaded kernels of a
    /// library. The first call for a type calls `make` and keeps its result until the process ends.
    ///
    /// If several threads call `make` at the same time, one result is stored, and all threads return it.
    ///
    /// # Errors
    /// Returns the error of `make`. The next call then calls `make` again.
    #[inline]
    pub fn get_or_make<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        static CPU: Extensions = Extensions::new();
        self.gpu().map_or(&CPU, |gpu| &gpu.extensions).get_or_make(make)
    }

    /// Blocks until all work submitted to the device is done.
    ///
    /// # Errors
    /// Returns a driver error if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| gpu.synchronize())
    }
}

impl Device {
    /// Encodes a tensor map with `cuTensorMapEncodeTiled`. This driver function does not access the GPU, so
    /// it is allowed during stream capture.
    ///
    /// # Errors
    /// Returns a driver error. Also fails on the CPU executor, which has no tensor maps.
    pub fn tensor_map(&self, heads: &HeadsMap) -> Result<TensorMap> {
        cuda::encode(self.expect_gpu("Device::tensor_map", "tensor maps")?, heads)
    }

    /// Returns the GPU, or an error of the function `op` which says that the CPU executor has no `what`.
    fn expect_gpu(&self, op: &'static str, what: &str) -> Result<&Arc<Gpu>> {
        self.gpu().ok_or_else(|| Error::Unsupported { op, why: format!("the CPU executor has no {what}") })
    }
}

impl OwnedStream {
    /// Creates a stream on a GPU.
    ///
    /// # Errors
    /// Returns a driver error if the stream cannot be created. Also fails on the CPU executor, which has no
    /// streams.
    pub fn new(device: &Device) -> Result<Self> {
        Self::on(device.expect_gpu("OwnedStream::new", "streams")?)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.name(), self.arch().map_or("executor", Arch::name))
    }
}
