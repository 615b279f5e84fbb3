//! Kernels as functions of the driver: loaded when first launched, each of a module of its own.
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_void};
use std::sync::PoisonError;

use super::{Cuda, Raw, Relaxed, sys};
use crate::launch::{GRANTED_BYTES, Launch};
use crate::{Dtype, Error, Result};

impl Raw {
    /// Sets an attribute of a function: a limit, or a hint.
    fn set(self, attribute: i32, value: i32) -> Result<()> {
        // SAFETY: a function that was loaded.
        sys::check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.0, attribute, value) })
    }
}

/// A module of one kernel, unloaded unless it is kept.
struct Module {
    raw: *mut c_void,
    function: Raw,
}

impl Module {
    /// Its kernel. The module stays loaded: graphs that captured a launch may be replayed at any time.
    fn keep(self) -> Raw {
        std::mem::ManuallyDrop::new(self).function
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _relaxed = Relaxed::new();
        // SAFETY: it was loaded, in the context that is still current, and nothing of it was launched.
        unsafe { sys::cuModuleUnload(self.raw) };
    }
}

impl Cuda {
    /// Gives a kernel another share of shared memory than that of its first launch.
    pub fn prefer_shared(&self, kernel: &'static str, dtype: Dtype, shape: &Launch) -> Result<()> {
        let _current = self.current()?;
        let function = self.function(kernel, dtype, *shape)?;
        let _relaxed = Relaxed::new();
        function.set(sys::CARVEOUT, shape.carveout.map_or(sys::CARVEOUT_BY_DRIVER, |percent| percent as i32))
    }

    pub(super) fn function(&self, kernel: &'static str, dtype: Dtype, shape: Launch) -> Result<Raw> {
        let Launch { shared_bytes, carveout, .. } = shape;
        if let Some(&function) =
            self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&(kernel, dtype))
        {
            return Ok(function);
        }
        // Without the lock, since the driver may compile for seconds: launches of other kernels do not wait for that. Of
        // threads that load the same kernel, the first keeps its module; the others unload theirs, after the lock.
        let module = self.load(&format!("{kernel}_{dtype}"))?;
        let opt_in = (shared_bytes > GRANTED_BYTES).then_some((sys::MAX_SHARED, shared_bytes));
        for (attribute, value) in
            [opt_in, carveout.map(|percent| (sys::CARVEOUT, percent))].into_iter().flatten()
        {
            module.function.set(attribute, value as i32)?;
        }
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        Ok(match functions.entry((kernel, dtype)) {
            Entry::Occupied(first) => *first.get(),
            Entry::Vacant(place) => *place.insert(module.keep()),
        })
    }

    /// A kernel of a module of its own, in the current context.
    fn load(&self, kernel: &str) -> Result<Module> {
        let no_kernel = || Error::NoKernel(kernel.into());
        let overlap = self.overlap(kernel);
        let native = || self.native.and_then(|ptx| ptx.module(kernel, overlap));
        let text = self.ptx.module(kernel, overlap).or_else(native).ok_or_else(no_kernel)?;
        let name = CString::new(kernel).map_err(|_| no_kernel())?;
        let _relaxed = Relaxed::new();
        let mut log = vec![0_u8; 16 << 10];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut raw = std::ptr::null_mut();
        let (image, options) = (text.as_ptr().cast(), &sys::ERROR_LOG);
        // SAFETY: the text ends with NUL; the values are a buffer and its length, as the two options say.
        let code =
            unsafe { sys::cuModuleLoadDataEx(&mut raw, image, 2, options.as_ptr(), values.as_mut_ptr()) };
        if code != 0 {
            return Err(Error::Load {
                device: self.name.clone(),
                kernel: kernel.into(),
                arch: self.ptx.arch.name(),
                text: sys::text(code),
                log: CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned(),
            });
        }
        let mut module = Module { raw, function: Raw(std::ptr::null_mut()) };
        // SAFETY: the module was loaded; the name ends with NUL.
        match unsafe { sys::cuModuleGetFunction(&mut module.function.0, raw, name.as_ptr()) } {
            sys::NOT_FOUND => Err(no_kernel()),
            code => sys::check("cuModuleGetFunction", code).map(|()| module),
        }
    }
}
