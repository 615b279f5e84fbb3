//! From accumulators to rows in global memory: by the threads that have them, or by way of shared memory and
//! the copy engine, which leaves out what is not in the tensor.
use cuda_std::elem::Elem;
use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_store_matrices};
use cuda_std::mem::{Store, store_u32x4};
use cuda_std::warp;

use super::layout::{Layout, PART_ROW};
use super::own_thread::own_thread;
use super::params::{GROUP_ROWS, HopperParams, PART, WARP_ROWS};
use super::schedule::QueryTile;
use super::shape::Shape;
use super::softmax::{OnlineSoftmax, VEC4};

const LN_2: f32 = core::f32::consts::LN_2;

/// Divides by the sums and stores the rows, and the logarithms of the sums if they are wanted. They leave by
/// way of shared memory, from where the copy engine takes each warp's while the next tile begins, or straight
/// from registers. `rows`: the tile, the warp group, and the first of the thread's two rows.
///
/// # Safety
/// `p` and the map of the result are those of the launch, the whole warp is here.
#[inline(always)]
pub(crate) unsafe fn store<K: Shape>(
    out: &[f32],
    softmax: &OnlineSoftmax,
    (tile, group, row): (QueryTile, u32, u32),
    layout: Layout<K>,
    map: Map,
    p: &HopperParams,
) {
    // SAFETY: as the caller promises; the warp's rows are its own.
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

/// What the rows are multiplied by; stores the logarithms of their sums, if they are wanted. `row` is the
/// first of the thread's two.
///
/// # Safety
/// `p` is that of the launch, the whole warp is here.
#[inline(always)]
unsafe fn finish_rows(softmax: &OnlineSoftmax, tile: QueryTile, row: u32, p: &HopperParams) -> [f32; 2] {
    let sums = softmax.sums();
    for r in 0..2 {
        let row = row + 8 * r as u32;
        if row < p.queries && own_thread() % VEC4 == 0 && !p.lse.is_null() {
            let head = u64::from(tile.batch * p.heads.get() + tile.head);
            let lse = (softmax.max[r] * softmax.scale + cuda_std::math::lg2(sums[r])) * LN_2;
            let lse = if sums[r] == 0.0 { f32::NEG_INFINITY } else { lse };
            // SAFETY: `lse` has a number for each query of each head.
            unsafe { p.lse.add((head * u64::from(p.queries) + u64::from(row)) as usize).write(lse) };
        }
    }
    // A row that saw no key is zeros.
    sums.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum })
}

/// Stores the warp's rows, `out` times `inverse`: by way of `shared_address` in shared memory, to `row`, head and
/// batch of the tensor.
///
/// # Safety
/// The map is that of the result, its box the rows of a warp and the columns of a part; `shared_address` is the
/// warp's, in the layout of the queries; the whole warp is here.
#[inline(always)]
unsafe fn store_staged<K: Shape>(
    out: &[f32],
    inverse: [f32; 2],
    shared_address: u32,
    [row, head, batch]: [u32; 3],
    map: Map,
) {
    let lane = warp::lane();
    // What the last tile left here may not have gone yet.
    wait_for_place();
    let (own_row, chunk) = (lane % 16, lane / 16);
    let to = shared_address + own_row * PART_ROW;
    for block in 0..out.len() / 8 {
        let words = K::Elem::pack(core::array::from_fn(|i| out[8 * block + i] * inverse[i / 2 % 2]));
        // 16 columns are two chunks of 16 bytes; the swizzle exchanges the chunks of a row by its number.
        let (part, first) = (block as u32 / 4, block as u32 % 4 * 2);
        let at = to + part * Layout::<K>::QUERY_PART + ((first + chunk) ^ (own_row % 8)) * 16;
        // SAFETY: as the caller promises.
        unsafe { shared_store_matrices(at, words) };
    }
    publish_shared();
    warp::sync(u32::MAX);
    if lane == 0 {
        for part in 0..Layout::<K>::PARTS {
            // SAFETY: as the caller promises.
            unsafe {
                map.store(shared_address + part * Layout::<K>::QUERY_PART, [part * PART, row, head, batch])
            };
        }
        close_stores();
    }
}

/// Stores the thread's part of its two rows, of which `row` is the first, `out` times `inverse`.
///
/// # Safety
/// `p` is that of the launch, the whole warp is here.
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
            // Registers of this row and of 32 columns: 4 pairs, each 8 columns further on.
            let at = |i: usize| 16 * block + i / 2 * 4 + 2 * r + i % 2;
            let words = transpose(T::pack(core::array::from_fn(|i| out[at(i)] * inverse[r])), vec4);
            let column = 32 * block as u32 + 8 * vec4;
            if row < p.queries && column < p.dim {
                // SAFETY: the row has these 8 columns; rows are aligned to 16 bytes, as the host checked.
                unsafe { store_u32x4(to.wrapping_add(2 * column as usize), words, Store::Default) }
            }
        }
    }
}

/// Word `j` of lane `i` of four goes to word `i` of lane `j`.
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

/// Waits until the warp's place in shared memory may be written again.
#[inline(always)]
pub(crate) fn wait_for_place() {
    if warp::lane() == 0 {
        wait_for_stores();
    }
    warp::sync(u32::MAX);
}
