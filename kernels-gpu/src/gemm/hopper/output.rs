//! Writes the result of a tile. Each warp copies its rows to shared memory, and TMA stores them.
use core::mem::replace;

use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_groups, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_store_matrices};
use cuda_std::{thread, warp};

use super::layout::{ROW_BYTES, RingLayout};
use super::params::{GemmParams, SLICE, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{Bias, FragmentPlace, plus_bias, select};
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

/// Starts to load the epilogue's operands of a tile into L2. `[row, column]` is the place in `y` of the first
/// sum of the warpgroup. Each thread prefetches a row.
///
/// # Safety
/// The epilogue belongs to this launch.
#[inline(always)]
pub(crate) unsafe fn prefetch<K: GemmKernel>([row, column]: [u32; 2], epilogue: K::Epilogue) {
    let thread = own_thread() % 128;
    if thread < K::TILE.blocks * WGMMA_ROWS {
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        unsafe { epilogue.prefetch([row + thread, column], K::COLUMNS) };
    }
}

/// Applies the epilogue to the sums of consumer warpgroup `group`, and starts to store the results.
/// `[row, column]` is the place in `y` of the first sum of the warpgroup.
///
/// # Safety
/// `p`, the epilogue and the tensor map `y` belong to this launch. The whole warp calls this function.
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
    const { assert!(K::COLUMNS.is_multiple_of(SLICE)) };
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
            // SAFETY: the caller guarantees that `p` and the epilogue belong to this launch. Only this warp
            // accesses its staging buffers, and TMA has read this one.
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
            // SAFETY: `y` is the tensor map of the result. `publish_shared` and the warp barrier have made
            // the warp's writes to shared memory visible to TMA.
            unsafe { y.store(buffer, [column, row, 0, 0]) };
            close_stores();
        }
        part = counter::<K>(part + 1);
    }
}

/// Returns `number`, the counter of a loop over fragments. If the loop must not be unrolled, the number
/// passes through an optimization barrier.
#[inline(always)]
fn counter<K: GemmKernel>(number: u32) -> u32 {
    if K::Epilogue::UNROLLED { number } else { thread::opaque([number, 0])[0] }
}

/// Returns the offset in a staging buffer at which a lane stores its row of `stmatrix`, for the 16 columns
/// with number `pair`. A matrix has 8 columns, a chunk of 16 bytes per row. In the 128-byte swizzle, the
/// position of a chunk in its row is the chunk index XOR the row index modulo 8.
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
    /// The row and the column in `y` of the warp's first sum.
    first: [u32; 2],
    p: &'a GemmParams,
    epilogue: K::Epilogue,
}

impl<K: GemmKernel> Fragments<'_, K> {
    /// Number of staging buffers that the results fill: slices of the columns of each block of 64 rows.
    const PARTS: u32 = K::COLUMNS / SLICE * K::TILE.blocks;
    /// Fragments per block of 64 rows.
    const PER_BLOCK: u32 = K::TILE.columns / 16;

    /// Whether the operands of a fragment are loaded before the results of the previous fragment are
    /// computed. A ping-pong kernel does not need it: while one warpgroup waits for operands, the other one
    /// multiplies. It also lacks the registers.
    const AHEAD: bool = !K::TILE.ping_pong && !K::Epilogue::UNROLLED;

    /// Returns the row and the column in `y` of the warp's first sum of the 16 columns with number `pair`, in
    /// the slice and block with number `part`. `pair` may be the number after the last one.
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

    /// Loads the epilogue's operands of a fragment.
    ///
    /// # Safety
    /// The epilogue belongs to this launch.
    #[inline(always)]
    unsafe fn fetch(&self, part: u32, pair: u32) -> <K::Epilogue as Epilogue>::Fetched {
        let mut at = self.at(part, pair);
        if K::TILE.ping_pong {
            // The optimization barrier makes the compiler compute the addresses of the row again for each
            // fragment. These kernels lack the registers to keep them.
            [at.row, at.column] = thread::opaque([at.row, at.column]);
        }
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        unsafe { self.epilogue.fetch(at) }
    }

    /// Returns the results of a fragment, rounded and in pairs.
    ///
    /// # Safety
    /// `p` belongs to this launch.
    #[inline(always)]
    unsafe fn results(&self, part: u32, pair: u32, operands: <K::Epilogue as Epilogue>::Fetched) -> [u32; 4] {
        let (column, starts) = (self.at(part, pair).column, self.epilogue.starts());
        let bias = Bias { base: self.p.bias, columns: self.p.columns, pairs: true };
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
