//! An open GPU: its properties and its primary context. torch uses the same primary context.
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use cust::CudaFlags;
use cust::context::Context;
use cust::device::{Device, DeviceAttribute};

use super::current::Current;
use super::raw;
use super::sync::Slots;
use crate::arch::Arch;
use crate::extensions::Extensions;
use crate::{Error, Result};

/// Returns the number of GPUs. The first call opens and initializes the driver.
pub(crate) fn count() -> Result<usize> {
    driver::load().map_err(|reason| Error::NoDriver(reason.into()))?;
    cust::init(CudaFlags::empty()).map_err(|error| Error::NoDriver(raw::text_of(error)))?;
    Ok(Device::num_devices().map_err(raw::failed("cuDeviceGetCount"))? as usize)
}

/// Returns GPU number `index`, or an error if there are fewer GPUs.
fn device(index: usize) -> Result<Device> {
    let count = count()?;
    if index >= count {
        return Err(Error::NoDevice { index, count });
    }
    Device::get_device(index as u32).map_err(raw::failed("cuDeviceGet"))
}

fn attribute(device: Device, which: DeviceAttribute) -> Result<u32> {
    Ok(device.get_attribute(which).map_err(raw::failed("cuDeviceGetAttribute"))? as u32)
}

/// Returns the maximum bytes of shared memory per block, with opt-in.
fn max_shared_bytes(device: Device) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the driver writes one integer to the local variable.
    let code = unsafe { raw::cuDeviceGetAttribute(&mut value, raw::MAX_SHARED_OPT_IN, device.as_raw()) };
    raw::check("cuDeviceGetAttribute", code)?;
    Ok(value as u32)
}

/// The name, compute capability and PTX architecture of a GPU.
struct Description {
    name: String,
    capability: (u32, u32),
    arch: Arch,
}

impl Description {
    /// Returns the properties of a GPU without creating a context. The properties include the architecture of
    /// the PTX to load. If the caller passes `arch`, the architecture is `arch`, and the function fails if
    /// PTX for `arch` does not run on the GPU. Otherwise, it is the newest portable architecture whose PTX
    /// runs on the GPU. Without a GPU, the function fails.
    fn of(device: Device, arch: Option<Arch>) -> Result<Self> {
        let name = device.name().map_err(raw::failed("cuDeviceGetName"))?;
        let major = attribute(device, DeviceAttribute::ComputeCapabilityMajor)?;
        let capability = (major, attribute(device, DeviceAttribute::ComputeCapabilityMinor)?);
        let runs = |arch: &Arch| arch.runs_on(capability);
        let (found, available) = match arch {
            Some(arch) => (Some(arch).filter(runs), arch.name().into()),
            None => (Arch::PORTABLE.into_iter().rfind(runs), Arch::portable_names()),
        };
        match found {
            Some(arch) => Ok(Self { name, capability, arch }),
            None => Err(Error::Capability { device: name, capability, available }),
        }
    }
}

/// Returns the name of GPU number `index` and the architecture of the PTX to load.
pub(crate) fn describe(index: usize) -> Result<(String, Arch)> {
    let Description { name, arch, .. } = Description::of(device(index)?, forced_arch()?)?;
    Ok((name, arch))
}

/// An open GPU.
pub(crate) struct Gpu {
    pub index: usize,
    pub name: String,
    pub capability: (u32, u32),
    /// The newest architecture whose PTX the GPU loads.
    pub arch: Arch,
    /// Maximum bytes of shared memory per block, with opt-in.
    pub max_shared_bytes: u32,
    pub multiprocessors: u32,
    /// Bytes of L2.
    pub l2_bytes: u32,
    /// Whether launches may use programmatic dependent launch (PDL). The value is true if the driver supports
    /// PDL in captured graphs and the user did not switch PDL off. A launch uses PDL only if, in addition,
    /// the target of its PTX is sm_90 or newer.
    pub overlaps: bool,
    pub extensions: Extensions,
    /// The primary context. It is never released, because kernels may still run after all owners of this
    /// value have been dropped.
    context: ManuallyDrop<Context>,
}

