//! Overrides of launch configurations. With an override, the caller replaces the launch configuration that an
//! op would choose. The tool `tune` uses overrides to time an op with different configurations. Tests use
//! them to compare the results.
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::rung::Rung;
use crate::{Device, Launch};

/// A launch configuration that replaces the configuration that an op would choose. Each field sets one
/// parameter. A field has no effect on an op whose kernels do not have this parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchOverride {
    /// For ops on rows, such as `softmax`, that select their launch configuration from a table: the rung
    /// (table entry) to use.
    pub rung: Option<Rung>,
    /// Number of kernels to skip. An op has a list of kernels, ordered by preference. Of the kernels that
    /// support the operands, the op skips the first `skip` and launches the next one.
    pub skip: usize,
    /// Threads per block, for kernels whose result does not depend on the number of threads.
    pub threads: Option<u32>,
    /// For `rope` and `qk_norm_rope`, the minimum number of warps per launch. For backward kernels of norms,
    /// the number of blocks per SM.
    pub parallelism: Option<u32>,
    /// Shared memory carveout in percent of the maximum of an SM. A smaller value leaves more memory for L1.
    pub carveout: Option<u32>,
}

/// A launch override (a launch configuration set by the caller), and the list of the launches that used the
/// override.
pub(crate) struct LaunchRecorder {
    pub over: LaunchOverride,
    launches: Mutex<Vec<String>>,
}

impl LaunchRecorder {
    pub fn new(over: LaunchOverride) -> Self {
        Self { over, launches: Mutex::default() }
    }

    /// Appends a launch of `kernel` to the list of launches.
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

    /// Empties the list of launches, and returns its contents.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.launches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Methods of [`Device`] for launch overrides (launch configurations set by the caller). The tool `tune` and
/// tests use these methods.
pub trait Overridable {
    /// Returns the same device with the launch override `over`. On the returned device, ops use the launch
    /// configuration `over` instead of the configuration that they would choose.
    #[must_use]
    fn with_override(&self, over: LaunchOverride) -> Device;

    /// Returns a text for each launch since the last call of this function. Only a device with a launch
    /// override (a configuration set by the caller) records its launches. For other devices, the result is
    /// empty.
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

/// Returns the launch override of a device (a launch configuration set by the caller). For a device without
/// an override, returns an override in which no parameter is set.
pub(crate) fn launch_override(device: &Device) -> LaunchOverride {
    device.tag::<LaunchRecorder>().map_or(LaunchOverride::default(), |recorder| recorder.over)
}
