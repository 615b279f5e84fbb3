//! Overrides of launch configurations. The tool `tune` times an op with different configurations. Tests
//! compare the results of an op under different configurations.
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::rung::Rung;
use crate::{Device, Launch};

/// A launch configuration that replaces the configuration that an op chooses. If the kernels of an op do not
/// have a parameter, its field has no effect on this op.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchOverride {
    /// The rung, for an op with a ladder.
    pub rung: Option<Rung>,
    /// Number of kernels to skip. An op orders its kernels by preference, and normally launches the first
    /// one that supports the operands.
    pub skip: usize,
    /// Threads per block, for kernels whose result does not depend on the number of threads.
    pub threads: Option<u32>,
    /// Minimum number of warps per launch in kernels for queries and keys. Number of blocks per SM in
    /// backward kernels of norms.
    pub parallelism: Option<u32>,
    /// Shared memory carveout in percent of the maximum of an SM. A smaller value leaves more memory for L1.
    pub carveout: Option<u32>,
}

/// A launch override, and the list of the launches that were made with it.
pub(crate) struct LaunchRecorder {
    pub over: LaunchOverride,
    launches: Mutex<Vec<String>>,
}

impl LaunchRecorder {
    pub fn new(over: LaunchOverride) -> Self {
        Self { over, launches: Mutex::default() }
    }

    /// Appends a launch of `kernel` to the list.
    pub fn note(&self, kernel: &str, shape: &Launch) {
        let Launch { grid, block, shared_bytes, carveout, .. } = shape;
        let size = |[x, y, z]: [u32; 3]| match (y, z) {
            (1, 1) => format!("{x}"),
            (y, 1) => format!("{x}x{y}"),
            (y, z) => format!("{x}x{y}x{z}"),
        };
        let mut launch = format!("{kernel} {} of {}", size(*grid), size(*block));
        if *shared_bytes > 0 {
            let _ = write!(launch, " with {shared_bytes} B");
        }
        if let Some(percent) = carveout {
            let _ = write!(launch, " of {percent} %");
        }
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).push(launch);
    }

    /// Empties the list, and returns it.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.launches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Devices with a launch override, for `tune` and tests.
pub trait Overridable {
    /// Returns the same device with a launch override. On the returned device, ops use the launch
    /// configuration `over` instead of their own choice.
    #[must_use]
    fn with_override(&self, over: LaunchOverride) -> Device;

    /// Returns the launches since the last call of this function, and clears the list. Only a device with a
    /// launch override has a list.
    fn take_launches(&self) -> Vec<String>;
}

impl Overridable for Device {
    fn with_override(&self, over: LaunchOverride) -> Device {
        self.with_tag(LaunchRecorder::new(over))
    }

    fn take_launches(&self) -> Vec<String> {
        self.tag::<LaunchRecorder>().map_or(vec![], LaunchRecorder::take)
    }
}

/// Returns the launch override of a device, which is empty by default.
pub(crate) fn launch_override(device: &Device) -> LaunchOverride {
    device.tag::<LaunchRecorder>().map_or(LaunchOverride::default(), |recorder| recorder.over)
}