impl Gpu {
    /// Returns GPU number `index`. Each GPU is opened once per process.
    pub fn open(index: usize) -> Result<Arc<Self>> {
        // Opening a GPU takes a second or more. `Slots` (an array of values that are initialized on first
        // use) has one lock per GPU. Calls for other GPUs therefore do not wait.
        static GPUS: OnceLock<Slots<Arc<Gpu>>> = OnceLock::new();
        let gpus = match GPUS.get() {
            Some(gpus) => gpus,
            None => {
                let count = count()?;
                GPUS.get_or_init(|| Slots::new(count))
            }
        };
        let gpu = gpus.get_or_make(index, || Self::new(index, forced_arch()?).map(Arc::new));
        gpu.unwrap_or_else(|| Err(Error::NoDevice { index, count: gpus.count() })).cloned()
    }

    /// Opens GPU number `index`. If `arch` is given, oxiwarp loads PTX for `arch` on this GPU, instead of PTX
    /// for the newest architecture that runs on the GPU.
    pub fn new(index: usize, arch: Option<Arch>) -> Result<Self> {
        let device = device(index)?;
        let Description { name, capability, arch } = Description::of(device, arch)?;
        // `Context::new` makes the new context current. The guard restores the context that was current
        // before.
        let restore = Current::restore()?;
        let context = Context::new(device).map_err(raw::failed("cuDevicePrimaryCtxRetain"))?;
        drop(restore);
        let version = cust::CudaApiVersion::get().map_err(raw::failed("cuDriverGetVersion"))?;
        let overlaps = std::env::var_os("OXIWARP_OVERLAP").is_none_or(|value| value != "0")
            && (version.major(), version.minor()) >= raw::CAPTURES_OVERLAPPING;
        Ok(Self {
            index,
            name,
            capability,
            arch,
            max_shared_bytes: max_shared_bytes(device)?,
            multiprocessors: attribute(device, DeviceAttribute::MultiprocessorCount)?,
            l2_bytes: attribute(device, DeviceAttribute::L2CacheSize)?,
            overlaps,
            extensions: Extensions::default(),
            context: ManuallyDrop::new(context),
        })
    }

    /// Makes the GPU's context current in this thread until the guard is dropped.
    pub fn current(&self) -> Result<Current> {
        Current::set(&self.context)
    }

    pub fn synchronize(&self) -> Result<()> {
        let _current = self.current()?;
        cust::context::CurrentContext::synchronize().map_err(raw::failed("cuCtxSynchronize"))
    }
}

/// Returns the number of the GPU that a context of `cust` belongs to.
pub(crate) fn index_of(context: &Context) -> Result<usize> {
    let _current = Current::set(context)?;
    let device = cust::context::CurrentContext::get_device().map_err(raw::failed("cuCtxGetDevice"))?;
    // A `CUdevice` is the number of the GPU.
    Ok(device.as_raw() as usize)
}

/// Returns the architecture that the environment variable `OXIWARP_ARCH` names. If the variable is set, all
/// GPUs load PTX for this architecture, instead of PTX for the newest architecture that runs on the GPU.
fn forced_arch() -> Result<Option<Arch>> {
    static FORCED: OnceLock<Option<String>> = OnceLock::new();
    let Some(name) =
        FORCED.get_or_init(|| std::env::var("OXIWARP_ARCH").ok().filter(|name| !name.is_empty()))
    else {
        return Ok(None);
    };
    match Arch::PORTABLE.into_iter().find(|arch| arch.name() == name) {
        Some(arch) => Ok(Some(arch)),
        None => {
            let why = format!("OXIWARP_ARCH={name}: expected one of {}", Arch::portable_names());
            Err(Error::Unsupported { op: "Device::cuda", why })
        }
    }
}
