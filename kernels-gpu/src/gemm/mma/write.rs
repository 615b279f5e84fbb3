//! Applies the epilogue to the accumulators of a warp, and writes the results.
use cuda_std::mem;
use cuda_std::mma::{Chunk, MatrixElem};
use cuda_std::prelude::*;

use super::multiply::Sums;
use super::params::LinearParams;
use super::swizzle::SwizzledRows;
use crate::gemm::epilogue::Epilogue;
use crate::gemm::epilogue::fragments::{ColumnBias, FragmentPlace, plus_bias, select};

/// The accumulators of a warp, and the other values from which it computes and writes its results.
pub(super) struct Results<'a, T, E, const M16: usize, const N16: usize, const CHUNKS: u32> {
    pub sums: &'a Sums<M16, N16>,
    /// Shared memory in which the warp stages its results. Each lane can then store 16 contiguous bytes of a
    /// row.
    pub tile: SwizzledRows<CHUNKS>,
    /// The row and the column of the warp's first result in `y`.
    pub place: [u32; 2],
    pub p: &'a LinearParams,
    pub epilogue: E,
    pub element: core::marker::PhantomData<T>,
}

impl<T, E, const M16: usize, const N16: usize, const CHUNKS: u32> Results<'_, T, E, M16, N16, CHUNKS>
where
    T: MatrixElem,
    E: Epilogue,
{
    /// Columns of results, in units of 16.
    const COLUMNS16: u32 = CHUNKS / 2;

    /// Computes the warp's results and writes them to `y`.
    ///
    /// # Safety
    /// `p` and the argument of the epilogue belong to this launch. Only this warp accesses `tile`, which has
    /// space for the warp's rows.
    #[inline(always)]
    pub unsafe fn write(&self) {
        const { assert!(CHUNKS * if E::HALVES { 2 } else { 1 } == 2 * N16 as u32) };
        let mut column16 = 0;
        while column16 < Self::COLUMNS16 {
            // SAFETY: the caller guarantees that `p` and the argument of the epilogue belong to this launch,
            // and that only this warp accesses `tile`.
            unsafe { self.stage(column16) };
            column16 = Self::counter(column16 + 1);
        }
        warp::sync(warp::ALL);
        // SAFETY: the method reads `tile`, and the warp barrier separates these reads from the writes to
        // `tile`. The caller guarantees that `p` belongs to this launch.
        unsafe { self.store() };
    }

    /// Returns `number`, the counter of a loop over fragments (parts of a thread's accumulators). If the loop
    /// must not be unrolled, the number passes through an optimization barrier, so that the compiler does not
    /// know its value.
    #[inline(always)]
    fn counter(number: u32) -> u32 {
        if E::UNROLLED { number } else { thread::opaque([number, 0])[0] }
    }

    /// Computes the warp's results in 16 columns, and writes them to `tile` in shared memory.
    ///
    /// # Safety
    /// The requirements of [`Results::write`] apply.
    #[inline(always)]
    unsafe fn stage(&self, column16: u32) {
        let lane = warp::lane();
        let column = self.place[1] + 16 * column16 + lane % 4 * 2;
        let bias = ColumnBias { base: self.p.bias, columns: self.p.w.rows, pairs: false };
        // SAFETY: the caller guarantees that `p` belongs to this launch.
        let bias = self.epilogue.starts().map(|start| unsafe { bias.fetch::<T>(start, column) });
        let mut row16 = 0;
        while row16 < M16 as u32 {
            let at = FragmentPlace { row: self.place[0] + 16 * row16 + lane / 4, column };
            // SAFETY: the caller guarantees that the epilogue belongs to this launch.
            let (operand, fetched) = unsafe { (self.epilogue.operand(at), self.epilogue.fetch(at)) };
            let first = plus_bias(self.fragment(row16, column16), bias[0]);
            let second = match E::HALVES {
                true => plus_bias(self.fragment(row16, column16 + Self::COLUMNS16), bias[1]),
                false => [0.0; 8],
            };
            let words = self.epilogue.apply::<T>([first, second], operand, fetched);
            for i in 0..4 {
                let (row, chunk) = (16 * row16 + i % 2 * 8 + lane / 4, 2 * column16 + i / 2);
                let index = SwizzledRows::<CHUNKS>::index(row, chunk);
                // SAFETY: the store writes a word of `tile`. Its row is one of the `16 * M16` rows of `tile`,
                // and only this lane writes the word.
                unsafe { self.tile.set_word(index, lane % 4, words[i as usize]) };
            }
            row16 = Self::counter(row16 + 1);
        }
    }

    /// Returns the sums of the fragment in the block `[row16, column16]`.
    #[inline(always)]
    fn fragment(&self, row16: u32, column16: u32) -> [f32; 8] {
        let fragment = |index: usize| {
            let [column16, row16] = [index / M16, index % M16];
            let sums = self.sums[row16].get(column16).copied().unwrap_or([[0.0; 4]; 2]);
            core::array::from_fn(|i| sums[i / 4][i % 4])
        };
        let index = column16 * M16 as u32 + row16;
        if E::UNROLLED { fragment(index as usize) } else { select(index, fragment) }
    }

    /// Stores the warp's results from shared memory to `y`.
    ///
    /// # Safety
    /// `p` belongs to this launch. A barrier separates the writes of the results to `tile` from this call.
    #[inline(always)]
    unsafe fn store(&self) {
        let (p, lane) = (self.p, warp::lane());
        let (own_row, chunk) = (lane / CHUNKS, lane % CHUNKS);
        let (column, pass_rows) = (self.place[1] + 8 * chunk, warp::SIZE / CHUNKS);
        for pass in 0..16 * M16 as u32 / pass_rows {
            let own_row = pass * pass_rows + own_row;
            let row = self.place[0] + own_row;
            if row < p.x.rows && column < p.w.rows {
                let offset = u64::from(row) * p.y_row_bytes + 2 * u64::from(column);
                let index = SwizzledRows::<CHUNKS>::index(own_row, chunk);
                // SAFETY: the store writes eight elements of `y`. The comparisons exclude rows and columns
                // outside `y`, and the number of columns is a multiple of 8, so all eight elements exist. A
                // barrier separates the writes to `tile` from the read of `tile`.
                unsafe { store(p.y.wrapping_add(offset as usize), self.tile.get(index), p.vector_y != 0) };
            }
        }
    }
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
