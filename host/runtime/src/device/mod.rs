//! The device handle [`Device`]. A device is a GPU or the CPU executor, which runs kernels thread by thread
//! on the host.
use std::any::Any;
use std::sync::Arc;

use cuda_std::cpu;
use cuda_std::tensor_map::TensorMap;

use crate::arch::Arch;
use crate::cuda::{self, Gpu, HeadsMap, OwnedStream};
use crate::extensions::Extensions;
use crate::{Error, Result};

/// The memory that contains the elements of a tensor view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Host memory.
    Host,
    /// Memory of the GPU with this index.
    Cuda(usize),
    /// Memory of a GPU whose index is not known.
    SomeCuda,
}

impl Location {
    /// Returns whether `self` and `other` can be the same location. A GPU whose index is not known can be any
    /// GPU.
    pub fn may_be(self, other: Self) -> bool {
        match (self, other) {
            (Self::SomeCuda, other) | (other, Self::SomeCuda) => other != Self::Host,
            _ => self == other,
        }
    }
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
    /// Returns GPU number `index`. The context of this GPU is the primary context, which torch and the CUDA
    /// runtime also use. Each GPU is opened once per process.
    ///
    /// By default, a GPU loads PTX for the newest architecture that runs on the GPU. The environment variable
    /// `OXIWARP_ARCH` sets an upper limit for this architecture. For example, with the value `sm_80`, all
    /// GPUs load the newest PTX up to `sm_80`. The variable is read when the first GPU is opened.
    ///
    /// # Errors
    /// Returns an error if there is no driver, or if there is no GPU with this number. Also returns an error
    /// if the GPU cannot run PTX of any architecture up to the limit.
    pub fn cuda(index: usize) -> Result<Self> {
        Gpu::open(index).map(|gpu| Kind::Cuda(gpu).into())
    }

    /// Opens GPU number `index`, but loads only PTX for `arch` or an older architecture. Tests use this
    /// function to run old PTX on a new GPU. Each call opens the GPU again, so the new device does not reuse
    /// kernels that another [`Device`] has loaded.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such GPU, or if the GPU cannot run PTX of `arch`.
    pub fn cuda_as(index: usize, arch: Arch) -> Result<Self> {
        Gpu::new(index, Some(arch)).map(|gpu| Kind::Cuda(Arc::new(gpu)).into())
    }

    /// Returns the GPU to which a context of the crate `cust` belongs. A `Context` of `cust` is always the
    /// primary context of its GPU. [`Device`] also uses the primary context, so launches on the returned
    /// device can use memory and streams of `cust`.
    ///
    /// # Errors
    /// Returns the errors of [`Device::cuda`].
    pub fn from_context(context: &cust::context::Context) -> Result<Self> {
        Self::cuda(cuda::index_of(context)?)
    }

    /// Returns the name of GPU number `index`, and the architecture whose PTX [`Device::cuda`] would choose.
    /// Unlike [`Device::cuda`], this function does not create the GPU's primary context, which takes time and
    /// GPU memory.
    ///
    /// # Errors
    /// Returns the errors of [`Device::cuda`].
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

    /// Returns the newest portable architecture whose PTX the device loads, or `None` for the CPU executor.
    /// The result is one of [`Arch::PORTABLE`]. For example, it is `sm_90` for a Hopper GPU, although this
    /// GPU also loads PTX for `sm_90a`.
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

    /// Returns the maximum bytes of shared memory per block. On a GPU, the result is the opt-in maximum,
    /// which is larger than the default maximum [`DEFAULT_SMEM_BYTES`](crate::DEFAULT_SMEM_BYTES). A launch
    /// opts in automatically if it needs more than the default.
    pub fn max_shared_bytes(&self) -> u32 {
        self.gpu().map_or(cpu::MAX_SHARED_BYTES, |gpu| gpu.max_shared_bytes)
    }

    /// Returns the bytes of L2 cache. The CPU executor (which runs kernels on the host) has no L2 cache, and
    /// reports 4 KiB. Ops have separate code for inputs that are larger than L2. With 4 KiB, tests can run
    /// this code with small inputs.
    pub fn l2_bytes(&self) -> u64 {
        self.gpu().map_or(cpu::L2_BYTES, |gpu| gpu.l2_bytes.into())
    }

    /// Returns the memory that the device's kernels access.
    pub(crate) fn location(&self) -> Location {
        self.gpu().map_or(Location::Host, |gpu| Location::Cuda(gpu.index))
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.kind {
            Kind::Cuda(gpu) => Some(gpu),
            Kind::Cpu => None,
        }
    }

    /// Returns a handle of the same device that carries the value `tag`. `self` does not change.
    ///
    /// A library whose functions take a `&Device` can pass its own settings to these functions in the handle.
    /// The functions read the settings with [`Device::tag`].
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
    /// library. The first call for a type calls the function `make`, and stores its result until the process
    /// ends.
    ///
    /// If several threads call `make` at the same time, only one result is stored. All threads return the
    /// stored result.
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
    /// Encodes a tensor map (descriptor of a tensor for TMA) with `cuTensorMapEncodeTiled`. This driver
    /// function does not access the GPU, so it is allowed during stream capture. The CPU executor has tensor
    /// maps of its own, with the same rules.
    ///
    /// # Errors
    /// Returns a driver error. On the CPU executor, returns an error if the driver would reject the tensor.
    pub fn tensor_map(&self, heads: &HeadsMap) -> Result<TensorMap> {
        match self.gpu() {
            Some(gpu) => cuda::encode(gpu, heads),
            None => cuda::for_executor(heads),
        }
    }

    /// Returns the GPU. For the CPU executor, returns an error that names the function `op` and gives the
    /// reason `why`.
    fn expect_gpu(&self, op: &'static str, why: &str) -> Result<&Arc<Gpu>> {
        self.gpu().ok_or_else(|| Error::Unsupported { op, why: why.into() })
    }
}

impl OwnedStream {
    /// Creates a stream on a GPU.
    ///
    /// The CPU executor needs no streams, because it completes each launch before the launch function
    /// returns. Pass [`Stream::default`](crate::Stream::default) to launches on the CPU executor.
    ///
    /// # Errors
    /// Returns a driver error if the stream cannot be created. On the CPU executor, returns
    /// [`Error::Unsupported`].
    pub fn new(device: &Device) -> Result<Self> {
        const WHY: &str = "the CPU executor needs no streams, expected a GPU: launch with Stream::default()";
        Self::on(device.expect_gpu("OwnedStream::new", WHY)?)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.name(), self.arch().map_or("executor", Arch::name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_executor_creates_no_stream_and_says_what_to_pass() {
        let Err(error) = OwnedStream::new(&Device::cpu()) else { panic!("a stream without a GPU") };
        let expected = "OwnedStream::new: the CPU executor needs no streams, expected a GPU: launch with \
                        Stream::default()";
        assert_eq!(error.to_string(), expected);
    }
}
