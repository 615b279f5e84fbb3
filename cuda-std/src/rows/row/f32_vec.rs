//! Row accesses for kernels that accumulate rows in f32. If such a kernel also reads 16-bit rows, a thread
//! has the same eight columns per tile in all rows. Eight columns are one pack (16-byte vector) of a 16-bit
//! row, and two packs of an f32 row.
use crate::numeric::elem::{Elem, F32Vec};
use crate::rows::pack::Pack;
use crate::simt::mem::{self, Store};
use crate::simt::warp;

use super::{Row, RowMut};

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// Returns `lanes` with zeros for columns past the end of the row. `lanes` are values that the kernel
    /// computed from the thread's pack (16-byte vector) of `tile`. The pack itself has zeros for these
    /// columns. Call this function if the computation maps zero to a nonzero value.
    #[inline(always)]
    pub fn inside(&self, tile: u32, lanes: T::F32Vec) -> T::F32Vec {
        let len = Pack::<T>::LEN;
        let offset = self.columns.offset(tile, len);
        if VECTOR {
            return if self.columns.has(offset, len) { lanes } else { T::F32Vec::splat(0.0) };
        }
        let has = |i: usize| self.columns.has(offset + i as u32 * self.columns.step(), len);
        T::F32Vec::from_fn(|i| if has(i) { lanes.get(i) } else { 0.0 })
    }
}

impl<const VECTOR: bool> RowMut<f32, VECTOR> {
    /// Stores the f32 values `lanes` in the thread's columns of tile number `tile`. A tile has `L::LEN`
    /// columns per thread, for example eight if the kernel also reads bf16 rows. [`Row::lanes`] reads the
    /// same columns. Columns past the end of the row are not written.
    #[inline(always)]
    pub fn store_lanes<L: F32Vec>(&self, tile: u32, lanes: L) {
        let columns = &self.columns;
        let base = self.start.wrapping_add(columns.base(L::LEN) as usize);
        let offset = columns.offset(tile, L::LEN);
        if VECTOR {
            if !columns.has(offset, L::LEN) {
                return;
            }
            let at = base.wrapping_add(offset as usize);
            for i in (0..L::LEN as usize).step_by(4) {
                let words = core::array::from_fn(|j| lanes.get(i + j).to_bits());
                // SAFETY: the stores write the thread's `L::LEN` columns. `has` checked that these columns
                // lie inside the row, and no other thread writes them.
                unsafe { mem::store_u32x4(at.wrapping_add(i).cast(), words, Store::Default) };
            }
            return;
        }
        for i in 0..L::LEN {
            let offset = offset + i * columns.step();
            if columns.has(offset, L::LEN) {
                let at = base.wrapping_add(offset as usize).cast();
                // SAFETY: the store writes one column of the thread. `has` checked that this column lies
                // inside the row, and no other thread writes it.
                unsafe { mem::store_u32(at, lanes.get(i as usize).to_bits(), Store::Default) };
            }
        }
    }

    /// Writes the same data to memory as [`RowMut::store_lanes`], but faster. In the kernel, all threads of a
    /// warp must share one row. Every thread of the warp must call this function.
    ///
    /// If a thread stored its own eight f32 values, each of its two 16-byte stores would fill half an L2
    /// sector (32 bytes). L2 needs the same time for half a sector as for a whole sector. Therefore each
    /// thread with an even rank exchanges half of its values with the next thread. The two threads then store
    /// adjacent halves of one sector at a time.
    #[inline(always)]
    pub fn store_lanes_of_warps<L: F32Vec>(&self, tile: u32, lanes: L) {
        if !VECTOR || L::LEN != 8 {
            return self.store_lanes(tile, lanes);
        }
        let is_odd = self.columns.rank % 2 == 1;
        let choose = |odd: [u32; 4], even: [u32; 4]| -> [u32; 4] {
            core::array::from_fn(|i| if is_odd { odd[i] } else { even[i] })
        };
        let low = core::array::from_fn(|i| lanes.get(i).to_bits());
        let high = core::array::from_fn(|i| lanes.get(i + 4).to_bits());
        let sent = choose(low, high);
        let other = core::array::from_fn(|i| warp::shuffle_xor(warp::ALL, sent[i], 1));
        // The two threads of a pair first store the eight columns of the thread with the even rank. Then they
        // store the eight columns of the other thread, which follow in memory.
        let first = (self.columns.rank & !1) * L::LEN + self.columns.offset(tile, L::LEN);
        let put = |column: u32, words: [u32; 4]| {
            if column < self.columns.cols {
                let at = self.start.wrapping_add((column + if is_odd { 4 } else { 0 }) as usize);
                // SAFETY: the store writes one half of the `L::LEN` columns from `column` on. All these
                // columns lie inside the row, and no other thread writes this half.
                unsafe { mem::store_u32x4(at.cast(), words, Store::Default) };
            }
        };
        put(first, choose(other, low));
        put(first + L::LEN, choose(high, other));
    }
}
