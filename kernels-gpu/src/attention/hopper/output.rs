//! Writes the attention result to global memory. A kernel stores the result either directly from registers,
//! or with TMA from shared memory. TMA skips rows and columns that are outside the tensor.
use cuda_std::elem::Elem;
use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_store_matrices};
use cuda_std::mem::{Store, store_u32x4};
use cuda_std::warp;

use super::layout::{Layout, PART_ROW};
use super::params::{GROUP_ROWS, HopperParams, PART, WARP_ROWS};
use super::schedule::QueryTile;
use super::shape::Shape;
use super::softmax::{OnlineSoftmax, VEC4};
use crate::layout::own_thread::own_thread;

/// Factor that converts base-2 logarithms to natural logarithms.
const LN_2: f32 = core::f32::consts::LN_2;

/// Divides the accumulator by the row sums and stores the result. Also stores the log-sum-exp of each row,
/// unless the pointer `lse` is null.
///
/// If `K::STAGED` is true, the warp copies the result to shared memory, and TMA stores it while the warp
/// starts the next query tile. Otherwise, each thread stores its values from registers. A thread has elements
/// of two accumulator rows, which belong to the queries `row` and `row + 8`.
///
/// # Safety
/// `p` and the tensor map of the result were created for this launch. The whole warp calls this function.
#[inline(always)]
pub(crate) unsafe fn store<K: Shape>(
    out: &[f32],
    softmax: &OnlineSoftmax,
    (tile, group, row): (QueryTile, u32, u32),
    layout: Layout<K>,
    map: Map,
    p: &HopperParams,
) {
    // SAFETY: the stores write this warp's rows of the staging region in shared memory, and rows of the
    // result in global memory. No other warp accesses this warp's rows. The caller guarantees that `p` and
    // the tensor map belong to this launch, and the host checked that the result is writable.
    unsafe {
        let inverse = finish_rows(softmax, tile, row, p);
        if K::STAGED {
            let first = group * GROUP_ROWS + own_thread() % 128 / 32 * WARP_ROWS;
            let at = [tile.row + first, tile.head, tile.batch];
            store_staged::<K>(out, inverse, layout.result() + first * PART_ROW, at, map);
        } else {
            store_directly::<K::Elem>(out, inverse, tile, row, p);
        }
    }
}

/// Returns the reciprocals of the row sums of the thread's two rows, or 0 for a row without visible keys.
/// Stores the log-sum-exp of these rows, unless the pointer `lse` is null. The two rows are the queries `row`
/// and `row + 8`.
///
/// # Safety
/// `p` is the argument of the running kernel, so its pointers are valid. The whole warp calls this function.
#[inline(always)]
unsafe fn finish_rows(softmax: &OnlineSoftmax, tile: QueryTile, row: u32, p: &HopperParams) -> [f32; 2] {
    let sums = softmax.sums();
    for r in 0..2 {
        let row = row + 8 * r as u32;
        if row < p.queries && own_thread().is_multiple_of(VEC4) && !p.lse.is_null() {
            let head = u64::from(tile.batch * p.heads.get() + tile.head);
            let lse = (softmax.max[r] * softmax.scale + cuda_std::math::lg2(sums[r])) * LN_2;
            let lse = if sums[r] == 0.0 { f32::NEG_INFINITY } else { lse };
            // SAFETY: the store writes the element of `lse` for query `row`. The element exists, because the
            // host checked that `lse` has one element per head and query, and `row` is less than the number
            // of queries.
            unsafe { p.lse.add((head * u64::from(p.queries) + u64::from(row)) as usize).write(lse) };
        }
    }
    // The result of a row without visible keys is zero.
    sums.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum })
}

