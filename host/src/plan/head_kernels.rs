//! The kernels of an op on queries and keys, as data: which one takes a call is decided in `heads.rs`.

/// The kernels of an op.
pub(crate) struct Kernels {
    /// Of heads of 64 and of 128 columns whose halves are in one lane.
    pub halves: Option<HalvesKernels>,
    /// Of heads of 128 columns with angles of their own, which are read once for queries and keys.
    pub paired: Option<&'static str>,
    /// Of rows in registers, the shortest first.
    pub held: &'static [HeldKernel],
    /// Of heads of any length whose angles are read once for queries and keys.
    pub turned: Option<&'static str>,
    /// Those of heads in lanes, the shortest first.
    pub lanes: &'static [LanesKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads that share a row in `rows`.
    pub team: u32,
    /// Does a row wait in shared memory between two passes?
    pub stages: bool,
}

/// The kernels of heads in halves.
pub(crate) struct HalvesKernels {
    /// Of 64 columns, if the norm is summed so in them, and of 128.
    pub names: [Option<&'static str>; 2],
    /// Heads that a lane has parts of at a time.
    pub together: u32,
    /// Columns of a warp's share, at least, where there are tokens enough.
    pub least: u32,
}

/// A kernel of rows in registers.
pub(crate) struct HeldKernel {
    pub name: &'static str,
    /// Tiles of the longest row.
    pub tiles: u32,
}

/// A kernel of heads in lanes.
pub(crate) struct LanesKernel {
    pub name: &'static str,
    /// The most columns of a head.
    pub dim: i64,
    /// Heads that a lane has parts of at a time.
    pub together: u32,
}
