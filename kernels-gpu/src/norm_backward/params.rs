//! Arguments of the kernels that compute the gradients of RMSNorm and LayerNorm.
use cuda_std::prelude::*;

/// Kernel argument: the sizes and options of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormBackwardParams {
    /// Rows per group. A group is the set of rows that share a weight. The grid has `[splits, groups]`
    /// blocks: `splits` blocks process each group.
    pub rows: u64,
    /// Number of rows per run. Within a run, consecutive rows are [`Rows::inner_stride`] elements apart.
    /// Consecutive runs start [`Rows::outer_stride`] elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
    /// The value `1 / cols`.
    pub inv_cols: f32,
    /// Value added to the mean of squares (RMSNorm) or to the variance (LayerNorm).
    pub eps: f32,
    /// Value added to the weight.
    pub weight_offset: f32,
    /// 1 if all operands allow 16-byte accesses (`Rows::is_vector`), otherwise 0.
    pub vector: u32,
    /// 1 if each row stays in the registers of its team (the threads that share the row), otherwise 0.
    pub in_registers: u32,
}

impl NormBackwardParams {
    /// Returns the bytes of shared memory per block, for kernels in which each team (threads that share a
    /// row) processes one row at a time. `layer` is true for LayerNorm. Shared memory has up to three
    /// regions:
    ///
    /// - The reductions use two buffers, each with two f32 per warp.
    /// - If rows stay in registers and `layer` is true, a region contains the partial sums of the bias
    ///   gradient.
    /// - If rows stay in registers and the teams of a block are in different warps, a region serves to add
    ///   their partial sums.
    pub const fn shared_bytes<T>(&self, [team, teams, _]: [u32; 3], layer: bool) -> u32 {
        let (threads, lanes) = (team * teams, 16 / size_of::<T>() as u32);
        let packs = if self.vector != 0 { 4 } else { 1 };
        let kept = self.in_registers != 0;
        let dbias = if kept && layer { threads * packs * lanes * 4 } else { 0 };
        let several = threads > if team > 32 { team } else { 32 };
        let over_teams = if kept && several { threads * lanes * 4 } else { 0 };
        threads / 32 * 16 + dbias + over_teams
    }

    /// Returns the bytes of shared memory per block for the LayerNorm kernels that process one or two rows at
    /// a time. Shared memory contains two buffers for reductions, each with eight f32 per warp.
    pub const fn multi_row_shared_bytes([team, teams, _]: [u32; 3]) -> u32 {
        team * teams / 32 * 64
    }
}

/// Kernel argument: the tensors that have one row for each row of the norm's input.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The gradient of the norm's output.
    pub dy: Rows,
    /// The norm's input.
    pub x: Rows,
    /// A second gradient of the norm's input, for example from a residual connection. The kernel adds it to
    /// `dx`. A null base pointer means that there is no second gradient.
    pub dsum: Rows,
    /// The output: the gradient of the norm's input.
    pub dx: Rows,
}

/// Kernel argument: pointers to the workspaces for partial sums. A workspace has one row of f32 per block. A
/// pointer is null if the launch need not compute the corresponding gradient.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialSums {
    /// Workspace for the gradient of the weight: partial sums of `dy * d * r`, where `d * r` is the
    /// normalized row.
    pub dweight: *mut u8,
    /// Workspace for the gradient of the bias: partial sums of `dy`.
    pub dbias: *mut u8,
}
