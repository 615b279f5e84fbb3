//! What a launch of the gradients of a norm works on.
use cuda_std::prelude::*;

/// What the kernels need to know beside their operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormBackwardParams {
    /// Rows of a group: those that share a weight. The grid has `[splits, groups]` blocks.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Added to the weight.
    pub weight_offset: f32,
    /// Are all operands `Rows::is_vector`? 0 or 1.
    pub vector: u32,
    /// May a row stay in the team's registers? 0 or 1.
    pub in_registers: u32,
}

/// The rows of the launch; those of a weight and of the sums are numbered by the group and by the block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The gradient of the norm's result.
    pub dy: Rows,
    /// The norm's input.
    pub x: Rows,
    /// Added to `dx`: what reaches the input on another way. Its base is null where there is none.
    pub dsum: Rows,
    /// The gradient of the input.
    pub dx: Rows,
}

/// Where the blocks leave their sums, a row of f32 for each block; null where one is not wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartialSums {
    /// Of `dy * d * r`.
    pub dweight: *mut u8,
    /// Of `dy`.
    pub dbias: *mut u8,
}
