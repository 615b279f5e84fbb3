//! Loading and launching kernels.
mod overlap;
mod ptx;

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cuda_std::cpu;
use cuda_std::launch::{AnyElement, Argument, Entry, Kernel, KernelElement, Launcher};
use half::{bf16, f16};

use self::overlap::Instructions;
pub use self::ptx::{Ptx, Unit};
use crate::cuda::module::c_text;
use crate::cuda::{Function, Gpu, Module};
use crate::{Arch, Device, Dtype, Error, Launch, Result, Stream};

/// The kernels of a crate, loaded on a device. A GPU runs the PTX of the kernels. The CPU executor runs the
/// Rust functions of the kernels on the host. The package `examples/own-kernel` is a complete example.
pub struct Kernels {
    device: Device,
    by_name: HashMap<&'static str, &'static Kernel>,
    loaded: Loaded,
}

enum Loaded {
    Cuda(OnGpu),
    Cpu,
}

/// A kernel on a GPU.
struct GpuKernel {
    /// Number of the [`OnGpu`] value that loaded the kernel.
    owner: u64,
    function: Function,
}

/// Kernels on a GPU.
struct OnGpu {
    /// A number that identifies this `OnGpu` value in the process. A [`Kernel`] is a static variable. It
    /// caches the driver's function that was loaded last, and the number of the `OnGpu` value that loaded
    /// this function. If the cached number equals this number, the cached function belongs to this GPU.
    number: u64,
    gpu: Arc<Gpu>,
    /// The architecture of the PTX. [`Kernels::of_library`] chooses an architecture whose PTX also runs on
    /// newer GPUs. [`Kernels::load`] may also choose an architecture such as `sm_90a`, whose PTX runs on only
    /// one compute capability.
    arch: Arch,
    /// The PTX from which a kernel is loaded at its first launch. After [`Kernels::load`], this vector is
    /// empty, because this function has already loaded all kernels.
    ptx: Vec<&'static Ptx>,
    /// Whether launches use programmatic dependent launch (PDL). If true, `griddepcontrol.wait` is inserted
    /// into the PTX of each kernel when the kernel is loaded. The kernel may start before earlier launches of
    /// the stream have finished. The inserted instruction waits until they have finished.
    overlaps: bool,
    /// The loaded functions. The map's key for a function is the address of its [`Kernel`], which is a static
    /// variable.
    functions: RwLock<HashMap<usize, &'static GpuKernel>>,
}

/// Returns whether operators on the CPU executor use the kernels for sm_90a, as on a Hopper GPU. On the
/// executor, these kernels are slower than the kernels for all GPUs, because their blocks have more threads.
fn runs_hopper() -> bool {
    static HOPPER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HOPPER.get_or_init(|| std::env::var("OXIWARP_EXECUTOR_HOPPER").is_ok_and(|value| value == "1"))
}

