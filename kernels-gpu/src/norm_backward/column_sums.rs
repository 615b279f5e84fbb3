//! Adds the rows of a workspace, as the second launch of a backward pass. In the first launch, each block
//! wrote one row of partial sums to the workspace. The totals are gradients with one value per column, such
//! as the gradient of a weight.
use cuda_std::mem::{load_u32, store_u16, store_u32};
use cuda_std::prelude::*;

/// Kernel argument: a workspace of partial sums, and the output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnSums {
    /// The workspace, in f32, with the shape `[groups, splits, cols]`. A group is the set of input rows that
    /// share a weight. For each group, the workspace has `splits` rows of partial sums.
    pub from: *const u8,
    /// The output, with the shape `[groups, cols]`. Its elements are f32 or have the element type of the
    /// kernel. If `to` is null, the kernel does nothing.
    pub to: *mut u8,
    /// 1 if `to` is f32, 0 if `to` has the element type of the kernel.
    pub single: u32,
}

/// Kernel argument: the shape of the workspaces of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnSumsParams {
    /// Number of workspace rows per group. A group is the set of input rows that share a weight. The output
    /// has one row per group.
    pub splits: u32,
    /// Number of columns.
    pub cols: u32,
}

/// Columns per block.
pub const COLUMNS: u32 = 32;
/// Threads per column. Each of these threads adds every `STRIPES`-th workspace row of a group.
pub const STRIPES: u32 = 16;
/// Bytes of shared memory per block. Each thread has one f32.
pub const SHARED_BYTES: u32 = COLUMNS * STRIPES * 4;
/// Number of values of different rows that a thread loads in one step, before it adds them.
///
/// Together, the threads of a column load values of `STRIPES * STEP` (272) rows per step. On an H100 with 132
/// SMs, the launch that writes the partial sums has two blocks per SM. Its 264 blocks write 264 rows, so one
/// step suffices.
const STEP: usize = 17;

/// Adds the rows of two workspaces, separately for each group (set of rows that share a weight). The block
/// with the index `[x, y, z]` adds the rows of group `y` in the workspace `sums[z]`. It adds only 32 columns,
/// from column `32 * x` on.
///
/// # Safety
/// The host checked that `from` and `to` have the shapes of [`ColumnSums`]. A block has `[COLUMNS, STRIPES]`
/// threads, and shared memory for one f32 per thread.
#[inline(always)]
pub(crate) unsafe fn column_sums<T: Elem>(sums: [ColumnSums; 2], p: ColumnSumsParams) {
    thread::launch_bounds::<{ COLUMNS * STRIPES }, 2>();
    let ([slab, group, which], [lane, stripe, _]) = (thread::block_index(), thread::index());
    let sums = if which == 0 { sums[0] } else { sums[1] };
    if sums.to.is_null() {
        return;
    }
    let (group, column) = (u64::from(group), slab * COLUMNS + lane);
    // A thread whose column does not exist loads from the last column instead, so that its load is inside the
    // workspace. Such a thread writes no result.
    let first = group * u64::from(p.splits) * u64::from(p.cols) + u64::from(column.min(p.cols - 1));
    let load = |split: u32| {
        let at = first + u64::from(split.min(p.splits - 1)) * u64::from(p.cols);
        // SAFETY: the load is inside the workspace, because `min` limits row and column. This kernel does not
        // write to the workspace, so no other thread writes the element.
        let value =
            unsafe { load_u32(sums.from.cast::<f32>().wrapping_add(at as usize).cast(), Load::ReadOnly) };
        if split < p.splits { f32::from_bits(value) } else { 0.0 }
    };
    let mut sum = 0.0;
    let mut split = stripe;
    while split < p.splits {
        let values: [f32; STEP] = core::array::from_fn(|i| load(split + i as u32 * STRIPES));
        sum += values.into_iter().reduce(|sum, value| sum + value).unwrap_or(0.0);
        split += STEP as u32 * STRIPES;
    }
    let stripes = SharedMemory::of_launch().take::<f32>(COLUMNS * STRIPES);
    // SAFETY: the store writes this thread's slot of shared memory. No other thread writes it, and all reads
    // come after the barrier.
    unsafe { stripes.set(stripe * COLUMNS + lane, sum) };
    block::sync();
    if stripe != 0 || column >= p.cols {
        return;
    }
    let mut total = 0.0;
    for stripe in 0..STRIPES {
        // SAFETY: every thread wrote its slot before the barrier.
        total += unsafe { stripes.get(stripe * COLUMNS + lane) };
    }
    let at = (group * u64::from(p.cols) + u64::from(column)) as usize;
    // SAFETY: the store writes element `at` of `to`. This element exists, because `column` is below `cols`.
    // No other thread writes this element.
    unsafe {
        if sums.single != 0 || size_of::<T>() == 4 {
            store_u32(sums.to.cast::<f32>().wrapping_add(at).cast(), total.to_bits(), Store::Default)
        } else {
            let bits = T::from_f32(total).to_bits() as u16;
            store_u16(sums.to.cast::<u16>().wrapping_add(at).cast(), bits, Store::Default)
        }
    }
}
