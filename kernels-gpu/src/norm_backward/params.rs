//! Arguments of the kernels for the gradients of a norm.
use cuda_std::prelude::*;

/// Sizes and options of a launch: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormBackwardParams {
    /// Rows per group. A group is the set of rows that share a weight. The grid has `[splits, groups]`
    /// blocks.
    pub rows: u64,
    /// Number of rows per run in memory. Rows of a run are [`Rows::inner_stride`] elements apart, and runs
    /// are [`Rows::outer_stride`] elements apart. 0: all rows are in one run.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Value added to the mean of squares (RMSNorm) or to the variance (LayerNorm).
    pub eps: f32,
    /// Value added to the weight.
    pub weight_offset: f32,
    /// 1 if all operands allow 16-byte accesses (`Rows::is_vector`), otherwise 0.
    pub vector: u32,
    /// 1 if a row fits in the registers of its team, the threads that share the row. Otherwise 0.
    pub in_registers: u32,
}

impl NormBackwardParams {
    /// Returns the bytes of shared memory of a block for kernels that process one row at a time. A reduction
    /// needs two f32 per warp, in each of two buffers. If a row stays in registers, LayerNorm (`layer`) also
    /// keeps the sums for the bias in shared memory. If several rows then share a block, shared memory is
    /// also used to add the sums of these rows.
    pub const fn shared_bytes<T>(&self, [team, teams, _]: [u32; 3], layer: bool) -> u32 {
        let (threads, lanes) = (team * teams, 16 / size_of::<T>() as u32);
        let packs = if self.vector != 0 { 4 } else { 1 };
        let kept = self.in_registers != 0;
        let dbias = if kept && layer { threads * packs * lanes * 4 } else { 0 };
        let several = threads > if team > 32 { team } else { 32 };
        let over_teams = if kept && several { threads * lanes * 4 } else { 0 };
        threads / 32 * 16 + dbias + over_teams
    }

    /// Returns the bytes of shared memory of a block for kernels with two or three packs (16-byte vectors)
    /// per thread: eight f32 per warp, in two buffers.
    pub const fn multi_row_shared_bytes([team, teams, _]: [u32; 3]) -> u32 {
        team * teams / 32 * 64
    }
}

/// Kernel argument: the operands that have one row for each row that the launch processes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The gradient of the norm's output.
    pub dy: Rows,
    /// The norm's input.
    pub x: Rows,
    /// A gradient that reaches the input on a second path, such as a residual connection. The kernel adds
    /// this gradient to `dx`. If the base is null, there is no such gradient.
    pub dsum: Rows,
    /// The output: the gradient of the norm's input.
    pub dx: Rows,
}

/// Kernel argument: the workspaces for partial sums, with one row of f32 per block. A workspace is null if
/// its gradient is not needed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialSums {
    /// Partial sums of the gradient of the weight, `dy * d * r`. [`norm_backward`](super) defines `d` and
    /// `r`.
    pub dweight: *mut u8,
    /// Partial sums of `dy`, the gradient of the bias.
    pub dbias: *mut u8,
}
