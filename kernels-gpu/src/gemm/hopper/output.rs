//! Writes a tile of the result of a matrix product. Each warp copies its rows to shared memory, from which
//! TMA stores them to global memory.
use core::mem::replace;

use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_groups, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_store_matrices};
use cuda_std::{thread, warp};

use super::layout::{ROW_BYTES, RingLayout};
use super::params::{GemmParams, SLICE, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{ColumnBias, FragmentPlace, plus_bias, select};
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

    /// Waits until TMA has read the previous contents of the next staging buffer (shared memory for results).
    /// Returns the number of this buffer among the warp's staging buffers.
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

/// Starts to load the epilogue's operands for a tile into L2. `[row, column]` are the coordinates in `y` of
/// the warpgroup's first element. Each thread prefetches one row.
///
/// # Safety
/// The pointers in `epilogue` are valid during this launch.
#[inline(always)]
pub(crate) unsafe fn prefetch<K: GemmKernel>([row, column]: [u32; 2], epilogue: K::Epilogue) {
    let thread = own_thread() % 128;
    if thread < K::TILE.blocks * WGMMA_ROWS {
        // SAFETY: the caller guarantees that the pointers in `epilogue` are valid.
        unsafe { epilogue.prefetch([row + thread, column], K::COLUMNS) };
    }
}

/// Applies the epilogue to the accumulators `sums` of consumer warpgroup `group`, and starts to store the
/// results with TMA. `[row, column]` are the coordinates in `y` of the warpgroup's first element.
///
/// # Safety
/// `p`, the argument of the epilogue and the tensor map `y` belong to this launch. The whole warp calls this
/// function.
#[inline(always)]
pub(crate) unsafe fn store<K: GemmKernel>(
    sums: &[K::Sums],
    layout: RingLayout<K>,
    group: u32,
    [row, column]: [u32; 2],
    y: Map,
    p: &GemmParams,
    epilogue: K::Epilogue,
    stores: &mut Stores,
) {
    const { assert!(K::COLUMNS.is_multiple_of(SLICE) || K::TILE.transposed) };
    let thread = own_thread();
    let (warp, lane) = (thread % 128 / 32, thread % 32);
    let buffers = layout.staging(group * 4 + warp);
    let fragments = Fragments::<K> { sums, lane, first: [row + warp * WARP_ROWS, column], p, epilogue };
    // SAFETY: the caller guarantees that the epilogue belongs to this launch.
    let mut ahead = unsafe { fragments.fetch(0, 0) };
    let mut part = 0;
    while part < Fragments::<K>::PARTS {
        let buffer = buffers + stores.take::<K>() * STAGING_BYTES;
        let mut pair = 0;
        while pair < SLICE / 16 {
            // SAFETY: the loads read operands of the epilogue. The caller guarantees that `p` and the
            // argument of the epilogue belong to this launch. The store writes a staging buffer of this warp,
            // which no other warp accesses, and whose previous contents TMA has read.
            unsafe {
                let operands = fragments.fetch(part, pair + u32::from(Fragments::<K>::AHEAD));
                let operands = if Fragments::<K>::AHEAD { replace(&mut ahead, operands) } else { operands };
                let words = fragments.results(part, pair, operands);
                shared_store_matrices(buffer + chunk_offset(lane, pair), words);
            }
            pair = counter::<K>(pair + 1);
        }
        publish_shared();
        warp::sync(u32::MAX);
        if lane == 0 {
            let [row, column] = fragments.place(part, 0);
            // SAFETY: the TMA store reads this warp's staging buffer, and writes the tensor of `y`, which is
            // the result. `publish_shared` and the warp barrier have made the warp's writes to shared memory
            // visible to TMA.
            unsafe { y.store(buffer, [column, row, 0, 0]) };
            close_stores();
        }
        part = counter::<K>(part + 1);
    }
}

/// Returns `number`, the counter of a loop over fragments (parts of a thread's accumulators). If the loop
/// must not be unrolled, the number passes through an optimization barrier, so that the compiler does not
/// know its value.
#[inline(always)]
fn counter<K: GemmKernel>(number: u32) -> u32 {
    if K::Epilogue::UNROLLED { number } else { thread::opaque([number, 0])[0] }
}

/// Returns an offset in a staging buffer (shared memory for results): the row whose address this lane passes
/// to `stmatrix`. The instruction stores the 16 columns with number `pair`, as two matrices of 8 columns. A
/// row of a matrix is a chunk of 16 bytes. In the 128-byte swizzle, the position of a chunk in its row is the
/// chunk index XOR the row index modulo 8.
#[inline(always)]
fn chunk_offset(lane: u32, pair: u32) -> u32 {
    let (row, chunk) = (lane % WARP_ROWS, lane / WARP_ROWS);
    row * ROW_BYTES + ((2 * pair + chunk) ^ (row % 8)) * 16
}

/// The sums of a thread, in fragments.
#[derive(Clone, Copy)]
struct Fragments<'a, K: GemmKernel> {
    sums: &'a [K::Sums],
    lane: u32,
    /// The row and the column in `y` of the warp's first accumulator.
    first: [u32; 2],
    p: &'a GemmParams,
    epilogue: K::Epilogue,
}

