//! PTX modules and their kernels.
use std::ffi::{CStr, CString, c_void};
use std::mem::ManuallyDrop;

use cust::error::CudaError;

use super::current::Relaxed;
use super::gpu::Gpu;
use super::raw;
use super::sync::Setting;
use crate::arch::Arch;
use crate::launch::{DEFAULT_SMEM_BYTES, Launch};
use crate::{Error, Result, Stream};

/// A loaded PTX module. Dropping this value unloads the module, unless [`Module::keep`] was called.
pub(crate) struct Module(ManuallyDrop<cust::module::Module>);

impl Module {
    /// Loads PTX for `arch` in the current context. `what` is the name of the module in error messages.
    pub fn load(gpu: &Gpu, what: &str, arch: Arch, text: &CStr) -> Result<Self> {
        let _relaxed = Relaxed::new();
        match cust::module::Module::from_ptx_cstr(text, &[]) {
            Ok(module) => Ok(Self(ManuallyDrop::new(module))),
            Err(error) => Err(Error::Load {
                device: gpu.name.clone(),
                kernel: what.into(),
                arch: arch.name(),
                text: raw::text_of(error),
                log: error_log(text),
            }),
        }
    }

    /// Returns a kernel of the module. The module's context must be current.
    pub fn function(&self, kernel: &str) -> Result<Function> {
        let _relaxed = Relaxed::new();
        match self.0.get_function(kernel) {
            Ok(function) => Ok(Function::new(function.to_raw().cast())),
            Err(CudaError::NotFound) => Err(Error::NoKernel { kernel: kernel.into(), similar: None }),
            Err(error) => Err(raw::failed("cuModuleGetFunction")(error)),
        }
    }

    /// Keeps the module loaded until the process ends. CUDA graphs may have captured its kernels, and a graph
    /// can be launched again at any time.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _relaxed = Relaxed::new();
        // SAFETY: dropping the inner value unloads the PTX module, and no other code drops this value. The
        // context in which the module was loaded is still current, and none of the module's kernels was
        // launched.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Returns the log of the driver's PTX compiler for PTX that the driver has rejected. To get the log, this
/// function makes the driver compile the PTX again.
fn error_log(text: &CStr) -> String {
    let mut log = vec![0_u8; 16 << 10];
    let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    let (image, options) = (text.as_ptr().cast(), raw::ERROR_LOG.as_ptr());
    // SAFETY: the driver reads `text`, which ends with NUL, and the arrays of options. As `ERROR_LOG`
    // announces, `values` has two elements: the address of the log buffer, and its length.
    if unsafe { raw::cuModuleLoadDataEx(&mut module, image, 2, options, values.as_mut_ptr()) } == 0 {
        return "the second attempt succeeded".into();
    }
    CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the text as a C string, or an error if it contains NUL.
pub(crate) fn c_text(text: &str) -> Result<CString> {
    let why = |_| Error::Unsupported { op: "Kernels::load", why: "the PTX contains a NUL".into() };
    CString::new(text).map_err(why)
}

/// A kernel of a loaded module, with the current values of its driver attributes (shared memory limit and
/// carveout). Every thread may use the kernel until the process ends.
pub(crate) struct Function {
    raw: *mut c_void,
    /// Limit of dynamic shared memory in bytes. The limit is never lowered, because another thread may launch
    /// with more shared memory.
    max_shared: Setting,
    /// Shared memory carveout in percent, or -1 if the driver chooses it.
    carveout: Setting,
}

// SAFETY: the field `raw` is a driver handle, which the driver allows any thread to use.
unsafe impl Send for Function {}
// SAFETY: the driver allows concurrent use of its handles.
unsafe impl Sync for Function {}

impl Function {
    fn new(raw: *mut c_void) -> Self {
        Self { raw, max_shared: Setting::new(DEFAULT_SMEM_BYTES as i32), carveout: Setting::new(-1) }
    }

    /// Launches the kernel in the current context. Before the launch, this function raises the kernel's limit
    /// of dynamic shared memory and sets its shared memory carveout, if necessary.
    ///
    /// If `overlaps` is true, the launch uses programmatic dependent launch. The kernel may then start before
    /// the previous launch has ended. The caller must have loaded the kernel from PTX with the instruction
    /// that waits for the previous launch.
    ///
    /// # Safety
    /// `args` must point to values of the types that the kernel declares. The kernel's own safety
    /// requirements must hold until the launch is done.
    pub unsafe fn launch(
        &self,
        shape: &Launch,
        stream: Stream,
        overlaps: bool,
        args: &[*const c_void],
    ) -> Result<()> {
        self.max_shared.raise(shape.shared_bytes as i32, |value| self.set(raw::MAX_SHARED, value))?;
        let carveout = shape.carveout.map_or(-1, |percent| percent as i32);
        self.carveout.change(carveout, |value| self.set(raw::CARVEOUT, value))?;
        let config = raw::LaunchConfig {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            stream: stream.as_raw(),
            attributes: &raw::OVERLAPPING,
            attribute_count: u32::from(overlaps),
        };
        let (args, extra) = (args.as_ptr(), std::ptr::null());
        // SAFETY: the driver reads `config`, which stays valid during the call, and the kernel's arguments.
        // The caller passes arguments of the types that the kernel declares.
        raw::check("cuLaunchKernelEx", unsafe { raw::cuLaunchKernelEx(&config, self.raw, args, extra) })
    }

    /// Sets an attribute of the function.
    fn set(&self, attribute: i32, value: i32) -> Result<()> {
        // SAFETY: `self` is a function of a loaded module.
        raw::check("cuFuncSetAttribute", unsafe { raw::cuFuncSetAttribute(self.raw, attribute, value) })
    }
}
