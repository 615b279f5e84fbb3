//! Writes a tile of the result `y`, for kernels that compute `yᵀ`. A warpgroup copies its tile to shared
//! memory, transposed, and TMA stores it to `y`. Without an epilogue, `stmatrix` transposes the rounded
//! results. An epilogue needs the f32 accumulators in the order of `y`, so each warp first transposes its
//! accumulators in shared memory.
use cuda_std::elem::Elem;
use cuda_std::hopper::barrier::Named;
use cuda_std::hopper::tensor_map::{close_stores, wait_for_groups};
use cuda_std::hopper::{
    publish_shared, shared_load_pair, shared_store, shared_store_matrices, shared_store_transposed,
};
use cuda_std::mem::{self, Load};
use cuda_std::{thread, warp};

use super::layout::ROW_BYTES;
use super::output::TileOutput;
use super::params::{GemmParams, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{ColumnBias, FragmentPlace, plus_bias, select};
use crate::layout::own_thread::own_thread;

/// Bytes of a row of the buffer in which a warp transposes a fragment: 16 f32 values. The gap of 16 bytes to
/// the next row avoids bank conflicts.
const SCRATCH_ROW_BYTES: u32 = 80;
/// Bytes of the buffer in which a warp transposes a fragment.
const SCRATCH_BYTES: u32 = 16 * SCRATCH_ROW_BYTES;

/// Applies the bias and the epilogue to the accumulators `sums` of a consumer warpgroup, and starts to store
/// the results with TMA. The kernel computes `yᵀ`, so rows of its tile are columns of `y`. The first row of
/// the tile is column `column` of `y`, and the first column of the tile is row `row` of `y`.
///
/// # Safety
/// The fields of `output` belong to this launch. The whole warpgroup calls this function.
#[inline(always)]
pub(crate) unsafe fn store<K: GemmKernel>(sums: &[K::Sums], output: &TileOutput<K>, [column, row]: [u32; 2]) {
    const {
        assert!(!K::TILE.transposed || K::TILE.ping_pong);
        let scratch = if is_rounded_first::<K>() { 0 } else { 4 * SCRATCH_BYTES };
        let needed = K::TILE.columns * ROW_BYTES + scratch;
        assert!(!K::TILE.transposed || needed <= 4 * K::TILE.staging * STAGING_BYTES);
    }
    let TileOutput { layout, group, y, p, .. } = *output;
    let buffer = layout.staging(group * 4);
    let warpgroup = Named::<128>(3 + group);
    let is_first = own_thread() % 128 == 0;
    for (block, sums) in sums.iter().enumerate() {
        let column = column + block as u32 * WGMMA_ROWS;
        // SAFETY: the code writes this warpgroup's staging buffer, which no other warpgroup accesses. Before
        // that, the first thread waits until TMA has read the buffer's previous contents. The last barrier
        // makes the writes of all threads visible to the thread that starts the TMA store. The whole
        // warpgroup executes this code. The caller guarantees that `output` belongs to this launch.
        unsafe {
            if is_first {
                wait_for_groups::<0>();
            }
            warpgroup.sync();
            if is_rounded_first::<K>() {
                transpose::<K>(sums, buffer, column, p);
            } else {
                apply::<K>(sums, buffer, [row, column], output);
            }
            publish_shared();
            warpgroup.sync();
            if is_first {
                y.store(buffer, [column, row, 0, 0]);
                close_stores();
            }
        }
    }
}

/// Returns whether the kernel rounds its results before it transposes them. Otherwise, it transposes the f32
/// accumulators, because the epilogue needs them in the order of `y`.
const fn is_rounded_first<K: GemmKernel>() -> bool {
    K::Epilogue::UNROLLED && !K::Epilogue::ROW_SCALES
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

/// Applies the bias and the epilogue to the accumulators of 64 rows of a tile of `yᵀ`, and writes the results
/// to `buffer` in shared memory, in the order of `y`. `[row, column]` are the coordinates in `y` of the first
/// accumulator.
///
/// # Safety
/// `output` belongs to this launch. The whole warpgroup calls this function, and barriers separate its writes
/// to the buffer from other accesses.
#[inline(always)]
unsafe fn apply<K: GemmKernel>(sums: &K::Sums, buffer: u32, [row, column]: [u32; 2], output: &TileOutput<K>) {
    let TileOutput { p, epilogue, .. } = *output;
    let thread = own_thread() % 128;
    let (warp, lane) = (thread / 32, thread % 32);
    let scratch = buffer + K::TILE.columns * ROW_BYTES + warp * SCRATCH_BYTES;
    let fragment = |pair: usize| {
        let sums = sums.as_ref().get(8 * pair..8 * pair + 8);
        sums.map_or([0.0; 8], |sums| core::array::from_fn(|i| sums[i]))
    };
    let bias = ColumnBias { base: p.bias, columns: p.columns, pairs: true };
    let mut pair = 0;
    while pair < K::TILE.columns / 16 {
        let at = FragmentPlace {
            row: row + 16 * pair + lane / 4,
            column: column + warp * WARP_ROWS + lane % 4 * 2,
        };
        let own_row = 16 * pair + lane % 16;
        let chunk = (2 * warp + lane / 16) ^ (own_row % 8);
        // SAFETY: the functions access the operands of the product and of the epilogue, and the warpgroup's
        // buffer in shared memory. The caller guarantees that `output` belongs to this launch, and guarantees
        // barriers between this write and other accesses. Only this warp accesses its part `scratch`.
        unsafe {
            let (operand, fetched) = (epilogue.operand(at), epilogue.fetch(at));
            let bias = bias.fetch::<K::Elem>(0, at.column);
            let sums = epilogue.scale(transposed(select(pair, fragment), scratch, lane), at, 0);
            let sums = plus_bias(sums, bias);
            let words = epilogue.apply::<K::Elem>([sums, [0.0; 8]], operand, fetched);
            shared_store_matrices(buffer + own_row * ROW_BYTES + chunk * 16, words);
        }
        // The optimization barrier prevents loop unrolling. The code of an epilogue is long.
        [pair, _] = thread::opaque([pair + 1, 0]);
    }
}

/// Returns the transpose of a fragment of a warp's accumulators, 16 rows and 16 columns. `scratch` is the
/// address of a buffer in shared memory.
///
/// # Safety
/// Only this warp accesses the [`SCRATCH_BYTES`] bytes at `scratch`. The whole warp calls this function.
#[inline(always)]
unsafe fn transposed(sums: [f32; 8], scratch: u32, lane: u32) -> [f32; 8] {
    let [row, column] = [lane / 4, lane % 4 * 2];
    // The compiler unrolls `map`, but not a loop over an iterator.
    let _: [(); 8] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: u32| {
        let [row, column] = [row + i / 2 % 2 * 8, column + i % 2 + i / 4 * 8];
        // SAFETY: the store writes an element of the buffer, which only this warp accesses.
        unsafe { shared_store(scratch + column * SCRATCH_ROW_BYTES + 4 * row, sums[i as usize]) };
    });
    warp::sync(warp::ALL);
    let pairs = [0, 1, 2, 3].map(|i| {
        let [row, column] = [row + i % 2 * 8, column + i / 2 * 8];
        // SAFETY: the load reads two elements of the buffer. The warp barrier separates it from the stores.
        unsafe { shared_load_pair(scratch + row * SCRATCH_ROW_BYTES + 4 * column) }
    });
    warp::sync(warp::ALL);
    core::array::from_fn(|i| pairs[i / 2][i % 2])
}
