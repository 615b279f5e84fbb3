//! Sums over the rows that blocks left in a workspace: the second half of a gradient that belongs to columns.
use cuda_std::mem::{load_u32, store_u16, store_u32};
use cuda_std::prelude::*;

/// A workspace of f32 and the vectors that its rows add up to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnSums {
    /// `[groups, splits, cols]`.
    pub from: *const u8,
    /// `[groups, cols]`, of the element type or f32; null: nothing is to be done.
    pub to: *mut u8,
    /// Is `to` in f32? 0 or 1.
    pub single: u32,
}

/// The shape of the workspaces of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ColumnSumsParams {
    /// Rows of a group: one is written for each.
    pub splits: u32,
    /// Columns of a row.
    pub cols: u32,
}

/// Columns of a block, a thread each.
pub const COLUMNS: u32 = 32;
/// Threads of a column, which take its rows by turns.
pub const STRIPES: u32 = 16;
/// Rows of a thread whose loads are in flight together: with its column's others those that 264 blocks leave,
/// two for each multiprocessor of an H100.
const STEP: usize = 17;

/// Block `[x, y, z]` adds up the `x`-th 32 columns of group `y`, of the first or the second workspace by `z`.
///
/// # Safety The host checked the shapes above; blocks are `COLUMNS` times `STRIPES` threads, with as many f32
/// of shared memory.
#[inline(always)]
pub(crate) unsafe fn column_sums<T: Elem>(sums: [ColumnSums; 2], p: ColumnSumsParams) {
    thread::launch_bounds::<{ COLUMNS * STRIPES }, 2>();
    let ([slab, group, which], [lane, stripe, _]) = (thread::block_index(), thread::index());
    let sums = if which == 0 { sums[0] } else { sums[1] };
    if sums.to.is_null() {
        return;
    }
    let (group, column) = (u64::from(group), slab * COLUMNS + lane);
    // A thread past the last column adds up that one, and writes nothing.
    let first = group * u64::from(p.splits) * u64::from(p.cols) + u64::from(column.min(p.cols - 1));
    let load = |split: u32| {
        let at = first + u64::from(split.min(p.splits - 1)) * u64::from(p.cols);
        // SAFETY: a row and a column of the workspace, which this kernel does not write.
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
    // SAFETY: a slot for each thread, written by it before the barrier and read after.
    unsafe { stripes.set(stripe * COLUMNS + lane, sum) };
    block::sync();
    if stripe != 0 || column >= p.cols {
        return;
    }
    let mut total = 0.0;
    for stripe in 0..STRIPES {
        // SAFETY: as above.
        total += unsafe { stripes.get(stripe * COLUMNS + lane) };
    }
    let at = (group * u64::from(p.cols) + u64::from(column)) as usize;
    // SAFETY: an element of `to`, of the type that `single` says, written by this thread alone.
    unsafe {
        if sums.single != 0 || size_of::<T>() == 4 {
            store_u32(sums.to.cast::<f32>().wrapping_add(at).cast(), total.to_bits(), Store::Default)
        } else {
            let bits = T::from_f32(total).to_bits() as u16;
            store_u16(sums.to.cast::<u16>().wrapping_add(at).cast(), bits, Store::Default)
        }
    }
}
