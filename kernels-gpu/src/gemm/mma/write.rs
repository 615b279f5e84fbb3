//! The epilogue: adds the bias, applies the last step of the product, and writes the tile of the result.
use cuda_std::mem;
use cuda_std::mma::{Chunk, MatrixElem};
use cuda_std::prelude::*;

use super::multiply::Sums;
use super::params::LinearParams;
use super::swizzle::SwizzledRows;
use crate::gemm::epilogue::Epilogue;

/// Writes the results of a warp. `[row, column]` is the place in `y` of the warp's first result. The warp
/// first copies its results to `tile` in shared memory. Each lane can then store 16 contiguous bytes of a
/// row. `CHUNKS` is `2 * N16`, the number of 16-byte chunks per row.
///
/// # Safety
/// `p` belongs to this launch. Only this warp accesses `tile`, which has the rows of the warp.
#[inline(always)]
pub(super) unsafe fn write<
    T: MatrixElem,
    E: Epilogue,
    const M16: usize,
    const N16: usize,
    const CHUNKS: u32,
>(
    sums: &Sums<M16, N16>,
    tile: SwizzledRows<CHUNKS>,
    [row, column]: [u32; 2],
    p: &LinearParams,
) {
    const { assert!(CHUNKS == 2 * N16 as u32) };
    let lane = warp::lane();
    for chunk in 0..CHUNKS {
        // SAFETY: the caller guarantees that `p` belongs to this launch.
        let bias = unsafe { bias::<T>(column + 8 * chunk + lane % 4 * 2, p) };
        for half in 0..2 * M16 {
            let sum = &sums[half / 2][chunk as usize / 2][chunk as usize % 2];
            let [low, high] = [0, 1].map(|i| E::apply::<T>(sum[half % 2 * 2 + i] + bias[i]));
            let index = SwizzledRows::<CHUNKS>::index(8 * half as u32 + lane / 4, chunk);
            // SAFETY: the row is one of the `16 * M16` rows of `tile`, and only this lane writes the word.
            unsafe { tile.set_word(index, lane % 4, T::pair(low, high)) };
        }
    }
    warp::sync(warp::ALL);
    let (own_row, chunk) = (lane / CHUNKS, lane % CHUNKS);
    let (column, pass_rows) = (column + 8 * chunk, warp::SIZE / CHUNKS);
    for pass in 0..16 * M16 as u32 / pass_rows {
        let own_row = pass * pass_rows + own_row;
        if row + own_row < p.x.rows && column < p.w.rows {
            let offset = u64::from(row + own_row) * p.y_row_bytes + 2 * u64::from(column);
            // SAFETY: the comparisons exclude rows and columns outside of `y`. The number of columns is a
            // multiple of 8, so all eight elements exist. The warp barrier separates the writes to `tile`
            // from this read.
            unsafe {
                let index = SwizzledRows::<CHUNKS>::index(own_row, chunk);
                store(p.y.wrapping_add(offset as usize), tile.get(index), p.vector_y != 0);
            }
        }
    }
}

/// Returns the bias of two columns, or zeros if there is no bias or the columns are outside of `y`.
///
/// # Safety
/// `p` belongs to this launch.
#[inline(always)]
unsafe fn bias<T: MatrixElem>(column: u32, p: &LinearParams) -> [f32; 2] {
    if p.bias.is_null() || column >= p.w.rows {
        return [0.0; 2];
    }
    [0, 1].map(|i| {
        // SAFETY: the bias has one element per column. The number of columns is even, so both elements exist.
        let bits = unsafe { mem::load_u16(p.bias.wrapping_add(2 * (column + i) as usize), Load::ReadOnly) };
        T::from_bits(bits.into()).to_f32()
    })
}

/// Stores eight elements at `to`. If `vector` is true, the function uses one 16-byte store.
///
/// # Safety
/// The eight elements at `to` are writable. If `vector` is true, `to` is aligned to 16 bytes.
#[inline(always)]
unsafe fn store(to: *mut u8, Chunk(words): Chunk, vector: bool) {
    if vector {
        // SAFETY: the caller passes an address of 16 writable, aligned bytes.
        return unsafe { mem::store_u32x4(to, words, Store::Default) };
    }
    for at in 0..8 {
        let bits = (words[at / 2] >> (16 * (at % 2))) as u16;
        // SAFETY: the caller passes the address of eight writable elements.
        unsafe { mem::store_u16(to.wrapping_add(2 * at), bits, Store::Default) };
    }
}
