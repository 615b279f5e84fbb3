//! The devices that a kernel is tested on.
use oxiwarp::{Arch, Device};

/// A device to test on, or the reason why it is not available.
pub struct Candidate {
    /// The device's part of a test's name: `cpu`, `sm_90`.
    pub name: &'static str,
    /// The device, or the reason for skipping it.
    pub device: Result<Device, String>,
}

/// Returns the devices to test on: the CPU executor, and the first GPU once for each of three architectures.
/// A GPU can also run PTX of older architectures, so each of these devices runs the PTX of its architecture.
/// If the GPU is older than an architecture, the entry for this architecture contains the reason instead of a
/// device.
pub fn candidates() -> Vec<Candidate> {
    let gpu = |arch: Arch| Candidate {
        name: arch.name(),
        device: Device::cuda_as(0, arch).map_err(|error| error.to_string()),
    };
    let mut candidates = vec![Candidate { name: "cpu", device: Ok(Device::cpu()) }];
    candidates.extend([Arch::Sm75, Arch::Sm80, Arch::Sm90].map(gpu));
    candidates
}
