//! An open GPU: its primary context, which torch shares, and its properties.
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock, RwLock};

use super::gpu::{self, Gpu};
use super::sync::Slots;
use super::sys;
use crate::device::ptx::arch::Arch;
use crate::device::ptx::{self, Overlap, Ptx};
use crate::{Dtype, Error, Result};

/// How many GPUs there are; opens the driver at the first call.
pub(crate) fn count() -> Result<usize> {
    driver::load().map_err(|reason| Error::NoDriver(reason.into()))?;
    // SAFETY: takes a number, which must be 0.
    match unsafe { sys::cuInit(0) } {
        0 => Gpu::count(),
        code => Err(Error::NoDriver(sys::text(code))),
    }
}

/// GPU number `index`.
fn gpu(index: usize) -> Result<Gpu> {
    let count = count()?;
    if index < count { Gpu::get(index) } else { Err(Error::NoDevice { index, count }) }
}

/// Name and compute capability of a GPU, and the PTX that it loads; none of these needs a context.
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

/// Name of GPU number `index`, and the architecture of the PTX that it would load.
pub(crate) fn describe(index: usize) -> Result<(String, Arch)> {
    let (name, _, ptx) = description(gpu(index)?, forced_arch()?, None)?;
    Ok((name, ptx.arch))
}

/// One GPU with one PTX.
pub(crate) struct Cuda {
    pub index: usize,
    pub name: String,
    pub ptx: &'static Ptx,
    /// The most shared memory of a block.
    pub max_shared_bytes: u32,
    /// PTX with instructions of this architecture alone (`sm_90a`), from which kernels are taken first.
    pub native: Option<&'static Ptx>,
    pub multiprocessors: u32,
    /// Its L2, on GPUs where keeping there what is read once was measured to be faster.
    pub l2_bytes: Option<u64>,
    pub capability: (u32, u32),
    /// May a launch begin before the one ahead of it in the stream ends? Then kernels wait for that themselves.
    pub(super) overlaps: bool,
    /// Never released: launches may outlive everything that could own it.
    context: Raw,
    pub(super) functions: RwLock<HashMap<(&'static str, Dtype), Raw>>,
}

/// A `CUcontext` or a `CUfunction`, valid in any thread until the process ends.
#[derive(Clone, Copy)]
pub(super) struct Raw(pub *mut c_void);
// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// Makes a context current and, when dropped, the one before it.
pub(super) struct Current {
    before: *mut c_void,
    ours: *mut c_void,
}

impl Current {
    fn set(ours: *mut c_void) -> Result<Self> {
        let mut before = std::ptr::null_mut();
        // SAFETY: writes the current context, or null.
        sys::check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
        if before != ours {
            // SAFETY: a retained primary context.
            sys::check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(ours) })?;
        }
        Ok(Self { before, ours })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.before != self.ours {
            // SAFETY: it was current when this was made.
            unsafe { sys::cuCtxSetCurrent(self.before) };
        }
    }
}

/// Allows, in this thread and until dropped, calls that a stream being captured would refuse.
pub(super) struct Relaxed(i32);

impl Relaxed {
    pub fn new() -> Self {
        let mut mode = sys::RELAXED;
        // SAFETY: swaps a number of this thread.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl Cuda {
    /// GPU number `index`, opened once in a process.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        // Opening takes a second or more: calls on GPUs that are open, and those that open others, do not wait for it.
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

    /// GPU number `index` with `own` PTX, the PTX of `arch`, or the newest that it can run.
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
        // SAFETY: waits.
        sys::check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

/// `OXIWARP_ARCH`: the PTX to load instead of the newest.
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
