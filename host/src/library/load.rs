//! Loading of this library's kernels on a device.
use kernels_gpu::entries;

use super::embedded::EMBEDDED;
use crate::{Arch, Device, Kernels, Ptx, Result};

/// The kernels of this library, loaded on one device. Each device stores its own value of this type.
struct Library(Kernels);

/// Returns the kernels of this library on a device. The first call for a device creates the list of kernels.
/// A GPU loads each kernel only at the first launch of this kernel.
#[inline]
pub(crate) fn library(device: &Device) -> Result<&'static Kernels> {
    device
        .get_or_make(|| Kernels::of_library(device, &EMBEDDED, entries()).map(Library))
        .map(|library| &library.0)
}

/// Returns the names of this library's kernels that a device can launch.
///
/// # Errors
/// Returns an error if the build has no PTX for this GPU.
pub fn kernel_names(device: &Device) -> Result<Vec<&'static str>> {
    library(device).map(Kernels::names)
}

/// Loads a kernel of this library without launching it. The driver compiles the kernel's PTX and stores the
/// result in the driver's cache on disk. Several threads can load different kernels at the same time.
///
/// # Errors
/// Returns an error if there is no such kernel, or if the driver rejects its PTX. See [`Kernels::prepare`].
pub fn prepare_kernel(device: &Device, name: &str) -> Result<()> {
    library(device)?.prepare(name)
}

/// Opens GPU number `index`, and replaces the PTX of this library by a PTX text from the caller. The text
/// must be written for the architecture `arch`. Use this function to try PTX that you edited by hand.
///
/// # Safety
/// Ops launch the entries (kernels) of `text`. If an entry has the name of an oxiwarp kernel, it must take
/// the same arguments and access the same memory as the oxiwarp kernel.
///
/// # Errors
/// Returns an error if there is no driver or no such GPU. If the driver rejects the PTX, this function
/// succeeds, but the first launch returns an error with the driver's log.
pub unsafe fn cuda_with_ptx(index: usize, arch: Arch, text: &'static str) -> Result<Device> {
    let device = Device::cuda_as(index, arch)?;
    let ptx: &'static [Ptx] = Box::leak(Box::new([Ptx::of_text(arch, text)]));
    device.get_or_make(|| Kernels::of_library(&device, ptx, entries()).map(Library))?;
    Ok(device)
}
