//! The classes that a loss is asked for: one integer a row.
use cuda_std::mem::{load_u32, load_u32x2};
use cuda_std::prelude::*;

/// The targets: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// One integer for each row, without gaps.
    pub base: *const u8,
    /// The target of rows that count for nothing.
    pub ignore_index: i64,
    /// Bytes of an integer: 8 or 4.
    pub bytes: u32,
}

/// What a target says of its row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The column that should have been the largest.
    Column(u32),
    /// The row counts for nothing.
    Ignored,
    /// There is no such class: the row's results are NaN.
    Outside,
}

impl Targets {
    /// That of `row`, as it stands there.
    ///
    /// # Safety
    /// There are more than `row` integers.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, row: u64) -> i64 {
        let at = self.base.wrapping_add((row * u64::from(self.bytes)) as usize);
        // SAFETY: as the caller promises.
        unsafe {
            if self.bytes == 8 {
                let [low, high] = load_u32x2(at, Load::ReadOnly);
                i64::from(high as i32) << 32 | i64::from(low)
            } else {
                i64::from(load_u32(at, Load::ReadOnly) as i32)
            }
        }
    }

    /// What a target says of a row of `cols` classes.
    #[inline(always)]
    pub(crate) fn class(&self, target: i64, cols: u32) -> Class {
        match target {
            ignored if ignored == self.ignore_index => Class::Ignored,
            column if (column as u64) < u64::from(cols) => Class::Column(column as u32),
            _ => Class::Outside,
        }
    }
}

/// What the kernels of the loss and of its gradient need to know beside their operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyParams {
    /// Rows of the operands.
    pub rows: u64,
    /// Rows in a group of the outer stride; 0: the inner stride is the only one.
    pub inner: u32,
    /// Columns of a row: classes.
    pub cols: u32,
    /// Are all operands `Rows::is_vector`? 0 or 1.
    pub vector: u32,
    /// The share of the target that all classes have in equal parts.
    pub label_smoothing: f32,
    /// The weight of `lse^2` in the loss.
    pub z_loss: f32,
}
