//! Kernels as driver functions. The first launch of a kernel loads it as a PTX module that contains only this
//! kernel.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_void};
use std::sync::PoisonError;

use super::context::{Cuda, Raw, Relaxed};
use super::sync::RisingLimit;
use super::sys;
use crate::device::launch::{DEFAULT_SMEM_BYTES, Launch, Stream};
use crate::device::ptx::arch::Arch;
use crate::{Dtype, Error, Result};

/// Maps the names of kernels to their functions. The kernels belong to a crate that is not part of oxiwarp.
///
/// Launches of one kernel may need different amounts of shared memory. Each kernel is therefore stored with
/// its current limit of dynamic shared memory.
pub(crate) struct OwnKernels(HashMap<&'static str, (Raw, RisingLimit)>);

impl Raw {
    /// Launches a function in the current context.
    ///
    /// `overlaps`: use programmatic dependent launch. The kernel may then start before the previous launch
    /// has ended. Its PTX contains the instruction that waits for the previous launch.
    ///
    /// # Safety
    /// `args` must point to values of the types that the function declares. The kernel's own safety
    /// requirements must hold until the launch is done.
    unsafe fn launch(
        self,
        shape: &Launch,
        stream: Stream,
        overlaps: bool,
        args: &[*const c_void],
    ) -> Result<()> {
        let config = sys::LaunchConfig {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            stream: stream.0,
            attributes: &sys::OVERLAPPING,
            attribute_count: u32::from(overlaps),
        };
        let (args, extra) = (args.as_ptr(), std::ptr::null());
        // SAFETY: the caller passes the arguments that the function declares, and `config` is alive during
        // the call.
        sys::check("cuLaunchKernelEx", unsafe { sys::cuLaunchKernelEx(&config, self.0, args, extra) })
    }

    /// Sets the function's limit of dynamic shared memory if the launch needs more than the default of 48
    /// KiB. Sets the shared memory carveout if the launch names one.
    fn prepare(self, shape: &Launch) -> Result<()> {
        let opt_in =
            (shape.shared_bytes > DEFAULT_SMEM_BYTES).then_some((sys::MAX_SHARED, shape.shared_bytes));
        let carveout = shape.carveout.map(|percent| (sys::CARVEOUT, percent));
        for (attribute, value) in opt_in.into_iter().chain(carveout) {
            self.set(attribute, value as i32)?;
        }
        Ok(())
    }

    /// Sets an attribute of the function.
    fn set(self, attribute: i32, value: i32) -> Result<()> {
        // SAFETY: `self` is a function of a loaded module.
        sys::check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.0, attribute, value) })
    }
}

/// A loaded module. Dropping it unloads the module, unless [`Module::keep`] was called.
struct Module(*mut c_void);

impl Module {
    /// Returns a kernel of the module. The module's context must be current.
    fn function(&self, kernel: &str) -> Result<Raw> {
        let no_kernel = || Error::NoKernel(kernel.into());
        let name = CString::new(kernel).map_err(|_| no_kernel())?;
        let (mut function, _relaxed) = (Raw(std::ptr::null_mut()), Relaxed::new());
        // SAFETY: the module is loaded, and `name` ends with NUL.
        match unsafe { sys::cuModuleGetFunction(&mut function.0, self.0, name.as_ptr()) } {
            sys::NOT_FOUND => Err(no_kernel()),
            code => sys::check("cuModuleGetFunction", code).map(|()| function),
        }
    }

    /// Keeps the module loaded until the process ends. CUDA graphs may have captured its kernels, and a graph
    /// can be launched again at any time.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _relaxed = Relaxed::new();
        // SAFETY: the context in which the module was loaded is still current. None of the module's kernels
        // was launched.
        unsafe { sys::cuModuleUnload(self.0) };
    }
}

impl Cuda {
    /// Launches a kernel of oxiwarp, see `Device::launch`.
    ///
    /// # Safety
    /// `args` must point to values of the types that the kernel declares. The kernel's own safety
    /// requirements must hold until the launch is done.
    pub unsafe fn launch<const N: usize>(
        &self,
        kernel: &'static str,
        dtype: Dtype,
        shape: Launch,
        stream: Stream,
        args: [*const c_void; N],
    ) -> Result<()> {
        let _current = self.current()?;
        let function = self.function(kernel, dtype, &shape)?;
        // SAFETY: the caller passes the arguments that the kernel declares.
        unsafe { function.launch(&shape, stream, self.overlaps, &args) }
    }

