//! Tables of the kernels of an op on queries and keys. `heads.rs` selects a kernel from them for each call.

/// The kernels of one op. A lane is one thread of a warp.
pub(crate) struct HeadKernels {
    /// Kernels for heads of 64 or 128 columns. A lane has one vec4 in each half of a head, so it has both
    /// columns of every rotated pair.
    pub halves: Option<HalfSplitKernels>,
    /// Kernel for heads of 128 columns with their own angles. It reads the angles once for queries and
    /// keys.
    pub qk: Option<&'static str>,
    /// Kernels that keep a row in the registers of a block, in the order of row length, shortest first.
    pub block: &'static [BlockKernel],
    /// Kernel for heads of any length. It reads the angles once for queries and keys.
    pub rotated: Option<&'static str>,
    /// Kernels that process a head with the lanes of a warp, in the order of head length, shortest first.
    pub warp: &'static [WarpKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads per row of the `rows` kernel.
    pub team: u32,
    /// Whether a row is staged in shared memory between two passes.
    pub stages: bool,
}

/// The kernels in which a lane has one vec4 in each half of a head.
pub(crate) struct HalfSplitKernels {
    /// Names of the kernels for 64 and for 128 columns. `None` if the norm requires a different summation
    /// order.
    pub names: [Option<&'static str>; 2],
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
    /// Minimum number of columns per warp if there are enough tokens.
    pub min_columns: u32,
}

/// A kernel that keeps rows in registers.
pub(crate) struct BlockKernel {
    pub name: &'static str,
    /// Tiles of the longest row that the kernel supports.
    pub tiles: u32,
}

/// A kernel that processes a head with the lanes of a warp.
pub(crate) struct WarpKernel {
    pub name: &'static str,
    /// Maximum columns per head.
    pub dim: i64,
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
}
