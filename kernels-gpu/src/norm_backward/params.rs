//! Arguments of the kernels for the gradients of a norm.
use cuda_std::prelude::*;

/// Sizes and options of a launch: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormBackwardParams {
    /// Rows per group. The rows of a group share a weight. The grid has `[splits, groups]` blocks.
    pub rows: u64,
    /// Number of consecutive rows that are [`Rows::inner_stride`] apart, before a step of
    /// [`Rows::outer_stride`]. 0: all rows are `inner_stride` apart.
    pub inner: u32,
    /// Number of columns.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Value added to the mean of squares (RMSNorm) or to the variance (LayerNorm).
    pub eps: f32,
    /// Value added to the weight.
    pub weight_offset: f32,
    /// 1 if all operands are `Rows::is_vector` (16-byte accesses), else 0.
    pub vector: u32,
    /// 1 if a row fits in the registers of its team, the threads that share the row. Else 0.
    pub in_registers: u32,
}

/// The operands with one row per row of the launch: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The gradient of the norm's output.
    pub dy: Rows,
    /// The norm's input.
    pub x: Rows,
    /// A gradient that reaches the input on another path, such as the residual. It is added to `dx`. A null
    /// base means that there is none.
    pub dsum: Rows,
    /// The output: the gradient of the norm's input.
    pub dx: Rows,
}

/// The workspaces for partial sums, one row of f32 per block: a kernel argument. Null if a gradient is not
/// needed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialSums {
    /// Partial sums of `dy * d * r`, the gradient of the weight.
    pub dweight: *mut u8,
    /// Partial sums of `dy`, the gradient of the bias.
    pub dbias: *mut u8,
}
