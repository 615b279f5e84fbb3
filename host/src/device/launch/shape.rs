//! Grid, block, shared memory and arguments of a launch.

/// Maximum bytes of shared memory per block without an opt-in.
pub(crate) const DEFAULT_SMEM_BYTES: u32 = 48 << 10;
/// The maximum size of a grid in y and in z.
pub(crate) const MAX_GRID_YZ: u32 = 65_535;

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory. oxiwarp sets the limit of its own kernels only at their first launch.
    /// All launches of such a kernel must therefore use the same value if it is above 48 KiB.
    pub shared_bytes: u32,
    /// Shared memory carveout in percent of the maximum of an SM. A smaller value leaves more memory for L1.
    /// `None` leaves the choice to the driver. All launches of a kernel must use the same value.
    pub carveout: Option<u32>,
}

impl Launch {
    /// Returns a launch with this grid and block, without dynamic shared memory.
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, carveout: None }
    }
}

/// Makes the argument array for [`Kernels::launch`](crate::Kernels::launch): one pointer per variable. The
/// variables must have the types that the kernel declares.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$((&raw const $arg).cast::<std::ffi::c_void>()),*] };
}
pub(crate) use args;
