//! The target classes of cross-entropy. Each row of logits has one target, an integer that usually is the
//! index of the correct class.
use cuda_std::mem::{load_u32, load_u32x2};
use cuda_std::prelude::*;

/// The target tensor. This struct is a field of kernel arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// Address of the targets: one integer per row, contiguous in memory.
    pub base: *const u8,
    /// A row with this target does not contribute to the loss, as with `ignore_index` of torch's
    /// `cross_entropy`.
    pub ignore_index: i64,
    /// Bytes per integer: 8 or 4.
    pub bytes: u32,
}

/// What a target means: a class, a row to ignore, or an invalid value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The column of the correct class.
    Column(u32),
    /// The row is ignored: it does not contribute to the loss.
    Ignored,
    /// The target is neither a valid class nor the mark of an ignored row. The results of the row are NaN.
    Outside,
}

impl Targets {
    /// Loads the target of row `row`.
    ///
    /// # Safety
    /// `row` is below the number of targets.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, row: u64) -> i64 {
        let at = self.base.wrapping_add((row * u64::from(self.bytes)) as usize);
        // SAFETY: the caller guarantees that `row` has a target.
        unsafe {
            if self.bytes == 8 {
                let [low, high] = load_u32x2(at, Load::ReadOnly);
                i64::from(high as i32) << 32 | i64::from(low)
            } else {
                i64::from(load_u32(at, Load::ReadOnly) as i32)
            }
        }
    }

    /// Returns what `target` means for a row of `cols` classes.
    #[inline(always)]
    pub(crate) fn class(&self, target: i64, cols: u32) -> Class {
        match target {
            ignored if ignored == self.ignore_index => Class::Ignored,
            column if (column as u64) < u64::from(cols) => Class::Column(column as u32),
            _ => Class::Outside,
        }
    }
}

/// Kernel argument: the parameters of the cross-entropy kernels and their backward kernels, without the
/// tensors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyParams {
    /// Number of rows.
    pub rows: u64,
    /// Number of rows per run. Within a run, consecutive rows are `Rows::inner_stride` elements apart.
    /// Consecutive runs start `Rows::outer_stride` elements apart. 0 means that all rows are in one run.
    pub inner: u32,
    /// Columns per row: the number of classes.
    pub cols: u32,
    /// 1 if all operands allow 16-byte accesses (`Rows::is_vector`), otherwise 0.
    pub vector: u32,
    /// Label smoothing: the fraction of the target probability that is distributed equally over all classes,
    /// as in torch's `cross_entropy`.
    pub label_smoothing: f32,
    /// Factor `z_loss` of the term `z_loss * lse^2`, which the kernel adds to the loss of a row. `lse` is the
    /// log-sum-exp of the row's logits.
    pub z_loss: f32,
}