/// Multiplies the warp's rows by `inverse`, and copies them to shared memory at `shared_address`. Then starts
/// a TMA store of the rows to global memory. `[row, head, batch]` are the coordinates of the warp's first row
/// in the result tensor.
///
/// # Safety
/// `map` is the tensor map of the result. The TMA box of `map` has the rows of a warp and the columns of a
/// column slice (64 columns). `shared_address` is the address of this warp's rows in the staging region,
/// which has the same layout as the query tile. No other warp accesses these rows. The whole warp calls this
/// function.
#[inline(always)]
unsafe fn store_staged<K: Shape>(
    out: &[f32],
    inverse: [f32; 2],
    shared_address: u32,
    [row, head, batch]: [u32; 3],
    map: Map,
) {
    let lane = warp::lane();
    // TMA may still be reading the warp's previous result from these rows of shared memory, so wait until TMA
    // has finished.
    wait_for_place();
    let (own_row, chunk) = (lane % 16, lane / 16);
    let to = shared_address + own_row * PART_ROW;
    for block in 0..out.len() / 8 {
        let words = K::Elem::pack(core::array::from_fn(|i| out[8 * block + i] * inverse[i / 2 % 2]));
        // Each iteration writes 16 columns, which are two chunks of 16 bytes per row. In the 128-byte
        // swizzle, the position of a chunk in its row is the chunk index XOR the row index modulo 8.
        let (part, first) = (block as u32 / 4, block as u32 % 4 * 2);
        let at = to + part * Layout::<K>::QUERY_PART + ((first + chunk) ^ (own_row % 8)) * 16;
        // SAFETY: only this warp accesses these rows of shared memory, and TMA has finished reading them.
        unsafe { shared_store_matrices(at, words) };
    }
    publish_shared();
    warp::sync(u32::MAX);
    if lane == 0 {
        for part in 0..Layout::<K>::PARTS {
            // SAFETY: the TMA store reads the warp's rows in shared memory, and writes the tensor of `map`,
            // which is the result. `publish_shared` and the warp barrier have made the warp's writes visible
            // to TMA.
            unsafe {
                map.store(shared_address + part * Layout::<K>::QUERY_PART, [part * PART, row, head, batch])
            };
        }
        close_stores();
    }
}

/// Multiplies the thread's two rows by `inverse`, and stores their values from registers to global memory.
/// The two rows are the queries `row` and `row + 8`.
///
/// # Safety
/// `p` is the argument of the running kernel, so its pointers are valid. The whole warp calls this function.
#[inline(always)]
unsafe fn store_directly<T: Elem<F32Vec = [f32; 8]>>(
    out: &[f32],
    inverse: [f32; 2],
    tile: QueryTile,
    row: u32,
    p: &HopperParams,
) {
    let vec4 = own_thread() % VEC4;
    let [batches, queries, heads] = p.out_strides;
    let head = i64::from(tile.batch) * batches + i64::from(tile.head) * heads;
    for r in 0..2 {
        let row = row + 8 * r as u32;
        let to = p.out.wrapping_offset((head + i64::from(row) * queries) as isize);
        for block in 0..out.len() / 16 {
            // Returns the register that contains value number `i` (0 to 7) of this thread in a block of 32
            // columns. In each such block, a thread has eight values of the row: four pairs of adjacent
            // columns. The pairs are 8 columns apart.
            let at = |i: usize| 16 * block + i / 2 * 4 + 2 * r + i % 2;
            let words = transpose(T::pack(core::array::from_fn(|i| out[at(i)] * inverse[r])), vec4);
            let column = 32 * block as u32 + 8 * vec4;
            if row < p.queries && column < p.dim {
                // SAFETY: the store writes the 8 columns from `column` on. They exist, because `dim` is a
                // multiple of 8 and larger than `column`. The host checked that the rows of the output are
                // aligned to 16 bytes.
                unsafe { store_u32x4(to.wrapping_add(2 * column as usize), words, Store::Default) }
            }
        }
    }
}

/// Transposes a 4 x 4 matrix of 32-bit words across four lanes: word `j` of lane `i` moves to word `i` of
/// lane `j`.
#[inline(always)]
fn transpose([a, b, c, d]: [u32; 4], lane: u32) -> [u32; 4] {
    let swap = |low: u32, high: u32, bit: u32| {
        let upper = lane & bit != 0;
        let other = warp::shuffle_xor(u32::MAX, if upper { low } else { high }, bit);
        if upper { (other, high) } else { (low, other) }
    };
    let ((a, b), (c, d)) = (swap(a, b, 1), swap(c, d, 1));
    let ((a, c), (b, d)) = (swap(a, c, 2), swap(b, d, 2));
    [a, b, c, d]
}

/// Waits until TMA has read the warp's previous result from the staging region in shared memory. Then the
/// warp can overwrite its rows of this region.
#[inline(always)]
pub(crate) fn wait_for_place() {
    if warp::lane() == 0 {
        wait_for_stores();
    }
    warp::sync(u32::MAX);
}
