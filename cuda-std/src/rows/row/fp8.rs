//! Rows of 8-bit floats that a kernel computes from rows of wider elements. A thread has the same columns in
//! both rows: its pack (16-byte vector) of 16-bit elements becomes eight 8-bit floats, and its pack of f32
//! becomes four.
use core::marker::PhantomData;

use crate::numeric::elem::F32Vec;
use crate::numeric::fp8::Fp8;
use crate::rows::team::Team;
use crate::simt::mem::{self, Store};

use super::{Columns, RowIndex, Rows};

/// A row of 8-bit floats that kernels write.
#[derive(Clone, Copy)]
pub struct Fp8RowMut<E, const VECTOR: bool> {
    start: *mut u8,
    columns: Columns<VECTOR>,
    element: PhantomData<E>,
}

impl<E: Fp8, const VECTOR: bool> Fp8RowMut<E, VECTOR> {
    /// Returns row `at` of `rows`, for writing. If the row does not exist, stores to it have no effect.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has `cols` writable elements. No other team (group of
    /// threads that share a row) accesses the same row. If `VECTOR`, the rows satisfy
    /// [`Rows::is_fp8_vector`] for the number of lanes that the kernel passes to [`Fp8RowMut::store`].
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, team: Team, at: RowIndex, cols: u32) -> Self {
        Self { start: rows.start(at), columns: Columns::of(team, at, cols), element: PhantomData }
    }

    /// Rounds each value once, and stores the results in the thread's columns of tile number `tile`. A tile
    /// has `L::LEN` columns per thread. Columns past the end of the row are not written.
    #[inline(always)]
    pub fn store<L: F32Vec>(&self, tile: u32, lanes: L, hint: Store) {
        let columns = &self.columns;
        let offset = columns.offset(tile, L::LEN);
        let base = self.start.wrapping_add(columns.base(L::LEN) as usize);
        let at = base.wrapping_add(offset as usize);
        let word = |i: usize| E::pack4(core::array::from_fn(|j| lanes.get(4 * i + j)));
        if VECTOR {
            if columns.has(offset, L::LEN) {
                // SAFETY: the store writes the thread's `L::LEN` columns, which start inside the row. The
                // caller of the constructor `of` guaranteed that the row is writable, is aligned, and has a
                // multiple of `L::LEN` columns. No other thread writes these columns.
                unsafe {
                    match L::LEN {
                        8 => mem::store_u32x2(at, [word(0), word(1)], hint),
                        _ => mem::store_u32(at, word(0), hint),
                    }
                }
            }
            return;
        }
        for i in 0..L::LEN {
            let offset = offset + i * columns.step();
            if columns.has(offset, L::LEN) {
                let value = E::from_f32(lanes.get(i as usize)).to_bits();
                // SAFETY: the store writes one element. `has` checked that its column lies inside the row,
                // and no other thread writes it.
                unsafe { mem::store_u8(base.wrapping_add(offset as usize), value, hint) }
            }
        }
    }
}
