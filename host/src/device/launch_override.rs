//! Launch configurations of the caller's choice: `tune` times them, tests run them beside those that ops take by themselves.
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::launch::Launch;
use crate::Rung;

/// A launch configuration in place of the one that an op takes by itself. What an op has no use for, it does not look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    /// The rung, of an op with a ladder.
    pub rung: Option<Rung>,
    /// How many of the kernels that take the operands, the first choice first, are passed over.
    pub passed_over: usize,
    /// Threads of a block, where they do not decide what is computed.
    pub threads: Option<u32>,
    /// Among how many warps the heads of all tokens are shared out; or, for the rows of a norm's gradient, among how many
    /// blocks of a multiprocessor.
    pub shares: Option<u32>,
    /// The share of a multiprocessor's memory that is shared memory, in percent.
    pub carveout: Option<u32>,
}

/// A choice, and what was launched with it.
pub(crate) struct Trial {
    pub choice: Choice,
    launches: Mutex<Vec<String>>,
}

impl Trial {
    pub fn of(choice: Choice) -> Self {
        Self { choice, launches: Mutex::default() }
    }

    /// Notes a launch of `kernel`.
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

    /// What was launched since this was last asked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.launches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
