//! Types that list the kernels of `rope` or `qk_norm_rope`. `heads.rs` selects one of the kernels for each
//! call.

/// The kernels of one op on queries and keys. A launch tries the kernels in the order of the fields.
pub(crate) struct HeadKernels {
    /// Kernels for heads of 64 or 128 columns. A thread has four columns in the first half of a head and the
    /// corresponding four in the second half. It thus has both columns of every pair that `rotate_half`
    /// combines.
    pub halves: Option<HalfSplitKernels>,
    /// Kernel for heads of 128 columns if each head has its own rotation angles. A thread loads the angles
    /// once and uses them for a query head and a key head.
    pub qk: Option<&'static str>,
    /// Kernels in which a block keeps a row in registers, ordered by maximum row length. A row is all heads
    /// of a token, or one long head.
    pub block: &'static [BlockKernel],
    /// Kernel for heads of any length, without a norm. A thread loads the angles once and uses them for
    /// queries and keys.
    pub rotated: Option<&'static str>,
    /// Kernels in which threads of one warp process a head, ordered by maximum head length.
    pub warp: &'static [WarpKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads per row of the `rows` kernel.
    pub team: u32,
    /// Whether a row is staged in shared memory between two passes.
    pub stages: bool,
}

/// Kernels in which a thread has four columns in each half of a head.
pub(crate) struct HalfSplitKernels {
    /// Names of the kernels for 64 and for 128 columns. A name is `None` if the kernel would add squares in a
    /// different order than the norm that the op reproduces.
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

/// A kernel in which threads of one warp process a head.
pub(crate) struct WarpKernel {
    pub name: &'static str,
    /// Maximum columns per head.
    pub dim: i64,
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
}