impl Kernels {
    /// Loads all kernels of `entries` on `device` before it returns.
    ///
    /// - `ptx` is the PTX that `cuda_builder` made from the crate, for one or more architectures.
    /// - `entries` is the table `KERNELS` that the macro [`entry!`](cuda_std::entry!) makes. If a crate has
    ///   several tables, pass the concatenation of the tables.
    ///
    /// A GPU loads the PTX of the newest architecture that it can run, and keeps the kernels until the
    /// process ends. The CPU executor does not use `ptx`. Instead, it calls the Rust functions of the
    /// entries.
    ///
    /// The loaded kernels never use programmatic dependent launch, because this function ignores the mark
    /// `@overlap` of the entries. Use [`Kernels::of_library`] for programmatic dependent launch.
    ///
    /// # Errors
    /// On the CPU executor, this function returns no error. On a GPU, it returns an error in these cases:
    ///
    /// - [`Error::Capability`]: the GPU can run none of the architectures in `ptx`.
    /// - [`Error::Load`]: the driver rejects the PTX. The error contains the log of the driver's compiler.
    /// - [`Error::NoKernel`]: a kernel of `entries` is not in the PTX. This function returns no error for
    ///   missing kernels with the mark `@only`, which limits a kernel to one architecture. Only the launch of
    ///   such a missing kernel returns [`Error::NoKernel`].
    /// - [`Error::Unsupported`]: the PTX contains a NUL character.
    /// - [`Error::Driver`]: a call of the driver failed.
    pub fn load(
        device: &Device,
        ptx: &[(Arch, &str)],
        entries: impl IntoIterator<Item = &'static Entry>,
    ) -> Result<Self> {
        let by_name: HashMap<_, _> = by_name(entries);
        let Some(gpu) = device.gpu() else {
            return Ok(Self { device: device.clone(), by_name, loaded: Loaded::Cpu });
        };
        let runs = |arch: Arch| arch.runs_on(gpu.capability) && arch.limit() <= gpu.arch.limit();
        let Some((arch, text)) = ptx.iter().filter(|(arch, _)| runs(*arch)).max_by_key(|(arch, _)| *arch)
        else {
            return Err(no_ptx(gpu, ptx.iter().map(|(arch, _)| *arch)));
        };
        let _current = gpu.current()?;
        let module = Module::load(gpu, "PTX", *arch, &c_text(text)?)?;
        let function = |kernel: &&'static Kernel| match module.function(kernel.name) {
            Err(Error::NoKernel { .. }) if kernel.only.is_some() => None,
            function => Some(function.map(|function| (address(kernel), function))),
        };
        let functions = by_name.values().filter_map(function).collect::<Result<Vec<_>>>()?;
        module.keep();
        let owner = next_number();
        let kernel = |(address, function)| (address, leak(GpuKernel { owner, function }));
        let functions = RwLock::new(functions.into_iter().map(kernel).collect());
        let (gpu, number) = (gpu.clone(), owner);
        // All kernels of the PTX are already in `functions`. The field `ptx` is therefore empty: a launch of
        // a kernel that is not in `functions` must not search the PTX.
        let on_gpu = OnGpu { number, gpu, arch: *arch, ptx: vec![], overlaps: false, functions };
        Ok(Self { device: device.clone(), by_name, loaded: Loaded::Cuda(on_gpu) })
    }

    /// Prepares the kernels of a library with many kernels. Each kernel is loaded at its first launch, so
    /// that a program waits only for the kernels that it uses. [`Kernels::load`] loads all kernels at once.
    ///
    /// A GPU uses the newest PTX that it can run. `ptx` must be ordered by architecture, oldest first.
    /// Launches use programmatic dependent launch on sm_90 and newer, so consecutive launches may overlap. A
    /// kernel's mark `@overlap` says which overlaps it permits: see [`Overlap`](cuda_std::launch::Overlap).
    ///
    /// # Errors
    /// On the CPU executor, this function returns no error. On a GPU, it returns [`Error::Capability`] if the
    /// GPU can run none of the architectures in `ptx`.
    ///
    /// This function does not read the PTX. The first launch of a kernel returns the error if the driver
    /// rejects the kernel's PTX ([`Error::Load`]) or if the PTX lacks the kernel ([`Error::NoKernel`]).
    pub fn of_library(
        device: &Device,
        ptx: &'static [Ptx],
        entries: impl IntoIterator<Item = &'static Entry>,
    ) -> Result<Self> {
        let by_name = by_name(entries);
        let Some(gpu) = device.gpu() else {
            return Ok(Self { device: device.clone(), by_name, loaded: Loaded::Cpu });
        };
        let chosen = choose(ptx, gpu.capability, gpu.arch);
        let Some(newest) = chosen.first() else {
            return Err(no_ptx(gpu, ptx.iter().map(|ptx| ptx.arch)));
        };
        let (arch, overlaps) = (newest.arch, newest.arch >= Arch::Sm90 && gpu.overlaps);
        let (number, gpu, functions) = (next_number(), gpu.clone(), RwLock::default());
        let on_gpu = OnGpu { number, gpu, arch, ptx: chosen, overlaps, functions };
        Ok(Self { device: device.clone(), by_name, loaded: Loaded::Cuda(on_gpu) })
    }

    /// Returns the device on which the kernels are loaded.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the architecture of the PTX from which the kernels are loaded, or `None` on the CPU executor.
    pub fn arch(&self) -> Option<Arch> {
        match &self.loaded {
            Loaded::Cuda(on_gpu) => Some(on_gpu.arch),
            Loaded::Cpu => None,
        }
    }

    /// Returns whether a launch can use the PTX for exactly this architecture. For example, [`Kernels::arch`]
    /// of a library on a Hopper GPU is `sm_90`. If the library also has PTX for `sm_90a`, then
    /// `has(Arch::Sm90a)` is true, and the kernels in this PTX can be launched. On the CPU executor, the
    /// result is true for `sm_90a` if the environment variable `OXIWARP_EXECUTOR_HOPPER` is 1.
    pub fn has(&self, arch: Arch) -> bool {
        match &self.loaded {
            Loaded::Cuda(on_gpu) => on_gpu.arch == arch || on_gpu.ptx.iter().any(|ptx| ptx.arch == arch),
            Loaded::Cpu => arch == Arch::Sm90a && runs_hopper(),
        }
    }

    /// Returns the names of the kernels that this device can launch, in alphabetical order. A GPU can launch
    /// the kernels in its PTX. The CPU executor can launch all kernels.
    ///
    /// ```
    /// # use cuda_std::prelude::*;
    /// # use oxiwarp_runtime::{Device, Kernels};
    /// # unsafe fn twice<T: Elem>(_: *mut T) {}
    /// entry!(twice<T: [f32, bf16]>(x: *mut T) => twice::<T>(x));
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let kernels = Kernels::load(&Device::cpu(), &[], KERNELS)?;
    /// assert_eq!(kernels.names(), ["twice_bf16", "twice_f32"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = match &self.loaded {
            Loaded::Cpu => self.by_name.values().map(|kernel| kernel.name).collect(),
            Loaded::Cuda(on_gpu) => {
                let units = on_gpu.ptx.iter().flat_map(|ptx| &ptx.units);
                let embedded: HashSet<_> = units.flat_map(Unit::entries).collect();
                let loaded = on_gpu.functions.read().unwrap_or_else(PoisonError::into_inner);
                let is_there =
                    |k: &&'static Kernel| embedded.contains(k.name) || loaded.contains_key(&address(k));
                self.by_name.values().copied().filter(is_there).map(|kernel| kernel.name).collect()
            }
        };
        names.sort_unstable();
        names
    }

    /// Loads a kernel without launching it. On a GPU, the driver compiles the kernel's PTX and stores the
    /// result in the driver's cache on disk. A later process then loads the kernel in less time. On the CPU
    /// executor, this function only checks the name.
    ///
    /// Several threads can load different kernels at the same time.
    ///
    /// # Errors
    /// - [`Error::NoKernel`]: there is no kernel `name`, or the PTX that the device uses lacks this kernel.
    /// - [`Error::Load`]: the driver rejects the PTX.
    /// - [`Error::Driver`]: another call of the driver failed.
    pub fn prepare(&self, name: &str) -> Result<()> {
        let Some(kernel) = self.by_name.get(name) else { return Err(self.no_kernel(name)) };
        let Loaded::Cuda(on_gpu) = &self.loaded else { return Ok(()) };
        let _current = on_gpu.gpu.current()?;
        on_gpu.function(kernel)?.map(|_| ()).ok_or_else(|| self.no_kernel(name))
    }

    /// Combines these kernels with a stream and a launch shape. The launch functions that
    /// [`entry!`](cuda_std::entry!) makes take the result as their first argument. The CPU executor ignores
    /// the stream.
    ///
    /// ```
    /// use cuda_std::prelude::*;
    /// use oxiwarp_runtime::{Device, Kernels, Launch, Stream};
    ///
    /// /// # Safety
    /// /// `x` has one element per thread of the launch.
    /// unsafe fn twice<T: Elem>(x: *mut T) {
    ///     // SAFETY: each thread has its own element.
    ///     unsafe {
    ///         let x = x.add(thread::index()[0] as usize);
    ///         *x = T::from_f32((*x).to_f32() * 2.0);
    ///     }
    /// }
    /// entry!(twice<T: [f32, bf16]>(x: *mut T) => twice::<T>(x));
    ///
    /// # fn main() -> oxiwarp_runtime::Result<()> {
    /// let device = Device::cpu();
    /// let kernels = Kernels::load(&device, &[], KERNELS)?;
    /// let mut x = device.upload(&[1.0_f32, 2.0])?;
    /// let shape = Launch::of([1, 1, 1], [2, 1, 1]);
    /// // SAFETY: `x` has two elements, and the launch has two threads.
    /// unsafe { launch::twice(kernels.on(Stream::default(), shape), x.as_mut_ptr())? };
    /// assert_eq!(x.download()?, [2.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on<'a>(&'a self, stream: Stream<'a>, shape: Launch) -> Site<'a> {
        Site { kernels: self, stream, shape }
    }

    /// Combines these kernels with a stream and a launch shape, for an element type that is known only at run
    /// time. For a type that is known at compile time, use [`Kernels::on`]. The launch returns
    /// [`Error::NoKernel`] if the kernel has no variant for `dtype`.
    pub fn on_dtype<'a>(&'a self, dtype: Dtype, stream: Stream<'a>, shape: Launch) -> DtypeSite<'a> {
        DtypeSite { site: self.on(stream, shape), dtype }
    }

    /// Launches the kernel `name`, for example `"l2_normalize_bf16"`, on `stream`. Make `args` with the macro
    /// [`args!`](crate::args). A CUDA graph can capture the launch. The CPU executor ignores the stream, and
    /// has finished the launch when this function returns.
    ///
    /// Prefer the functions that [`entry!`](cuda_std::entry!) makes. These functions check the arguments at
    /// compile time.
    ///
    /// # Safety
    /// The types of the arguments must match the kernel's declaration. This function checks only their number
    /// and sizes. The kernel's own safety requirements must hold until the launch is done.
    ///
    /// # Errors
    /// On a GPU, this function does not report errors that happen while the kernel runs, such as an access to
    /// an invalid address. A later call reports such errors, for example a call of [`Device::synchronize`].
    /// This function returns an error in these cases:
    ///
    /// - [`Error::NoKernel`]: there is no kernel `name`. The message suggests the most similar name. This
    ///   error also occurs if the PTX that the device uses lacks the kernel. After [`Kernels::load`], the PTX
    ///   can lack only kernels with the mark `@only`, which limits a kernel to one architecture.
    /// - [`Error::Arguments`]: the number or the size of the arguments differs from the kernel's declaration.
    /// - [`Error::Load`]: this is the first launch of a kernel of [`Kernels::of_library`], and the driver
    ///   rejects the kernel's PTX. Kernels of [`Kernels::load`] are already loaded.
    /// - [`Error::Driver`]: the GPU does not support the launch shape, or another driver error.
    /// - [`Error::Fault`]: the CPU executor does not support the launch shape, or detects an error in the
    ///   kernel, for example a data race.
    pub unsafe fn launch(&self, name: &str, shape: Launch, stream: Stream, args: &[Argument]) -> Result<()> {
        let Some(kernel) = self.by_name.get(name) else { return Err(self.no_kernel(name)) };
        kernel.check(args).map_err(Error::Arguments)?;
        let args: Vec<_> = args.iter().map(Argument::as_ptr).collect();
        // SAFETY: `launch_kernel` requires arguments of the types that the kernel declares. The caller of
        // this function guarantees this for `args`.
        unsafe { self.launch_kernel(kernel, shape, stream, &args) }
    }

    /// Launches `kernel`. The kernel must be in the table of entries that was passed to [`Kernels::load`] or
    /// [`Kernels::of_library`]. An [`Entry`] contains one kernel per element type. A library that chooses one
    /// of these kernels by a rule of its own can implement the trait [`Launcher`] with this function.
    ///
    /// # Safety
    /// `args` must have one pointer per parameter of the kernel, in the same order. Each pointer must point
    /// to a value of the parameter's type. The kernel's own safety requirements must hold until the launch is
    /// done.
    ///
    /// # Errors
    /// Returns the errors of [`Kernels::launch`], except [`Error::Arguments`], because this function does not
    /// check `args`.
    #[inline]
    pub unsafe fn launch_kernel(
        &self,
        kernel: &'static Kernel,
        shape: Launch,
        stream: Stream,
        args: &[*const c_void],
    ) -> Result<()> {
        match &self.loaded {
            Loaded::Cuda(on_gpu) => {
                let _current = on_gpu.gpu.current()?;
                let function = on_gpu.function(kernel)?.ok_or_else(|| self.no_kernel(kernel.name))?;
                // SAFETY: the caller passes the arguments that the kernel declares.
                let shared_bytes = unsafe { kernel.shared_bytes(shape.block, args) };
                let shared_bytes = shared_bytes.unwrap_or(shape.shared_bytes);
                let shape = Launch { shared_bytes, ..shape };
                // SAFETY: the caller passes the arguments that the kernel declares.
                unsafe { function.launch(&shape, stream, on_gpu.overlaps, args) }
            }
            Loaded::Cpu => {
                let Launch { grid, block, shared_bytes, .. } = shape;
                // SAFETY: the caller passes the arguments that the kernel declares.
                unsafe { cpu::launch(kernel, &cpu::Launch { grid, block, shared_bytes }, args) }?;
                Ok(())
            }
        }
    }

    /// Returns the error for a kernel that cannot be found. If no kernel has this name, the error suggests
    /// the most similar name of a kernel. It suggests a name only if at most a third of the characters differ
    /// (rounded up). If a kernel has this name but the PTX lacks it, the error suggests nothing.
    fn no_kernel(&self, name: &str) -> Error {
        let distance = |known: &&str| strsim::damerau_levenshtein(known, name);
        let nearest = self.by_name.keys().copied().min_by_key(|known| (distance(known), *known));
        let similar = nearest.filter(|known| *known != name && distance(known) <= name.len().div_ceil(3));
        Error::NoKernel { kernel: name.into(), similar: similar.map(Into::into) }
    }
}

