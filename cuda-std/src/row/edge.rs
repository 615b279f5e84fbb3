//! For kernels that do not treat all columns alike: what lies past the end, and single columns.
use crate::elem::Elem;
use crate::mem::{self, Load};
use crate::pack::Pack;

use super::Row;

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// The thread's pack of `tile`; `beyond` past the end, where [`Row::load`] has zeros.
    #[inline(always)]
    pub fn load_or(&self, tile: u32, beyond: T, hint: Load) -> Pack<T> {
        let (pack, len) = (self.load(tile, hint), Pack::<T>::LEN);
        let offset = self.columns.offset(tile, len);
        let inside = |i: u32| self.columns.has(offset + i * self.columns.step(), len);
        if VECTOR {
            return if inside(0) { pack } else { Pack::from_bits(|_| beyond.to_bits()) };
        }
        Pack::from_bits(|i| if inside(i) { pack.bits(i) } else { beyond.to_bits() })
    }

    /// The column of lane 0 of the thread's pack of `tile`, and from each lane's column to the next.
    #[inline(always)]
    pub fn columns(&self, tile: u32) -> (u32, u32) {
        let len = Pack::<T>::LEN;
        (self.columns.base(len) + self.columns.offset(tile, len), self.columns.step())
    }

    /// Tiles that cover the row; none where there is no row.
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.columns.tiles(Pack::<T>::LEN)
    }

    /// The element of `column` in f32, for any one thread; `None` past the end.
    #[inline(always)]
    pub fn get(&self, column: u32, hint: Load) -> Option<f32> {
        if column >= self.columns.cols {
            return None;
        }
        let at = self.start.wrapping_add(column as usize).cast();
        // SAFETY: the column lies inside the row (`of`).
        let bits = unsafe {
            if size_of::<T>() == 2 { u32::from(mem::load_u16(at, hint)) } else { mem::load_u32(at, hint) }
        };
        Some(T::from_bits(bits).to_f32())
    }
}
