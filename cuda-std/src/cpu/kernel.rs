//! Kernels and launch shapes.
use core::ffi::c_void;

/// Maximum shared memory of a block in bytes, as on compute capability 9.0.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// Which neighbouring launches of the same stream a launch may overlap with (programmatic dependent launch,
/// from sm_90 on). The executor ignores this value and runs launches one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The launch may start before the previous one ends, but the next launch starts only after this one
    /// ends.
    ///
    /// The kernel does not execute `griddepcontrol.launch_dependents`. This variant is for kernels that take
    /// longer with this instruction, because the GPU then starts their blocks more slowly.
    Before,
    /// The launch may start before the previous one ends, as with `Before`. The kernel lacks the compiler
    /// barrier that keeps `ld.global.nc` loads after `griddepcontrol.wait`.
    ///
    /// This variant is for kernels that have no such loads. Their blocks are so short that the barrier costs
    /// measurable time.
    Plain,
    /// The launch may start before the previous one ends, and the next launch may start before this one ends.
    Both,
}

/// A kernel that the executor can launch. [`entry!`](crate::entry!) creates these values.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name of the kernel in PTX and in the executor, such as `rms_norm_bf16`.
    pub name: &'static str,
    /// How launches of the kernel overlap on a GPU.
    pub overlap: Overlap,
    /// Runs the body of one thread. The argument is a list of pointers to the values of the kernel arguments,
    /// like `kernelParams` of `cuLaunchKernel`.
    pub run: unsafe fn(&[*const c_void]),
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of blocks, `[x, y, z]`.
    pub grid: [u32; 3],
    /// Number of threads per block, `[x, y, z]`.
    pub block: [u32; 3],
    /// Launch-sized shared memory per block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// Number of threads per block. The type is `u128`, because the product of three `u32` values has up to
    /// 96 bits.
    pub(super) fn threads(&self) -> u128 {
        self.block.iter().map(|&n| u128::from(n)).product()
    }

    /// Returns an error with the reason if a CUDA driver would reject this launch shape.
    pub(super) fn check(&self) -> Result<(), String> {
        let [_, y, z] = self.grid;
        if self.grid.contains(&0) {
            return Err(format!("grid is {:?}, expected at least one block in each dimension", self.grid));
        }
        if self.grid[0] > i32::MAX as u32 || y > 65_535 || z > 65_535 {
            return Err(format!("grid is {:?}, expected at most [2147483647, 65535, 65535]", self.grid));
        }
        if self.block.contains(&0) {
            return Err(format!("block is {:?}, expected at least one thread in each dimension", self.block));
        }
        if self.threads() > 1_024 {
            return Err(format!(
                "block is {:?}, {} threads, expected at most 1024",
                self.block,
                self.threads()
            ));
        }
        if self.block[2] > 64 {
            return Err(format!("block is {:?}, expected at most 64 in z", self.block));
        }
        if self.shared_bytes > MAX_SHARED_BYTES {
            return Err(format!(
                "{} bytes of shared memory, expected at most {MAX_SHARED_BYTES}",
                self.shared_bytes
            ));
        }
        Ok(())
    }
}