impl OnGpu {
    /// Returns the driver's function of a kernel, or `None` if the PTX does not have the kernel. If the
    /// kernel is not loaded yet, this function loads a module that contains only this kernel.
    #[inline]
    fn function(&self, kernel: &'static Kernel) -> Result<Option<&'static Function>> {
        // SAFETY: only the function `find` writes this pointer. Therefore the pointer is null, or it points
        // to a leaked value, which lives until the process ends.
        let cached: Option<&'static GpuKernel> =
            unsafe { kernel.cache.load(Ordering::Acquire).cast::<GpuKernel>().as_ref() };
        match cached.filter(|cached| cached.owner == self.number) {
            Some(cached) => Ok(Some(&cached.function)),
            None => self.find(kernel),
        }
    }

    /// Returns the driver's function of a kernel and stores it in the kernel's cache. The caller calls this
    /// function only if the cache is empty, or if it contains a function that was loaded for another device.
    #[cold]
    fn find(&self, kernel: &'static Kernel) -> Result<Option<&'static Function>> {
        let known =
            self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&address(kernel)).copied();
        let found = match known {
            Some(found) => Some(found),
            None => self.load(kernel)?,
        };
        let Some(found) = found else { return Ok(None) };
        kernel.cache.store(std::ptr::from_ref(found).cast_mut().cast(), Ordering::Release);
        Ok(Some(&found.function))
    }

    /// Loads a kernel from the first PTX in `self.ptx` that contains the kernel. Returns `None` if no PTX
    /// contains the kernel.
    fn load(&self, kernel: &'static Kernel) -> Result<Option<&'static GpuKernel>> {
        let overlap = if self.overlaps { Instructions::Of(kernel.overlap) } else { Instructions::None };
        let module = |ptx: &&'static Ptx| Some((ptx.arch, ptx.module(kernel.name, overlap)?));
        let Some((arch, text)) = self.ptx.iter().find_map(module) else { return Ok(None) };
        // Do not lock `functions` while the driver compiles, which may take seconds, because the first
        // launches of other kernels need the same lock. Two threads may therefore load the same kernel at the
        // same time. The first thread that gets the lock stores its function in `functions`. The second
        // thread returns this stored function. When the second thread leaves `load`, the module that it
        // loaded is dropped, and thereby unloaded. The variable `functions` is declared after `module`, so
        // the lock is released before the module is dropped.
        let module = Module::load(&self.gpu, kernel.name, arch, &text)?;
        let function = module.function(kernel.name)?;
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        let stored = match functions.entry(address(kernel)) {
            MapEntry::Occupied(first) => *first.get(),
            MapEntry::Vacant(place) => {
                module.keep();
                place.insert(leak(GpuKernel { owner: self.number, function }))
            }
        };
        Ok(Some(stored))
    }
}

/// Selects the elements of `ptx` that a GPU uses. The first is the newest portable PTX (which also runs on
/// newer GPUs), up to the architecture `limit`. If `ptx` also has PTX that runs only on GPUs of this compute
/// capability, this PTX is the second selected element. For example, `sm_90a` follows `sm_90`. The result is
/// empty if the GPU can run no portable PTX.
fn choose(ptx: &'static [Ptx], capability: (u32, u32), limit: Arch) -> Vec<&'static Ptx> {
    let runs = |ptx: &&Ptx| ptx.arch.runs_on(capability);
    let portable = |ptx: &&Ptx| !ptx.arch.is_native() && ptx.arch <= limit;
    let Some(newest) = ptx.iter().filter(runs).rfind(portable) else { return vec![] };
    let same = |ptx: &&Ptx| ptx.arch.is_native() && ptx.arch.capability() == newest.arch.capability();
    [newest].into_iter().chain(ptx.iter().filter(runs).filter(same)).collect()
}

fn no_ptx(gpu: &Gpu, archs: impl Iterator<Item = Arch>) -> Error {
    let names: Vec<_> = archs.filter(|arch| !arch.is_native()).map(Arch::name).collect();
    let available =
        if names.is_empty() { "no GPU: the build selected none".into() } else { names.join(", ") };
    Error::Capability { device: gpu.name.clone(), capability: gpu.capability, available }
}

fn by_name(entries: impl IntoIterator<Item = &'static Entry>) -> HashMap<&'static str, &'static Kernel> {
    entries.into_iter().flat_map(Entry::kernels).map(|kernel| (kernel.name, kernel)).collect()
}

/// Returns the key of a kernel. The key is the address of the static variable of type [`Kernel`], which is
/// different for each kernel.
fn address(kernel: &'static Kernel) -> usize {
    std::ptr::from_ref(kernel).addr()
}

fn leak(kernel: GpuKernel) -> &'static GpuKernel {
    Box::leak(Box::new(kernel))
}

/// Returns a number that this function has not returned before.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Loaded kernels, a stream and a launch shape. A `Site` is the first argument of a launch function.
/// [`Kernels::on`] returns a `Site`.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    kernels: &'a Kernels,
    stream: Stream<'a>,
    shape: Launch,
}

macro_rules! launches {
    ($($t:ty),*) => { $(
        impl Launcher<$t> for Site<'_> {
            type Error = Error;

            #[inline]
            unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<()> {
                let kernel = <$t as KernelElement>::ELEMENT.and_then(|element| entry.kernel(element));
                let kernel = kernel.expect("the launch function checks the element type");
                // SAFETY: `launch_kernel` requires arguments of the types that the kernel declares, and the
                // kernel's own safety requirements. The caller guarantees both.
                unsafe { self.kernels.launch_kernel(kernel, self.shape, self.stream, args) }
            }
        }
    )* };
}
launches!(f32, f16, bf16);

