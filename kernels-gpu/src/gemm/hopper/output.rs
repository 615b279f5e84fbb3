//! Writes a tile of the result of a matrix product. Each warp copies its rows to shared memory, from which
//! TMA stores them to global memory.
use core::mem::replace;

use cuda_std::hopper::tensor_map::{Map, close_stores, wait_for_stores};
use cuda_std::hopper::{publish_shared, shared_load_matrices, shared_store_matrices};
use cuda_std::{thread, warp};

use super::layout::{ROW_BYTES, RingLayout, RingPosition};
use super::operand::Operand;
use super::params::{GemmParams, SLICE, STAGING_BYTES, WARP_ROWS, WGMMA_ROWS};
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{ColumnBias, FragmentPlace, bias_pairs, plus_bias, select};
use crate::layout::own_thread::own_thread;

/// The position of a warp in the ring of its staging buffers.
#[derive(Clone, Copy)]
pub(crate) struct Stores {
    next: RingPosition,
}

impl Stores {
    /// The position before the first tile.
    pub const FIRST: Self = Self { next: RingPosition::FIRST };

    /// Waits until TMA has read all staging buffers of the warp.
    #[inline(always)]
    pub fn finish(self) {
        if warp::lane() == 0 {
            wait_for_stores();
        }
        warp::sync(u32::MAX);
    }

    /// Returns the position of the next staging buffer (shared memory for results).
    #[inline(always)]
    fn take<K: GemmKernel>(&mut self) -> RingPosition {
        let next = self.next.next(K::TILE.staging);
        replace(&mut self.next, next)
    }
}

/// Writes the results of the tiles of a consumer warpgroup.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a, K: GemmKernel> {
    pub layout: RingLayout<K>,
    /// The number of the consumer warpgroup.
    pub group: u32,
    /// The tensor map of the result.
    pub y: Map,
    /// The tensor map of the operand of the epilogue. If there is no such operand, no code uses it.
    pub operand: Map,
    pub p: &'a GemmParams,
    pub epilogue: K::Epilogue,
}

impl<K: GemmKernel> Output<'_, K> {
    /// Starts to load the operand of the epilogue for a tile. `[row, column]` is the place in `y` of the
    /// first sum of the warpgroup.
    ///
    /// # Safety
    /// The tensor maps belong to this launch. The whole warp calls this function.
    #[inline(always)]
    pub unsafe fn prepare(&self, place: [u32; 2], stores: &Stores) {
        if K::LOADS_OPERAND {
            // SAFETY: the caller guarantees that the tensor map belongs to this launch. The whole warp
            // executes this code.
            unsafe { self.operand(own_thread(), place).load_first(stores.next) };
        }
    }

    /// Applies the epilogue to the sums, and starts to store the results. `[row, column]` is the place in `y`
    /// of the first sum of the warpgroup.
    ///
    /// # Safety
    /// `p`, the epilogue and the tensor maps belong to this launch. The whole warp calls this function.
    #[inline(always)]
    pub unsafe fn store(&self, sums: &[K::Sums], place: [u32; 2], stores: &mut Stores) {
        const { assert!(K::COLUMNS.is_multiple_of(SLICE) || K::TILE.transposed) };
        let thread = own_thread();
        // The compiler can read the lane from its special register again. Kernels with an operand lack a
        // register to keep it.
        let lane = if K::LOADS_OPERAND { warp::lane() } else { thread % warp::SIZE };
        let operand = self.operand(thread, place);
        let Self { p, epilogue, .. } = *self;
        let buffers = self.layout.staging(operand.warp);
        let fragments = Fragments::<K> { sums, lane, first: operand.first, p, epilogue };
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        let mut ahead = [unsafe { fragments.fetch(0, 0) }; 2];
        if Fragments::<K>::AHEAD == 2 {
            // SAFETY: as above.
            ahead[1] = unsafe { fragments.fetch(0, 1) };
        }
        let mut part = 0;
        while part < K::PARTS {
            let at = stores.take::<K>();
            let buffer = buffers + at.index * STAGING_BYTES;
            // SAFETY: the caller guarantees that `p`, the epilogue and the tensor maps belong to this launch.
            // The whole warp executes this code. `publish_shared` and the warp barrier make the warp's writes
            // to shared memory visible to TMA.
            unsafe {
                operand.wait(at);
                fragments.write(part, buffer, &mut ahead);
                publish_shared();
                warp::sync(u32::MAX);
                if lane == 0 {
                    let [row, column] = part_place::<K>(operand.first, part);
                    self.y.store(buffer, [column, row, 0, 0]);
                    close_stores();
                    operand.load_next(part, at);
                }
            }
            part = counter::<K>(part + 1);
        }
    }

    /// Returns the operand of the epilogue for a tile, for the warp of thread `thread`.
    #[inline(always)]
    fn operand(&self, thread: u32, [row, column]: [u32; 2]) -> Operand<K> {
        let warp = thread % 128 / warp::SIZE;
        let first = [row + warp * WARP_ROWS, column];
        Operand { map: self.operand, layout: self.layout, warp: self.group * 4 + warp, first }
    }
}

