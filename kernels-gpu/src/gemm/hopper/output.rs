//! Writes the result of a tile. Each warp copies its rows to shared memory, and TMA stores them.
use cuda_std::elem::Elem;
use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_groups, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_store_matrices};
use cuda_std::mem::{self, Load, Store};
use cuda_std::warp;

use super::layout::{ROW_BYTES, RingLayout};
use super::params::{GemmParams, SLICE, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::layout::own_thread::own_thread;

/// The staging buffer that a warp fills next.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stores {
    next: u32,
}

impl Stores {
    /// Waits until TMA has read all staging buffers of the warp.
    #[inline(always)]
    pub fn finish(self) {
        if warp::lane() == 0 {
            wait_for_stores();
        }
        warp::sync(u32::MAX);
    }

    /// Returns the offset of the next staging buffer, after TMA has read its previous contents.
    #[inline(always)]
    fn take<K: GemmKernel>(&mut self) -> u32 {
        let double = K::TILE.staging() == 2;
        if warp::lane() == 0 {
            if double { wait_for_groups::<1>() } else { wait_for_groups::<0>() }
        }
        warp::sync(u32::MAX);
        let at = self.next;
        self.next = if double { 1 - at } else { 0 };
        at
    }
}

/// Applies the epilogue to the sums of consumer warpgroup `group`, and starts to store the results.
/// `[row, column]` is the place in `y` of the first sum of the warpgroup.
///
/// # Safety
/// `p` and the tensor map `y` belong to this launch. The whole warp calls this function.
#[inline(always)]
pub(crate) unsafe fn store<K: GemmKernel>(
    sums: &[K::Sums],
    layout: RingLayout<K>,
    group: u32,
    [row, column]: [u32; 2],
    y: Map,
    p: &GemmParams,
    stores: &mut Stores,
) {
    let thread = own_thread();
    let (warp, lane) = (thread % 128 / 32, thread % 32);
    let buffers = layout.staging(group * 4 + warp);
    let (own_row, chunk) = (lane % WARP_ROWS, lane / WARP_ROWS);
    for slice in 0..K::TILE.columns / SLICE {
        let column = column + slice * SLICE;
        for (block, sums) in sums.iter().enumerate() {
            let sums = &sums.as_ref()[(slice * SLICE / 2) as usize..];
            let buffer = buffers + stores.take::<K>() * STAGING_BYTES;
            for pair in 0..SLICE / 16 {
                // SAFETY: the caller guarantees that `p` belongs to this launch.
                let words = unsafe { values::<K>(&sums[8 * pair as usize..], column + 16 * pair, lane, p) };
                // A matrix has 8 columns, a chunk of 16 bytes per row. In the 128-byte swizzle, the
                // position of a chunk in its row is the chunk index XOR the row index modulo 8.
                let chunk = (2 * pair + chunk) ^ (own_row % 8);
                // SAFETY: only this warp accesses its staging buffers, and TMA has read this one.
                unsafe { shared_store_matrices(buffer + own_row * ROW_BYTES + chunk * 16, words) };
            }
            publish_shared();
            warp::sync(u32::MAX);
            if lane == 0 {
                let row = row + block as u32 * WGMMA_ROWS + warp * WARP_ROWS;
                // SAFETY: `y` is the tensor map of the result. `publish_shared` and the warp barrier have
                // made the warp's writes to shared memory visible to TMA.
                unsafe { y.store(buffer, [column, row, 0, 0]) };
                close_stores();
            }
        }
    }
    for pair in K::TILE.columns / SLICE * SLICE / 16..K::TILE.columns / 16 {
        let column = column + 16 * pair;
        for (block, sums) in sums.iter().enumerate() {
            // SAFETY: the caller guarantees that `p` belongs to this launch.
            let words = unsafe { values::<K>(&sums.as_ref()[8 * pair as usize..], column, lane, p) };
            let row = row + block as u32 * WGMMA_ROWS + warp * WARP_ROWS + lane / 4;
            for (i, word) in words.into_iter().enumerate() {
                let (row, column) = (row + i as u32 % 2 * 8, column + i as u32 / 2 * 8 + lane % 4 * 2);
                if row < p.rows && column < p.columns {
                    let to = p.y.wrapping_offset((i64::from(row) * p.y_row_bytes) as isize);
                    // SAFETY: `y` has this row and column, and the number of columns is even.
                    unsafe { mem::store_u32(to.wrapping_add(2 * column as usize), word, Store::Default) }
                }
            }
        }
    }
}

/// Returns the thread's values of 16 columns, from column `column` on, rounded and in pairs. `sums` are the
/// accumulators of these columns.
///
/// # Safety
/// `p` belongs to this launch.
#[inline(always)]
unsafe fn values<K: GemmKernel>(sums: &[f32], column: u32, lane: u32, p: &GemmParams) -> [u32; 4] {
    let first = column + lane % 4 * 2;
    // SAFETY: the caller guarantees that `p` belongs to this launch.
    let bias = [0, 8].map(|offset| unsafe { bias::<K>(first + offset, p) });
    K::Elem::pack(core::array::from_fn(|i| K::Epilogue::apply::<K::Elem>(sums[i] + bias[i / 4][i % 2])))
}

/// Returns the bias of two columns, or zeros if there is no bias or the columns are outside of `y`.
///
/// # Safety
/// `p` belongs to this launch.
#[inline(always)]
unsafe fn bias<K: GemmKernel>(column: u32, p: &GemmParams) -> [f32; 2] {
    if p.bias.is_null() || column >= p.columns {
        return [0.0; 2];
    }
    // SAFETY: the bias has one element per column. The number of columns is even, so both elements exist.
    let word = unsafe { mem::load_u32(p.bias.wrapping_add(2 * column as usize), Load::ReadOnly) };
    [word & 0xffff, word >> 16].map(|bits| K::Elem::from_bits(bits).to_f32())
}