impl<K: GemmKernel> Fragments<'_, K> {
    /// Number of times that a warp fills a staging buffer (shared memory) with results, which TMA then
    /// stores. Each time, the buffer gets 64 columns of the warp's rows in one block of 64 rows.
    const PARTS: u32 = K::COLUMNS / SLICE * K::TILE.blocks;
    /// Fragments per block of 64 rows.
    const PER_BLOCK: u32 = K::TILE.columns / 16;

    /// Whether the epilogue's operands for a fragment (eight accumulators) are loaded before the results of
    /// the previous fragment are computed. This hides the latency of the loads. Ping-pong kernels do not
    /// prefetch, because one warpgroup multiplies while the other one waits for its operands. They also have
    /// no registers for it.
    const AHEAD: bool = !K::TILE.ping_pong && !K::Epilogue::UNROLLED;

    /// Returns the coordinates in `y` of the warp's first element in 16 columns of a part. A part is one
    /// slice of 64 columns in one block of 64 rows. `part` is the number of the part, and `pair` is the
    /// number of the 16 columns in it. `pair` may also be one more than the last number, which means the
    /// first columns of the next part.
    #[inline(always)]
    fn place(&self, part: u32, pair: u32) -> [u32; 2] {
        let part = part + pair / (SLICE / 16);
        let column = part / K::TILE.blocks * SLICE + 16 * (pair % (SLICE / 16));
        [self.first[0] + part % K::TILE.blocks * WGMMA_ROWS, self.first[1] + column]
    }

    /// Returns the place of the thread's first sum of a fragment.
    #[inline(always)]
    fn at(&self, part: u32, pair: u32) -> FragmentPlace {
        let [row, column] = self.place(part, pair);
        FragmentPlace { row: row + self.lane / 4, column: column + self.lane % 4 * 2 }
    }

    /// Loads the epilogue's operands for a fragment (the thread's accumulators in 16 columns).
    ///
    /// # Safety
    /// The argument of the epilogue belongs to this launch.
    #[inline(always)]
    unsafe fn fetch(&self, part: u32, pair: u32) -> <K::Epilogue as Epilogue>::Fetched {
        let mut at = self.at(part, pair);
        if K::TILE.ping_pong {
            // The optimization barrier makes the compiler compute the addresses again for each fragment
            // (eight accumulators). These kernels have no free registers for the addresses.
            [at.row, at.column] = thread::opaque([at.row, at.column]);
        }
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        unsafe { self.epilogue.fetch(at) }
    }

    /// Returns the results of a fragment (the thread's accumulators in 16 columns), rounded to 16 bits, with
    /// two results per word.
    ///
    /// # Safety
    /// `p` belongs to this launch.
    #[inline(always)]
    unsafe fn results(&self, part: u32, pair: u32, operands: <K::Epilogue as Epilogue>::Fetched) -> [u32; 4] {
        let (column, starts) = (self.at(part, pair).column, self.epilogue.starts());
        let bias = ColumnBias { base: self.p.bias, columns: self.p.columns, pairs: true };
        let index = part % K::TILE.blocks * Self::PER_BLOCK + part / K::TILE.blocks * (SLICE / 16) + pair;
        // SAFETY: the caller guarantees that `p` belongs to this launch.
        let bias = starts.map(|start| unsafe { bias.fetch::<K::Elem>(start, column) });
        let first = plus_bias(self.sums(index), bias[0]);
        let second = match K::Epilogue::HALVES {
            true => plus_bias(self.sums(index + Self::PER_BLOCK / 2), bias[1]),
            false => [0.0; 8],
        };
        self.epilogue.apply::<K::Elem>([first, second], operands)
    }

    /// Returns fragment number `index` of all blocks.
    #[inline(always)]
    fn sums(&self, index: u32) -> [f32; 8] {
        let fragment = |index: usize| {
            let [block, number] = [index / Self::PER_BLOCK as usize, index % Self::PER_BLOCK as usize];
            let fragment =
                self.sums.get(block).and_then(|sums| sums.as_ref().get(8 * number..8 * number + 8));
            fragment.map_or([0.0; 8], |sums| core::array::from_fn(|i| sums[i]))
        };
        if K::Epilogue::UNROLLED { fragment(index as usize) } else { select(index, fragment) }
    }
}
