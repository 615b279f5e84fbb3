//! Row accesses for kernels that treat some columns differently from others. One function loads a chosen
//! value instead of zero for columns past the end of the row. Other functions access single columns.
use crate::numeric::elem::Elem;
use crate::rows::pack::Pack;
use crate::simt::mem::{self, Load, Store};

use super::{Row, RowMut};

impl<T: Elem, const VECTOR: bool> Row<T, VECTOR> {
    /// Loads the pack (16-byte vector) that this thread has in tile number `tile` of the row. Elements past
    /// the end of the row get the value `beyond`.
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

    /// Returns how many tiles cover the row, or 0 if the row does not exist. A tile has one 16-byte vector
    /// for each thread of the team (the threads that share the row).
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.columns.tiles(Pack::<T>::LEN)
    }

    /// Loads the element of `column` and converts it to f32. Any thread of the team (the threads that share
    /// the row) may load any column. Returns `None` if `column` is past the end of the row.
    #[inline(always)]
    pub fn get(&self, column: u32, hint: Load) -> Option<f32> {
        if column >= self.columns.cols {
            return None;
        }
        let at = self.start.wrapping_add(column as usize).cast();
        // SAFETY: the load reads the element in column `column`. This column lies inside the row, because
        // `column` is less than `cols`. The caller of the constructor `of` guaranteed that the row is
        // readable.
        let bits = unsafe {
            if size_of::<T>() == 2 { u32::from(mem::load_u16(at, hint)) } else { mem::load_u32(at, hint) }
        };
        Some(T::from_bits(bits).to_f32())
    }
}

impl<T: Elem, const VECTOR: bool> RowMut<T, VECTOR> {
    /// Returns how many tiles cover the row, or 0 if the row does not exist. A tile has one 16-byte vector
    /// for each thread of the team (the threads that share the row).
    #[inline(always)]
    pub fn tiles(&self) -> u32 {
        self.columns.tiles(Pack::<T>::LEN)
    }

    /// Returns whether `column` is in one of the calling thread's packs (16-byte vectors).
    #[inline(always)]
    pub fn owns(&self, column: u32) -> bool {
        let len = if VECTOR { Pack::<T>::LEN } else { 1 };
        column < self.columns.cols && column / len % self.columns.size == self.columns.rank
    }

    /// Rounds `value` once to `T` and stores it as the element of `column`. Only the thread whose packs
    /// (16-byte vectors) contain this column stores the value. It may overwrite an element that the same
    /// thread stored earlier as part of a pack.
    #[inline(always)]
    pub fn set(&self, column: u32, value: f32, hint: Store) {
        if !self.owns(column) {
            return;
        }
        let (at, bits) = (self.start.wrapping_add(column as usize).cast(), T::from_f32(value).to_bits());
        // SAFETY: `owns` checked that the column lies inside the row and that no other thread writes it.
        unsafe {
            if size_of::<T>() == 2 {
                mem::store_u16(at, bits as u16, hint)
            } else {
                mem::store_u32(at, bits, hint)
            }
        }
    }
}
