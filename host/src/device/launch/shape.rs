//! Shape and arguments of a launch.

/// Bytes of shared memory that a block may have without an opt-in.
pub(crate) const DEFAULT_SMEM_BYTES: u32 = 48 << 10;
/// The maximum size of a grid in y and in z.
pub(crate) const MAX_GRID_YZ: u32 = 65_535;

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads in a block: x, y, z.
    pub block: [u32; 3],
    /// Bytes of launch-sized shared memory; above 48 KiB the same in all launches of a kernel.
    pub shared_bytes: u32,
    /// The share of a multiprocessor's memory that should be shared memory, in percent, the rest being L1;
    /// without one the driver decides. The same in all launches of a kernel.
    pub carveout: Option<u32>,
}

impl Launch {
    /// So many blocks of so many threads, in x, y and z, without launch-sized shared memory.
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared_bytes: 0, carveout: None }
    }
}

/// The arguments of a kernel, as [`Kernels::launch`](crate::Kernels::launch) takes them: a pointer to each of
/// these variables, which have the types that the kernel declares.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$((&raw const $arg).cast::<std::ffi::c_void>()),*] };
}
pub(crate) use args;
