//! What is launched.
use core::ffi::c_void;

/// Most bytes of shared memory that a block may ask for: what compute capability 9.0 has.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// Which neighbouring launches of the same stream a launch of a kernel may overlap with (programmatic dependent launch, from
/// sm_90 on). The executor runs one launch after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// The launch may start before the previous one ends. It does not execute `griddepcontrol.launch_dependents`, so the next
    /// launch starts after it ends. An H200 starts 0.83 blocks in a nanosecond of a kernel that executes it, and about 1 of
    /// others.
    Before,
    /// As `Before`, without the barrier that keeps `ld.global.nc` after the wait. For kernels without such loads, whose blocks
    /// are so short that the barrier is measurable.
    Plain,
    /// The launch may start before the previous one ends, and lets the next one start.
    Both,
}

/// A kernel that the executor can launch; [`entry!`](crate::entry!) makes these.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The name under which both devices know it, such as `rms_norm_bf16`.
    pub name: &'static str,
    /// How its launches on a GPU overlap.
    pub overlap: Overlap,
    /// Reads the arguments, as `cuLaunchKernel`'s `kernelParams` a list of pointers to the values, and runs
    /// the body of one thread.
    pub run: unsafe fn(&[*const c_void]),
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks, `[x, y, z]`.
    pub grid: [u32; 3],
    /// Threads of a block, `[x, y, z]`.
    pub block: [u32; 3],
    /// Launch-sized shared memory of a block.
    pub shared_bytes: u32,
}

impl Launch {
    /// In 128 bits, which hold the product of any three sizes.
    pub(super) fn threads(&self) -> u128 {
        self.block.iter().map(|&n| u128::from(n)).product()
    }

    /// Why a driver would refuse this shape.
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
