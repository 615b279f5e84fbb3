//! A GPU: the primary context that torch shares, modules loaded when first launched, launches on raw streams.
//!
//! `cust` gives devices, contexts and modules. What it lacks stands in [`sys`]: a launch on a stream that is not its
//! own, the log of a PTX that does not load, and results as plain numbers (its error enum predates newer codes).
mod graph;
mod memory;
mod sys;

pub use graph::{Event, Graph, OwnedStream};

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use cust::CudaFlags;
use cust::context::Context;
use cust::device::{Device, DeviceAttribute};
use cust::module::Module;

use crate::ladder::Arch;
use crate::launch::{Launch, Stream};
use crate::ptx::{self, EMBEDDED, Ptx};
use crate::{Dtype, Error, Result};

/// How many GPUs there are; opens the driver at the first call.
pub(crate) fn count() -> Result<usize> {
    driver::load().map_err(|reason| Error::NoDriver(reason.into()))?;
    cust::init(CudaFlags::empty()).map_err(|error| Error::NoDriver(error.to_string()))?;
    Device::num_devices().map(|count| count as usize).map_err(|error| Error::NoDriver(error.to_string()))
}

/// One GPU with one PTX.
pub(crate) struct Cuda {
    pub index: usize,
    pub name: String,
    pub ptx: &'static Ptx,
    /// Never released: launches may outlive everything that could own it.
    context: ManuallyDrop<Context>,
    functions: RwLock<HashMap<(&'static str, Dtype), Function>>,
}

/// A `CUfunction`.
#[derive(Clone, Copy)]
struct Function(*mut c_void);
// SAFETY: a handle, valid in any thread; its module is never unloaded.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Makes a context current and, when dropped, the one before it.
struct Current {
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
struct Relaxed(i32);

impl Relaxed {
    fn new() -> Self {
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
        static OPEN: Mutex<Vec<Option<Arc<Cuda>>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(cuda)) = open.get(index) {
            return Ok(cuda.clone());
        }
        let cuda = Arc::new(Self::new(index, forced_arch()?, None)?);
        if open.len() <= index {
            open.resize(index + 1, None);
        }
        open[index] = Some(cuda.clone());
        Ok(cuda)
    }

    /// GPU number `index` with `own` PTX, the PTX of `arch`, or the newest that it can run.
    pub fn new(index: usize, arch: Option<Arch>, own: Option<&'static Ptx>) -> Result<Self> {
        let count = count()?;
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        let device = Device::get_device(index as u32).map_err(|error| Error::NoDriver(error.to_string()))?;
        let name = device.name().unwrap_or_else(|_| format!("CUDA device {index}"));
        let attribute = |which| device.get_attribute(which).map(|value| value as u32).unwrap_or(0);
        let major = attribute(DeviceAttribute::ComputeCapabilityMajor);
        let capability = (major, attribute(DeviceAttribute::ComputeCapabilityMinor));
        let Some(ptx) = own.or_else(|| ptx::choose(capability, arch)) else {
            let available: Vec<_> = EMBEDDED.iter().map(|ptx| ptx.arch.name()).collect();
            return Err(Error::Capability { device: name, capability, available: available.join(", ") });
        };
        let mut before = std::ptr::null_mut();
        // SAFETY: writes the current context; `Context::new` retains the primary one and makes it current, which is
        // undone.
        let context = unsafe {
            sys::cuCtxGetCurrent(&mut before);
            let context = Context::new(device);
            sys::cuCtxSetCurrent(before);
            ManuallyDrop::new(context.map_err(|error| Error::NoDriver(error.to_string()))?)
        };
        Ok(Self { index, name, ptx, context, functions: RwLock::default() })
    }

    fn current(&self) -> Result<Current> {
        Current::set(self.context.as_raw().cast())
    }

    /// See `Device::launch`.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn launch<const N: usize>(
        &self,
        kernel: &'static str,
        dtype: Dtype,
        Launch { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes }: Launch,
        stream: Stream,
        args: [*const c_void; N],
    ) -> Result<()> {
        let _current = self.current()?;
        let Function(function) = self.function(kernel, dtype)?;
        let (args, extra) = (args.as_ptr(), std::ptr::null());
        // SAFETY: the function takes these arguments, as the caller promises.
        let code = unsafe {
            sys::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream.0, args, extra)
        };
        sys::check("cuLaunchKernel", code)
    }

    fn function(&self, kernel: &'static str, dtype: Dtype) -> Result<Function> {
        if let Some(&function) =
            self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&(kernel, dtype))
        {
            return Ok(function);
        }
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = functions.get(&(kernel, dtype)) {
            return Ok(function);
        }
        let function = self.load(&format!("{kernel}_{dtype}"))?;
        functions.insert((kernel, dtype), function);
        Ok(function)
    }

    fn load(&self, kernel: &str) -> Result<Function> {
        let text = self.ptx.module(kernel).ok_or_else(|| Error::NoKernel(kernel.into()))?;
        let _relaxed = Relaxed::new();
        let module = Module::from_ptx_cstr(&text, &[]).map_err(|error| Error::Load {
            device: self.name.clone(),
            kernel: kernel.into(),
            arch: self.ptx.arch.name(),
            text: error.to_string(),
            log: jit_log(&text),
        })?;
        // Loaded for the life of the process: graphs that captured a launch may be replayed at any time.
        let module: &'static Module = Box::leak(Box::new(module));
        let function = module.get_function(kernel).map_err(|_| Error::NoKernel(kernel.into()))?;
        Ok(Function(function.to_raw().cast()))
    }

    pub fn synchronize(&self) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: waits.
        sys::check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

/// What the driver's compiler says of a PTX that it refuses.
fn jit_log(ptx: &CString) -> String {
    let mut log = vec![0_u8; 16 << 10];
    let mut module = std::ptr::null_mut();
    let values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    // SAFETY: the buffer and its length, as the two options say; a module that loads after all is kept.
    unsafe {
        sys::cuModuleLoadDataEx(&mut module, ptx.as_ptr().cast(), 2, sys::ERROR_LOG.as_ptr(), values.as_ptr())
    };
    CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned()
}

/// `OXIWARP_ARCH`: the PTX to load instead of the newest.
fn forced_arch() -> Result<Option<Arch>> {
    static FORCED: OnceLock<Option<String>> = OnceLock::new();
    let Some(name) =
        FORCED.get_or_init(|| std::env::var("OXIWARP_ARCH").ok().filter(|name| !name.is_empty()))
    else {
        return Ok(None);
    };
    let available = EMBEDDED.iter().map(|ptx| ptx.arch);
    match available.clone().find(|arch| arch.name() == name) {
        Some(arch) => Ok(Some(arch)),
        None => Err(Error::NoDriver(format!(
            "OXIWARP_ARCH={name}: there is PTX for {}",
            available.map(Arch::name).collect::<Vec<_>>().join(", ")
        ))),
    }
}
