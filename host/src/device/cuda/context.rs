//! An open GPU: its properties and its primary context, which it shares with torch.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock, RwLock};

use super::gpu::{self, Gpu};
use super::sync::Slots;
use super::sys;
use crate::device::ptx::arch::Arch;
use crate::device::ptx::{self, Overlap, Ptx};
use crate::{Dtype, Error, Result};

/// Returns the number of GPUs. The first call opens and initializes the driver.
pub(crate) fn count() -> Result<usize> {
    driver::load().map_err(|reason| Error::NoDriver(reason.into()))?;
    // SAFETY: `cuInit` takes no pointers, and its flags must be 0.
    match unsafe { sys::cuInit(0) } {
        0 => Gpu::count(),
        code => Err(Error::NoDriver(sys::text(code))),
    }
}

/// Returns GPU number `index`, or an error if there are fewer GPUs.
fn gpu(index: usize) -> Result<Gpu> {
    let count = count()?;
    if index < count { Gpu::get(index) } else { Err(Error::NoDevice { index, count }) }
}

/// Returns the name and compute capability of a GPU, and the PTX to load on it. It does not create a CUDA
/// context.
fn description(
    gpu: Gpu,
    arch: Option<Arch>,
    own: Option<&'static Ptx>,
) -> Result<(String, (u32, u32), &'static Ptx)> {
    let (name, capability) = (gpu.name()?, gpu.capability()?);
    match own.or_else(|| ptx::choose(capability, arch)) {
        Some(ptx) => Ok((name, capability, ptx)),
        None => Err(Error::Capability { device: name, capability, available: ptx::available() }),
    }
}

/// Returns the name of GPU number `index` and the architecture of the PTX to load.
pub(crate) fn describe(index: usize) -> Result<(String, Arch)> {
    let (name, _, ptx) = description(gpu(index)?, forced_arch()?, None)?;
    Ok((name, ptx.arch))
}

/// A GPU that was opened with one set of PTX.
pub(crate) struct Cuda {
    pub index: usize,
    pub name: String,
    pub ptx: &'static Ptx,
    /// Maximum bytes of shared memory per block, with opt-in.
    pub max_shared_bytes: u32,
    /// PTX for `sm_90a`, which runs only on Hopper. Kernels that are not in the field `ptx` are loaded from
    /// this PTX.
    pub native: Option<&'static Ptx>,
    pub multiprocessors: u32,
    /// Bytes of L2 on Hopper, otherwise `None`. Kernels use the L2 policy `evict_last` only if this field is
    /// set, because measurements showed a benefit only on Hopper.
    pub l2_bytes: Option<u64>,
    pub capability: (u32, u32),
    /// Whether launches use programmatic dependent launch. Each kernel then contains an instruction that
    /// waits for earlier launches.
    pub(super) overlaps: bool,
    /// The primary context, never released, because launches may outlive every owner.
    context: Raw,
    pub(super) functions: RwLock<HashMap<(&'static str, Dtype), Raw>>,
}

/// A `CUcontext` or `CUfunction`. Every thread may use it until the process ends.
#[derive(Clone, Copy)]
pub(super) struct Raw(pub *mut c_void);
// SAFETY: the driver allows the use of its handles from any thread.
unsafe impl Send for Raw {}
// SAFETY: the driver allows concurrent use of its handles.
unsafe impl Sync for Raw {}

/// Guard that makes a context current in this thread. When dropped, it restores the previous context.
pub(super) struct Current {
    before: *mut c_void,
    ours: *mut c_void,
}

impl Current {
    fn set(ours: *mut c_void) -> Result<Self> {
        let mut before = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer to `before`.
        sys::check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
        if before != ours {
            // SAFETY: `ours` is a primary context that is retained until the process ends.
            sys::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(ours) })?;
        }
        Ok(Self { before, ours })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.before != self.ours {
            // SAFETY: `before` was the current context when this guard was made.
            unsafe { sys::cuCtxSetCurrent(self.before) };
        }
    }
}

/// Guard that sets the stream capture mode of this thread to relaxed. The thread may then call functions that
/// an ongoing stream capture would forbid, for example `cuMemAlloc`.
pub(super) struct Relaxed(i32);

impl Relaxed {
    pub fn new() -> Self {
        let mut mode = sys::RELAXED;
        // SAFETY: the driver reads and writes only `mode`, the capture mode of this thread.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the driver reads and writes only this field.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl Cuda {
    /// Returns GPU number `index`. Each GPU is opened once per process.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        // Opening a GPU takes a second or more. A lock per GPU, in `Slots`, keeps calls on other GPUs from
        // waiting.
        static GPUS: OnceLock<Slots<Arc<Cuda>>> = OnceLock::new();
        let gpus = match GPUS.get() {
            Some(gpus) => gpus,
            None => {
                let count = count()?;
                GPUS.get_or_init(|| Slots::new(count))
            }
        };
        let cuda = gpus.get_or_make(index, || Self::new(index, forced_arch()?, None).map(Arc::new));
        cuda.unwrap_or_else(|| Err(Error::NoDevice { index, count: gpus.count() })).cloned()
    }

    /// Opens GPU number `index`. Kernels come from `own` (PTX that the caller provides) if given, else from
    /// the embedded PTX of `arch`. If `own` and `arch` are `None`, they come from the newest embedded PTX
    /// that the GPU can run.
    pub fn new(index: usize, arch: Option<Arch>, own: Option<&'static Ptx>) -> Result<Self> {
        let gpu = gpu(index)?;
        let (name, capability, ptx) = description(gpu, arch, own)?;
        let native = ptx::native(capability, ptx);
        let (context, multiprocessors) = (Raw(gpu.primary_context()?), gpu.multiprocessors()?);
        let max_shared_bytes = gpu.max_shared_bytes()?;
        let l2_bytes = if capability.0 == 9 { Some(gpu.l2_bytes()?.into()) } else { None };
        let functions = RwLock::default();
        let overlaps = ptx.arch >= Arch::Sm90
            && std::env::var_os("OXIWARP_OVERLAP").is_none_or(|value| value != "0")
            && gpu::driver_version()? >= sys::CAPTURES_OVERLAPPING;
        Ok(Self {
            index,
            name,
            ptx,
            max_shared_bytes,
            native,
            multiprocessors,
            l2_bytes,
            capability,
            overlaps,
            context,
            functions,
        })
    }

    pub(super) fn overlap(&self, kernel: &str) -> Overlap {
        if self.overlaps { Overlap::of(kernel) } else { Overlap::Never }
    }

    pub(super) fn current(&self) -> Result<Current> {
        Current::set(self.context.0)
    }

    pub fn synchronize(&self) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: `cuCtxSynchronize` takes no arguments, and `_current` keeps the context current.
        sys::check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

/// Returns the architecture that the environment variable `OXIWARP_ARCH` names. GPUs load the PTX of this
/// architecture instead of the newest. Fails if this build has no such PTX.
fn forced_arch() -> Result<Option<Arch>> {
    static FORCED: OnceLock<Option<String>> = OnceLock::new();
    let Some(name) =
        FORCED.get_or_init(|| std::env::var("OXIWARP_ARCH").ok().filter(|name| !name.is_empty()))
    else {
        return Ok(None);
    };
    match ptx::archs().find(|arch| arch.name() == name) {
        Some(arch) => Ok(Some(arch)),
        None => {
            let why = format!("OXIWARP_ARCH={name}: there is PTX for {}", ptx::available());
            Err(Error::Unsupported { op: "Device::cuda", why })
        }
    }
}