/// Returns the row and the column in `y` of the first result of part `part`. A part of a warp's results has
/// the size of a staging buffer. `first` is the place of the warp's first sum.
#[inline(always)]
pub(super) fn part_place<K: GemmKernel>(first: [u32; 2], part: u32) -> [u32; 2] {
    [first[0] + part % K::TILE.blocks * WGMMA_ROWS, first[1] + part / K::TILE.blocks * SLICE]
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

/// A thread's operands of a fragment.
#[derive(Clone, Copy)]
struct Fetched<K: GemmKernel> {
    operands: <K::Epilogue as Epilogue>::Fetched,
    /// The bias, if TMA loads an operand of the epilogue. Other kernels load the bias when they need it.
    bias: [u32; 2],
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
    /// Fragments per block of 64 rows.
    const PER_BLOCK: u32 = K::TILE.columns / 16;

    /// Number of fragments (eight accumulators each) by which the loads of the epilogue's operands are ahead
    /// of the computation. This hides the latency of the loads. Ping-pong kernels without an operand that TMA
    /// loads do not load ahead, because one warpgroup multiplies while the other one waits for its operands.
    /// Kernels with 192 accumulators per thread have no registers for it.
    const AHEAD: u32 = match (K::LOADS_OPERAND, K::TILE.ping_pong) {
        _ if K::Epilogue::UNROLLED => 0,
        (true, _) if K::TILE.columns * K::TILE.blocks <= 256 => 2,
        (false, false) => 1,
        _ => 0,
    };

    /// Returns the coordinates in `y` of the warp's first element in 16 columns of a part. A part is one
    /// slice of 64 columns in one block of 64 rows. `part` is the number of the part, and `pair` is the
    /// number of the 16 columns in it. Numbers after the last one mean columns of the next part.
    #[inline(always)]
    fn place(&self, part: u32, pair: u32) -> [u32; 2] {
        let [row, column] = part_place::<K>(self.first, part + pair / (SLICE / 16));
        [row, column + 16 * (pair % (SLICE / 16))]
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
    unsafe fn fetch(&self, part: u32, pair: u32) -> Fetched<K> {
        let mut at = self.at(part, pair);
        if K::TILE.ping_pong {
            // The optimization barrier makes the compiler compute the addresses again for each fragment
            // (eight accumulators). These kernels have no free registers for the addresses.
            [at.row, at.column] = thread::opaque([at.row, at.column]);
        }
        // SAFETY: the caller guarantees that `p` and the epilogue belong to this launch.
        unsafe {
            let bias = if K::LOADS_OPERAND { self.bias().words(0, at.column) } else { [0; 2] };
            Fetched { operands: self.epilogue.fetch(at), bias }
        }
    }

    /// Returns the bias of the product.
    #[inline(always)]
    fn bias(&self) -> ColumnBias {
        ColumnBias { base: self.p.bias, columns: self.p.columns, pairs: true }
    }

    /// Writes the results of part `part` to the staging buffer `buffer`. `ahead` has the operands of the next
    /// fragments.
    ///
    /// # Safety
    /// `p` and the epilogue belong to this launch. Only this warp accesses the buffer. The whole warp calls
    /// this function.
    #[inline(always)]
    unsafe fn write(&self, part: u32, buffer: u32, ahead: &mut [Fetched<K>; 2]) {
        let mut pair = 0;
        while pair < SLICE / 16 {
            let place = buffer + chunk_offset(self.lane, pair);
            // SAFETY: the caller guarantees that `p` and the epilogue belong to this launch, and that only
            // this warp accesses the buffer. A lane reads and writes the same places.
            unsafe {
                let fetched = self.fetch(part, pair + Self::AHEAD);
                let fetched = if Self::AHEAD > 1 { replace(&mut ahead[1], fetched) } else { fetched };
                let fetched = if Self::AHEAD > 0 { replace(&mut ahead[0], fetched) } else { fetched };
                let operand = if K::LOADS_OPERAND { shared_load_matrices(place) } else { [0; 4] };
                shared_store_matrices(place, self.results(part, pair, operand, fetched));
            }
            pair = counter::<K>(pair + 1);
        }
    }

    /// Returns the results of a fragment, rounded and in pairs.
    ///
    /// # Safety
    /// `p` belongs to this launch.
    #[inline(always)]
    unsafe fn results(&self, part: u32, pair: u32, operand: [u32; 4], fetched: Fetched<K>) -> [u32; 4] {
        let (column, starts) = (self.at(part, pair).column, self.epilogue.starts());
        let index = part % K::TILE.blocks * Self::PER_BLOCK + part / K::TILE.blocks * (SLICE / 16) + pair;
        let bias = match K::LOADS_OPERAND {
            true => [bias_pairs::<K::Elem>(fetched.bias); 2],
            // SAFETY: the caller guarantees that `p` belongs to this launch.
            false => starts.map(|start| unsafe { self.bias().fetch::<K::Elem>(start, column) }),
        };
        let first = plus_bias(self.sums(index), bias[0]);
        let second = match K::Epilogue::HALVES {
            true => plus_bias(self.sums(index + Self::PER_BLOCK / 2), bias[1]),
            false => [0.0; 8],
        };
        self.epilogue.apply::<K::Elem>([first, second], operand, fetched.operands)
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
