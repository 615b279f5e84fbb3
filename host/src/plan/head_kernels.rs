//! Types that list the kernels of `rope` or `qk_norm_rope`. `heads.rs` selects one of the kernels for each
//! call.

use kernels_gpu::heads::params::{HeadParams, HeadsOperand, Rotary};

use crate::Result;
use crate::library::LaunchSite;

/// A function that launches a kernel on queries and keys.
pub(crate) type HeadKernel =
    unsafe fn(LaunchSite, HeadsOperand, HeadsOperand, Rotary, HeadParams) -> Result<()>;

/// The kernels of one op on queries and keys. A call uses the first kernel, in the order of the fields, that
/// supports its tensors.
pub(crate) struct HeadKernels {
    /// Kernels for heads of 64 or 128 columns. A thread processes four columns in the first half of a head,
    /// and the corresponding four columns in the second half. RoPE in the `rotate_half` layout rotates pairs
    /// of such columns, so each thread has both columns of its pairs.
    pub halves: Option<HalfSplitKernels>,
    /// Kernel for heads of 128 columns if each head has its own rotation angles. A thread loads the angles of
    /// a head once, and uses them for the query head and the key head with this index.
    pub qk: Option<HeadKernel>,
    /// Kernels in which a block keeps a row in registers. The kernels are ordered by maximum row length. A
    /// row consists of all heads of a token, or of one long head.
    pub block: &'static [BlockKernel],
    /// Kernel for heads of any length, without a norm. A thread loads the angles once, and uses these angles
    /// for queries and keys.
    pub rotated: Option<HeadKernel>,
    /// Kernels in which the threads of one warp process a head. The kernels are ordered by maximum head
    /// length.
    pub warp: &'static [WarpKernel],
    pub rows: HeadKernel,
    pub any: HeadKernel,
    /// Threads per row of the `rows` kernel.
    pub team: u32,
    /// Whether a row is staged in shared memory between two passes.
    pub stages: bool,
}

/// Kernels for heads of 64 or 128 columns, in which a thread processes four columns in each half of a head.
pub(crate) struct HalfSplitKernels {
    /// Two kernels: the first for 64 columns, the second for 128 columns. To reproduce the results of a
    /// PyTorch norm module, a kernel must add the squares in the same order as the PyTorch module. An entry
    /// is `None` if the kernel for this number of columns would use a different order.
    pub kernels: [Option<HeadKernel>; 2],
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
    /// Minimum number of columns per warp if there are enough tokens.
    pub min_columns: u32,
}

/// A kernel that keeps rows in the registers of a block.
pub(crate) struct BlockKernel {
    pub kernel: HeadKernel,
    /// Maximum row length that the kernel supports, in tiles.
    pub tiles: u32,
}

/// A kernel in which threads of one warp process a head.
pub(crate) struct WarpKernel {
    pub kernel: HeadKernel,
    /// Maximum columns per head.
    pub dim: i64,
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
}
