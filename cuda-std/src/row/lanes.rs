//! For kernels that add up rows in f32, whatever their element type: lanes in the columns of another operand's packs.
use crate::elem::{Elem, Lanes};
use crate::mem::{self, Store};
use crate::pack::Pack;

use super::{Row, RowMut};

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// `lanes`, made of the thread's pack of `tile`, with zeros past the end: where zero became something else.
    #[inline(always)]
    pub fn inside(&self, tile: u32, lanes: T::Lanes) -> T::Lanes {
        let len = Pack::<T>::LEN;
        let offset = self.columns.offset(tile, len);
        if VECTOR {
            return if self.columns.has(offset, len) { lanes } else { T::Lanes::splat(0.0) };
        }
        let has = |i: usize| self.columns.has(offset + i as u32 * self.columns.step(), len);
        T::Lanes::from_fn(|i| if has(i) { lanes.get(i) } else { 0.0 })
    }
}

impl<const VECTOR: bool> RowMut<f32, VECTOR> {
    /// Writes the thread's columns of `tile`, where another operand's packs have `L::LEN` elements: what
    /// [`Row::lanes`] reads. Nothing past the end.
    #[inline(always)]
    pub fn store_lanes<L: Lanes>(&self, tile: u32, lanes: L) {
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
                // SAFETY: `L::LEN` columns from here on lie in the row (`of`) and are this thread's alone.
                unsafe { mem::store_u32x4(at.wrapping_add(i).cast(), words, Store::Default) };
            }
            return;
        }
        for i in 0..L::LEN {
            let offset = offset + i * columns.step();
            if columns.has(offset, L::LEN) {
                let at = base.wrapping_add(offset as usize).cast();
                // SAFETY: the column lies inside the row (`of`) and is this thread's alone.
                unsafe { mem::store_u32(at, lanes.get(i as usize).to_bits(), Store::Default) };
            }
        }
    }
}
