//! Types that list the kernels of `rope` or `qk_norm_rope`. `heads.rs` selects one of the kernels for each
//! call.

use kernels_gpu::heads::params::{HeadNormArg, HeadParams, HeadsOperand, PositionedRotary, Rotary};

use crate::Result;
use crate::library::LaunchSite;

/// The kernel argument for no norm.
pub(crate) const NO_NORM: HeadNormArg = HeadNormArg { eps: 0.0, fused: 0, before_weight: 0, round: 0 };

/// A function that launches a kernel on queries and keys.
pub(crate) type HeadKernel =
    unsafe fn(LaunchSite, HeadsOperand, HeadsOperand, Rotary, HeadParams) -> Result<()>;

/// A function that launches a kernel on queries and keys. The kernel reads the positions of the tokens.
pub(crate) type PositionedKernel =
    unsafe fn(LaunchSite, HeadsOperand, HeadsOperand, PositionedRotary, HeadParams) -> Result<()>;

/// The kernels of one op on queries and keys. A call uses the first kernel, in the order of the fields, that
/// supports its tensors. `K` is [`HeadKernel`] or [`PositionedKernel`].
pub(crate) struct HeadKernels<K: 'static> {
    /// Kernels for heads of 64 or 128 columns. A thread processes four columns in the first half of a head,
    /// and the corresponding four columns in the second half. RoPE in the `rotate_half` layout rotates pairs
    /// of such columns, so each thread has both columns of its pairs.
    pub halves: Option<HalfSplitKernels<K>>,
    /// Kernel for heads of 128 columns if each head has its own rotation angles. A thread loads the angles of
    /// a head once, and uses them for the query head and the key head with this index.
    pub qk: Option<K>,
    /// Kernels in which a block keeps a row in registers. The kernels are ordered by maximum row length. A
    /// row consists of all heads of a token, or of one long head.
    pub block: &'static [BlockKernel<K>],
    /// Kernel for heads of any length, without a norm. A thread loads the angles once, and uses these angles
    /// for queries and keys.
    pub rotated: Option<K>,
    /// Kernels in which the threads of one warp process a head. The kernels are ordered by maximum head
    /// length.
    pub warp: &'static [WarpKernel<K>],
    /// Two kernels for heads of any length. The first kernel accesses four elements at a time. The second
    /// kernel accesses one element at a time, and supports all tensors.
    pub general: [K; 2],
    /// How the `general` kernels divide the heads among threads.
    pub split: HeadSplit,
}

/// How the general kernels of an op divide the heads among threads.
pub(crate) enum HeadSplit {
    /// A team of threads processes a row.
    Rows {
        /// Threads per row.
        team: u32,
        /// Whether a row is staged in shared memory between two passes.
        stages: bool,
    },
    /// A thread processes some columns of a query head and of a key head.
    Columns,
}

/// Kernels for heads of 64 or 128 columns, in which a thread processes four columns in each half of a head.
pub(crate) struct HalfSplitKernels<K> {
    /// Two kernels: the first for 64 columns, the second for 128 columns. To reproduce the results of a
    /// PyTorch norm module, a kernel must add the squares in the same order as the PyTorch module. An entry
    /// is `None` if the kernel for this number of columns would use a different order.
    pub kernels: [Option<K>; 2],
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
    /// Minimum number of columns per warp if there are enough tokens.
    pub min_columns: u32,
}

/// A kernel that keeps rows in the registers of a block.
pub(crate) struct BlockKernel<K> {
    pub kernel: K,
    /// Maximum row length that the kernel supports, in tiles.
    pub tiles: u32,
}

/// A kernel in which threads of one warp process a head.
pub(crate) struct WarpKernel<K> {
    pub kernel: K,
    /// Maximum columns per head.
    pub dim: i64,
    /// Number of heads whose columns a lane processes in one step.
    pub together: u32,
}
