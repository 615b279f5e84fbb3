//! Writes a tile of the result `y`, for kernels that compute `yᵀ`. These kernels have no epilogue. A
//! warpgroup copies its tile to shared memory, transposed, and TMA stores it to `y`.
use cuda_std::elem::Elem;
use cuda_std::hopper::barrier::Named;
use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_groups};
use cuda_std::hopper::{publish_shared, shared_store_transposed};
use cuda_std::mem::{self, Load};

use super::layout::{ROW_BYTES, RingLayout};
use super::params::{GemmParams, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::layout::own_thread::own_thread;

/// Adds the bias to the accumulators `sums` of consumer warpgroup `group`, and starts to store the results
/// with TMA. The kernel computes `yᵀ`, so rows of its tile are columns of `y`. The first row of the tile is
/// column `column` of `y`, and the first column of the tile is row `row` of `y`.
///
/// # Safety
/// `p` and the tensor map `y` belong to this launch. The whole warpgroup calls this function.
#[inline(always)]
pub(crate) unsafe fn store<K: GemmKernel>(
    sums: &[K::Sums],
    layout: RingLayout<K>,
    group: u32,
    [column, row]: [u32; 2],
    y: Map,
    p: &GemmParams,
) {
    const {
        assert!(!K::TILE.transposed || K::TILE.ping_pong);
        assert!(!K::TILE.transposed || K::TILE.columns * ROW_BYTES <= 4 * K::TILE.staging * STAGING_BYTES);
    }
    let buffer = layout.staging(group * 4);
    let warpgroup = Named::<128>(3 + group);
    let is_first = own_thread() % 128 == 0;
    for (block, sums) in sums.iter().enumerate() {
        let column = column + block as u32 * WGMMA_ROWS;
        // SAFETY: the code writes this warpgroup's staging buffer, which no other warpgroup accesses. Before
        // that, the first thread waits until TMA has read the buffer's previous contents. The last barrier
        // makes the writes of all threads visible to the thread that starts the TMA store. The whole
        // warpgroup executes this code. The caller guarantees that `p` and the tensor map belong to this
        // launch.
        unsafe {
            if is_first {
                wait_for_groups::<0>();
            }
            warpgroup.sync();
            transpose::<K>(sums, buffer, column, p);
            publish_shared();
            warpgroup.sync();
            if is_first {
                y.store(buffer, [column, row, 0, 0]);
                close_stores();
            }
        }
    }
}

/// Adds the bias to the accumulators of 64 rows of a tile of `yᵀ`, and rounds the results. Writes the
/// transposed results to `buffer` in shared memory, from which TMA stores them. The first of the 64 rows is
/// column `column` of `y`.
///
/// # Safety
/// `p` belongs to this launch. The whole warpgroup calls this function, and barriers separate its writes to
/// the buffer from other accesses.
#[inline(always)]
unsafe fn transpose<K: GemmKernel>(sums: &K::Sums, buffer: u32, column: u32, p: &GemmParams) {
    let thread = own_thread() % 128;
    let (warp, lane) = (thread / 32, thread % 32);
    let own = column + warp * WARP_ROWS + lane / 4;
    // SAFETY: the caller guarantees that `p` belongs to this launch.
    let bias = [0, 8].map(|offset| unsafe { bias::<K>(own + offset, p) });
    for pair in 0..K::TILE.columns / 16 {
        let sums = &sums.as_ref()[8 * pair as usize..];
        let words = K::Elem::pack(core::array::from_fn(|i| sums[i] + bias[i % 4 / 2]));
        // `own_row` is the row of the buffer whose address this lane passes to `stmatrix`. `chunk` is the
        // position of its 16 bytes in this row, which are eight columns of `y`. In the 128-byte swizzle, the
        // position of a chunk is the chunk index XOR the row index modulo 8.
        let own_row = 16 * pair + lane / 16 * 8 + lane % 8;
        let chunk = (2 * warp + lane / 8 % 2) ^ (own_row % 8);
        // SAFETY: the store writes 16 bytes of the warpgroup's buffer in shared memory. The caller guarantees
        // barriers between this write and other accesses.
        unsafe { shared_store_transposed(buffer + own_row * ROW_BYTES + chunk * 16, words) };
    }
}

/// Returns the bias of column `column` of `y`. Returns 0 if there is no bias or if `y` does not have this
/// column.
///
/// # Safety
/// `p` belongs to this launch.
#[inline(always)]
unsafe fn bias<K: GemmKernel>(column: u32, p: &GemmParams) -> f32 {
    if p.bias.is_null() || column >= p.columns {
        return 0.0;
    }
    // SAFETY: the bias has one element per column.
    let bits = unsafe { mem::load_u16(p.bias.wrapping_add(2 * column as usize), Load::ReadOnly) };
    K::Elem::from_bits(bits.into()).to_f32()
}
