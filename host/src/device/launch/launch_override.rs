//! Overrides of launch configurations: `tune` times them, and tests compare them with the configurations that
//! ops choose.
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::rung::Rung;
use super::shape::Launch;

/// A launch configuration instead of the one that an op chooses. An op ignores the fields that it has no use
/// for.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchOverride {
    /// The rung, for an op with a ladder.
    pub rung: Option<Rung>,
    /// Number of kernels to skip, among the kernels that support the operands, in the order in which the op
    /// prefers them.
    pub skip: usize,
    /// Threads of a block, for kernels whose result does not depend on it.
    pub threads: Option<u32>,
    /// Head kernels: minimum number of warps per launch. Norm backward kernels: blocks per SM.
    pub parallelism: Option<u32>,
    /// Shared memory carveout in percent. The rest of the memory is L1.
    pub carveout: Option<u32>,
}

/// A launch override, and a list of what was launched with it.
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
