//! Grid, block, shared memory and arguments of a launch.

/// Maximum bytes of shared memory per block without an opt-in.
pub const DEFAULT_SMEM_BYTES: u32 = 48 << 10;
/// The maximum size of a grid in y and in z.
pub const MAX_GRID_YZ: u32 = 65_535;

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory. A launch ignores this value if the kernel declares its shared memory
    /// with `@shared` in [`entry!`](cuda_std::entry!).
    pub shared_bytes: u32,
    /// Shared memory carveout in percent of the maximum of an SM. A smaller value leaves more memory for L1.
    /// With `None`, the driver chooses the carveout.
    pub carveout: Option<u32>,
}

impl Launch {
    /// Returns a launch shape with the given grid and block, without dynamic shared memory.
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, carveout: None }
    }
}

/// Makes the arguments for [`Kernels::launch`](crate::Kernels::launch), which launches a kernel by name. Each
/// argument is a variable of the type that the kernel declares.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$($crate::Argument::of(&$arg)),*] };
}
