//! The kernels of an op on queries and keys, as data: which one takes a call is decided in `heads.rs`.

/// The kernels of an op.
pub(crate) struct HeadKernels {
    /// Of heads of 64 and of 128 columns whose halves are in one lane.
    pub halves: Option<HalfSplitKernels>,
    /// Of heads of 128 columns with angles of their own, which are read once for queries and keys.
    pub qk: Option<&'static str>,
    /// Of rows in registers, the shortest first.
    pub block: &'static [BlockKernel],
    /// Of heads of any length whose angles are read once for queries and keys.
    pub rotated: Option<&'static str>,
    /// Those of heads in lanes, the shortest first.
    pub warp: &'static [WarpKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads that share a row in `rows`.
    pub team: u32,
    /// Does a row wait in shared memory between two passes?
    pub stages: bool,
}

/// The kernels of heads in halves.
pub(crate) struct HalfSplitKernels {
    /// Of 64 columns, if the norm is summed so in them, and of 128.
    pub names: [Option<&'static str>; 2],
    /// Heads that a lane has parts of at a time.
    pub together: u32,
    /// Columns of a warp's share, at least, where there are tokens enough.
    pub min_columns: u32,
}

/// A kernel of rows in registers.
pub(crate) struct BlockKernel {
    pub name: &'static str,
    /// Tiles of the longest row.
    pub tiles: u32,
}

/// A kernel of heads in lanes.
pub(crate) struct WarpKernel {
    pub name: &'static str,
    /// The most columns of a head.
    pub dim: i64,
    /// Heads that a lane has parts of at a time.
    pub together: u32,
}