/// A [`Site`] with a dtype that is known only at run time. [`Kernels::on_dtype`] returns a `DtypeSite`.
#[derive(Clone, Copy)]
pub struct DtypeSite<'a> {
    site: Site<'a>,
    dtype: Dtype,
}

impl Launcher<AnyElement> for DtypeSite<'_> {
    type Error = Error;

    #[inline]
    unsafe fn launch(self, entry: &'static Entry, args: &[*const c_void]) -> Result<()> {
        let Site { kernels, stream, shape } = self.site;
        let Some(kernel) = self.dtype.element().and_then(|element| entry.kernel(element)) else {
            return Err(kernels.no_kernel(&format!("{}_{}", entry.name, self.dtype)));
        };
        // SAFETY: `launch_kernel` requires arguments of the types that the kernel declares, and the kernel's
        // own safety requirements. The caller guarantees both.
        unsafe { kernels.launch_kernel(kernel, shape, stream, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod kernel {
        use cuda_std::prelude::*;

        /// # Safety
        /// `x` has `n` elements.
        unsafe fn add<T: Elem>(x: *mut T, n: u64, value: f32) {
            let at = u64::from(thread::index()[0]);
            if at < n {
                // SAFETY: each thread reads and writes only element `at` of `x`. `x` has `n` elements, and
                // `at` is less than `n`.
                unsafe {
                    let x = x.add(at as usize);
                    *x = T::from_f32((*x).to_f32() + value);
                }
            }
        }
        entry! {
            add<T: [f32, bf16]>(x: *mut T, n: u64, value: f32) => add::<T>(x, n, value);
            @only(sm_90a) add_hopper<T: [f32]>(x: *mut T) => ()
        }
    }
    use kernel::{KERNELS, launch};

    const SHAPE: Launch = Launch::of([1; 3], [32, 1, 1]);

    fn archs(ptx: &[Arch], capability: (u32, u32), limit: Arch) -> Vec<&'static str> {
        let ptx: Vec<_> = ptx.iter().map(|&arch| Ptx::of_text(arch, "")).collect();
        choose(ptx.leak(), capability, limit).iter().map(|ptx| ptx.arch.name()).collect()
    }

    #[test]
    fn a_gpu_takes_the_newest_ptx_that_it_runs() {
        let all = [Arch::Sm75, Arch::Sm80, Arch::Sm90];
        assert_eq!(archs(&all, (7, 0), Arch::Sm90), [""; 0], "older than the oldest");
        assert_eq!(archs(&all, (7, 5), Arch::Sm75), ["sm_75"]);
        assert_eq!(archs(&all, (8, 9), Arch::Sm80), ["sm_80"]);
        assert_eq!(archs(&all, (9, 0), Arch::Sm90), ["sm_90"]);
        assert_eq!(archs(&all, (12, 0), Arch::Sm90), ["sm_90"], "by forward compatibility");
        assert_eq!(archs(&all, (9, 0), Arch::Sm75), ["sm_75"], "an older one was asked for");
        assert_eq!(archs(&all[..2], (9, 0), Arch::Sm90), ["sm_80"], "the build has no newer one");
    }

    #[test]
    fn native_ptx_is_for_one_gpu_and_beside_its_newest() {
        let all = [Arch::Sm75, Arch::Sm80, Arch::Sm90, Arch::Sm90a];
        assert_eq!(archs(&all, (9, 0), Arch::Sm90), ["sm_90", "sm_90a"]);
        assert_eq!(archs(&all, (9, 0), Arch::Sm80), ["sm_80"], "an older one was asked for");
        assert_eq!(archs(&all, (8, 0), Arch::Sm80), ["sm_80"]);
        assert_eq!(archs(&all, (12, 0), Arch::Sm90), ["sm_90"], "newer GPUs do not run it");
    }

    #[test]
    fn a_typed_launch_runs_the_kernel_of_its_type() {
        let device = Device::cpu();
        let kernels = Kernels::load(&device, &[], KERNELS).unwrap();
        let (mut x, mut y) =
            (device.upload(&[1.0_f32; 3]).unwrap(), device.upload(&[bf16::from_f32(2.0); 3]).unwrap());
        let site = kernels.on(Stream::default(), SHAPE);
        // SAFETY: both buffers have at least two elements.
        unsafe {
            launch::add(site, x.as_mut_ptr(), 2, 10.0).unwrap();
            launch::add(site, y.as_mut_ptr(), 3, 20.0).unwrap();
        }
        assert_eq!(x.download().unwrap(), [11.0, 11.0, 1.0]);
        assert_eq!(y.download().unwrap(), [bf16::from_f32(22.0); 3]);
    }

    #[test]
    fn kernels_are_listed_and_prepared_by_name() {
        let kernels = Kernels::load(&Device::cpu(), &[], KERNELS).unwrap();
        assert_eq!(kernels.names(), ["add_bf16", "add_f32", "add_hopper_f32"]);
        kernels.prepare("add_f32").unwrap();
        let error = kernels.prepare("add_f16").unwrap_err();
        assert_eq!(error.to_string(), "there is no kernel add_f16. Did you mean add_bf16?");
    }

    #[test]
    fn a_dtype_of_run_time_selects_the_kernel() {
        let device = Device::cpu();
        let kernels = Kernels::load(&device, &[], KERNELS).unwrap();
        let mut x = device.upload(&[1.0_f32; 2]).unwrap();
        let pointer = x.as_mut_ptr().cast();
        let site = |dtype| kernels.on_dtype(dtype, Stream::default(), SHAPE);
        // SAFETY: the first launch accesses the two f32 elements of `x`. The second launch runs no kernel,
        // because there is no kernel for f16.
        let error = unsafe {
            launch::add(site(Dtype::F32), pointer, 2, 4.0).unwrap();
            launch::add(site(Dtype::F16), pointer, 2, 4.0).unwrap_err()
        };
        assert_eq!(x.download().unwrap(), [5.0, 5.0]);
        assert_eq!(error.to_string(), "there is no kernel add_f16. Did you mean add_bf16?");
    }

    #[test]
    fn a_launch_by_name_checks_its_arguments_before_it_runs() {
        let device = Device::cpu();
        let kernels = Kernels::load(&device, &[], KERNELS).unwrap();
        let mut x = device.upload(&[1.0_f32; 2]).unwrap();
        let (pointer, n, short, value) = (x.as_mut_ptr(), 2_u64, 2_u32, 4.0_f32);
        // SAFETY: the kernel requires the arguments that it declares. Some calls pass wrong arguments, but
        // the check rejects them before the kernel runs. All other calls pass the declared arguments.
        let says = |name: &str, args: &[Argument]| unsafe {
            kernels.launch(name, SHAPE, Stream::default(), args).map_err(|error| error.to_string())
        };
        let expected = "add_f32 takes 3 arguments (x: *mut T, n: u64, value: f32), got 2";
        assert_eq!(says("add_f32", &crate::args![pointer, n]), Err(expected.into()));
        let expected = "add_f32: argument n is u32 (4 bytes), expected u64 (8 bytes) as in (x: *mut T, n: u64, \
                        value: f32)";
        assert_eq!(says("add_f32", &crate::args![pointer, short, value]), Err(expected.into()));
        let expected = "there is no kernel ad_f32. Did you mean add_f32?";
        assert_eq!(says("ad_f32", &crate::args![pointer, n, value]), Err(expected.into()));
        let expected = "there is no kernel something_else";
        assert_eq!(says("something_else", &[]), Err(expected.into()));
        assert_eq!(x.download().unwrap(), [1.0; 2], "nothing ran");
        assert_eq!(says("add_f32", &crate::args![pointer, n, value]), Ok(()));
        assert_eq!(x.download().unwrap(), [5.0; 2]);
    }

    #[test]
    fn the_executor_runs_kernels_of_one_architecture() {
        let device = Device::cpu();
        let kernels = Kernels::load(&device, &[], KERNELS).unwrap();
        let mut x = device.upload(&[1.0_f32]).unwrap();
        // SAFETY: the kernel does nothing.
        unsafe { launch::add_hopper(kernels.on(Stream::default(), SHAPE), x.as_mut_ptr()) }.unwrap();
        assert!(!kernels.has(Arch::Sm90));
    }
}
