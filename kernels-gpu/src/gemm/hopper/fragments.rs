//! Computes the results of a thread's accumulators, in fragments of eight accumulators, and writes them to
//! shared memory.
use core::mem::replace;

use cuda_std::hopper::{shared_load_matrices, shared_store_matrices};
use cuda_std::thread;

use super::layout::ROW_BYTES;
use super::params::{GemmParams, SLICE, WARP_ROWS};
use super::schedule::part_place;
use super::shape::GemmKernel;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{ColumnBias, FragmentPlace, bias_pairs, plus_bias, select};

/// Returns `number`, the counter of a loop over fragments (parts of a thread's accumulators). If the loop
/// must not be unrolled, the number passes through an optimization barrier, so that the compiler does not
/// know its value.
#[inline(always)]
pub(super) fn counter<K: GemmKernel>(number: u32) -> u32 {
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
pub(super) struct Fetched<K: GemmKernel> {
    operands: <K::Epilogue as Epilogue>::Fetched,
    /// The bias, if TMA loads an operand of the epilogue. Other kernels load the bias when they need it.
    bias: [u32; 2],
}

/// The sums of a thread, in fragments.
#[derive(Clone, Copy)]
pub(super) struct Fragments<'a, K: GemmKernel> {
    pub sums: &'a [K::Sums],
    pub lane: u32,
    /// The row and the column in `y` of the warp's first accumulator.
    pub first: [u32; 2],
    pub p: &'a GemmParams,
    pub epilogue: K::Epilogue,
}

impl<K: GemmKernel> Fragments<'_, K> {
    /// Fragments per block of 64 rows.
    const PER_BLOCK: u32 = K::TILE.columns / 16;

    /// Number of fragments (eight accumulators each) by which the loads of the epilogue's operands are ahead
    /// of the computation. This hides the latency of the loads. Ping-pong kernels without an operand that TMA
    /// loads do not load ahead, because one warpgroup multiplies while the other one waits for its operands.
    /// Kernels with 192 accumulators per thread have no registers for it.
    pub const AHEAD: u32 = match (K::LOADS_OPERAND, K::TILE.ping_pong) {
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
    pub unsafe fn fetch(&self, part: u32, pair: u32) -> Fetched<K> {
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
    pub unsafe fn write(&self, part: u32, buffer: u32, ahead: &mut [Fetched<K>; 2]) {
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
    /// `p` and the epilogue belong to this launch.
    #[inline(always)]
    unsafe fn results(&self, part: u32, pair: u32, operand: [u32; 4], fetched: Fetched<K>) -> [u32; 4] {
        let (at, starts) = (self.at(part, pair), self.epilogue.starts());
        let index = part % K::TILE.blocks * Self::PER_BLOCK + part / K::TILE.blocks * (SLICE / 16) + pair;
        let bias = match K::LOADS_OPERAND {
            true => [bias_pairs::<K::Elem>(fetched.bias); 2],
            // SAFETY: the caller guarantees that `p` belongs to this launch.
            false => starts.map(|start| unsafe { self.bias().fetch::<K::Elem>(start, at.column) }),
        };
        // The optimization barrier makes the compiler select the fragments of the two halves one after the
        // other. Otherwise, the kernel with 256 x 128 lacks a register.
        let index = if K::Epilogue::HALVES { thread::opaque([index, 0])[0] } else { index };
        // SAFETY: the caller guarantees that the epilogue belongs to this launch.
        let scaled = |sums: [f32; 8], start: u32| unsafe { self.epilogue.scale(sums, at, start) };
        let first = plus_bias(scaled(self.sums(index), starts[0]), bias[0]);
        let second = match K::Epilogue::HALVES {
            true => plus_bias(scaled(self.sums(index + Self::PER_BLOCK / 2), starts[1]), bias[1]),
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