    /// Sets the shared memory carveout of a kernel to the carveout of `shape`. Only launches with a launch
    /// override need this. Without an override, all launches of a kernel use the carveout that its first
    /// launch set.
    pub fn prefer_shared(&self, kernel: &'static str, dtype: Dtype, shape: &Launch) -> Result<()> {
        let _current = self.current()?;
        let function = self.function(kernel, dtype, shape)?;
        let _relaxed = Relaxed::new();
        function.set(sys::CARVEOUT, shape.carveout.map_or(sys::CARVEOUT_BY_DRIVER, |percent| percent as i32))
    }

    /// Returns the `CUfunction` of a kernel. The first call for a kernel loads it and sets its shared memory
    /// limit and carveout. Later calls do not change the limit and the carveout, so all launches of a kernel
    /// must need the same values.
    fn function(&self, kernel: &'static str, dtype: Dtype, shape: &Launch) -> Result<Raw> {
        if let Some(&function) =
            self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&(kernel, dtype))
        {
            return Ok(function);
        }
        // Load the kernel without the lock. The driver may compile for seconds, and launches of other kernels
        // must not wait for this. If several threads load the same kernel, the first one stores its module.
        // Each other thread unloads its own module after it has released the lock.
        let (module, function) = self.load(&format!("{kernel}_{dtype}"))?;
        function.prepare(shape)?;
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        Ok(match functions.entry((kernel, dtype)) {
            Entry::Occupied(first) => *first.get(),
            Entry::Vacant(place) => {
                module.keep();
                *place.insert(function)
            }
        })
    }

    /// Loads the kernels `names` from `text`, a PTX module that a user compiled for `arch`.
    pub fn load_all(
        &self,
        arch: Arch,
        text: &str,
        names: impl Iterator<Item = &'static str>,
    ) -> Result<OwnKernels> {
        let _current = self.current()?;
        let wrong = |_| Error::NoKernel("PTX with a NUL in it".into());
        let module = self.load_text("PTX", arch, &CString::new(text).map_err(wrong)?)?;
        let function = |name| Ok((name, (module.function(name)?, RisingLimit::default())));
        let functions = names.map(function).collect::<Result<_>>()?;
        module.keep();
        Ok(OwnKernels(functions))
    }

    /// Launches a kernel of a user's crate.
    ///
    /// # Safety
    /// `args` must point to values of the types that the kernel declares. The kernel's own safety
    /// requirements must hold until the launch is done.
    pub unsafe fn launch_own(
        &self,
        kernels: &OwnKernels,
        kernel: &str,
        shape: &Launch,
        stream: Stream,
        args: &[*const c_void],
    ) -> Result<()> {
        let _current = self.current()?;
        let (function, limit) = kernels.0.get(kernel).ok_or_else(|| Error::NoKernel(kernel.into()))?;
        limit.raise(shape.shared_bytes, shape.carveout.is_some(), |shared_bytes| {
            function.prepare(&Launch { shared_bytes, ..*shape })
        })?;
        // SAFETY: the caller passes the arguments that the kernel declares. `false` turns off programmatic
        // dependent launch, because the user's PTX may lack the instruction that waits for earlier launches.
        unsafe { function.launch(shape, stream, false, args) }
    }

    /// Loads one kernel as a module that contains only this kernel, in the current context.
    fn load(&self, kernel: &str) -> Result<(Module, Raw)> {
        let no_kernel = || Error::NoKernel(kernel.into());
        let overlap = self.overlap(kernel);
        let native = || self.native.and_then(|ptx| ptx.module(kernel, overlap));
        let text = self.ptx.module(kernel, overlap).or_else(native).ok_or_else(no_kernel)?;
        let module = self.load_text(kernel, self.ptx.arch, &text)?;
        let function = module.function(kernel)?;
        Ok((module, function))
    }

    /// Loads a PTX module for `arch` in the current context. `what` is the name of the module in error
    /// messages.
    fn load_text(&self, what: &str, arch: Arch, text: &CStr) -> Result<Module> {
        let _relaxed = Relaxed::new();
        let mut log = vec![0_u8; 16 << 10];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut raw = std::ptr::null_mut();
        let (image, options) = (text.as_ptr().cast(), &sys::ERROR_LOG);
        // SAFETY: `text` ends with NUL. The driver gets two options, the log buffer and its length.
        match unsafe { sys::cuModuleLoadDataEx(&mut raw, image, 2, options.as_ptr(), values.as_mut_ptr()) } {
            0 => Ok(Module(raw)),
            code => Err(Error::Load {
                device: self.name.clone(),
                kernel: what.into(),
                arch: arch.name(),
                text: sys::text(code),
                log: CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned(),
            }),
        }
    }
}
