//! Kernels as functions of the driver: loaded when first launched, each of a module of its own.
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

/// Kernels that are not of this crate, by name.
///
/// With each function its limit of shared memory: launches of it may ask for different ones.
pub(crate) struct OwnKernels(HashMap<&'static str, (Raw, RisingLimit)>);

impl Raw {
    /// Launches a function of the current context. `overlaps`: it may begin before the launch before it is done, which its
    /// PTX waits for.
    ///
    /// # Safety
    /// As `Device::launch`.
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
        // SAFETY: the function takes these arguments, as the caller promises.
        sys::check("cuLaunchKernelEx", unsafe { sys::cuLaunchKernelEx(&config, self.0, args, extra) })
    }

    /// Raises the limit of shared memory to what a launch wants, and says which share of the cache is to be that.
    fn prepare(self, shape: &Launch) -> Result<()> {
        let opt_in =
            (shape.shared_bytes > DEFAULT_SMEM_BYTES).then_some((sys::MAX_SHARED, shape.shared_bytes));
        let carveout = shape.carveout.map(|percent| (sys::CARVEOUT, percent));
        for (attribute, value) in opt_in.into_iter().chain(carveout) {
            self.set(attribute, value as i32)?;
        }
        Ok(())
    }

    /// Sets an attribute of a function: a limit, or a hint.
    fn set(self, attribute: i32, value: i32) -> Result<()> {
        // SAFETY: a function that was loaded.
        sys::check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.0, attribute, value) })
    }
}

/// A module, unloaded unless it is kept.
struct Module(*mut c_void);

impl Module {
    /// One of its kernels, in the current context.
    fn function(&self, kernel: &str) -> Result<Raw> {
        let no_kernel = || Error::NoKernel(kernel.into());
        let name = CString::new(kernel).map_err(|_| no_kernel())?;
        let (mut function, _relaxed) = (Raw(std::ptr::null_mut()), Relaxed::new());
        // SAFETY: the module was loaded; the name ends with NUL.
        match unsafe { sys::cuModuleGetFunction(&mut function.0, self.0, name.as_ptr()) } {
            sys::NOT_FOUND => Err(no_kernel()),
            code => sys::check("cuModuleGetFunction", code).map(|()| function),
        }
    }

    /// Leaves it loaded until the process ends: graphs that captured a launch may be replayed at any time.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _relaxed = Relaxed::new();
        // SAFETY: it was loaded, in the context that is still current, and nothing of it was launched.
        unsafe { sys::cuModuleUnload(self.0) };
    }
}

impl Cuda {
    /// See `Device::launch`.
    ///
    /// # Safety
    /// As there.
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
        // SAFETY: as the caller promises.
        unsafe { function.launch(&shape, stream, self.overlaps, &args) }
    }

    /// Gives a kernel another share of shared memory than that of its first launch.
    pub fn prefer_shared(&self, kernel: &'static str, dtype: Dtype, shape: &Launch) -> Result<()> {
        let _current = self.current()?;
        let function = self.function(kernel, dtype, shape)?;
        let _relaxed = Relaxed::new();
        function.set(sys::CARVEOUT, shape.carveout.map_or(sys::CARVEOUT_BY_DRIVER, |percent| percent as i32))
    }

    /// A kernel, prepared for the first of its launches: the others of it want as much.
    fn function(&self, kernel: &'static str, dtype: Dtype, shape: &Launch) -> Result<Raw> {
        if let Some(&function) =
            self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&(kernel, dtype))
        {
            return Ok(function);
        }
        // Without the lock, since the driver may compile for seconds: launches of other kernels do not wait for that. Of
        // threads that load the same kernel, the first keeps its module; the others unload theirs, after the lock.
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

    /// Kernels of one module, which the caller wrote for `arch`, by name.
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

    /// Launches one of them.
    ///
    /// # Safety
    /// As `Device::launch`.
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
        // SAFETY: as the caller promises. PTX that does not wait for the launch before it must not overlap with it.
        unsafe { function.launch(shape, stream, false, args) }
    }

    /// A kernel of a module of its own, in the current context.
    fn load(&self, kernel: &str) -> Result<(Module, Raw)> {
        let no_kernel = || Error::NoKernel(kernel.into());
        let overlap = self.overlap(kernel);
        let native = || self.native.and_then(|ptx| ptx.module(kernel, overlap));
        let text = self.ptx.module(kernel, overlap).or_else(native).ok_or_else(no_kernel)?;
        let module = self.load_text(kernel, self.ptx.arch, &text)?;
        let function = module.function(kernel)?;
        Ok((module, function))
    }

    /// A module of PTX for `arch`, in the current context; errors say that it is `what`.
    fn load_text(&self, what: &str, arch: Arch, text: &CStr) -> Result<Module> {
        let _relaxed = Relaxed::new();
        let mut log = vec![0_u8; 16 << 10];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut raw = std::ptr::null_mut();
        let (image, options) = (text.as_ptr().cast(), &sys::ERROR_LOG);
        // SAFETY: the text ends with NUL; the values are a buffer and its length, as the two options say.
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
