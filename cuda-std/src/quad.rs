//! Rows read and written four neighbouring elements at a time, whatever their type.
//!
//! A quad is 8 bytes of a 16-bit type and 16 of f32, so operands of different types share one mapping of columns to
//! threads: thread `rank` of a team of `size` has the columns from `4 * (rank + tile * size)` on. That is also the order
//! in which torch's own row kernels read, which an op needs that wants their bits.
//!
//! `VECTOR` says whether a quad is one access; without it the same columns are read one by one, so that a row's bits do
//! not depend on its alignment.
use core::marker::PhantomData;

use crate::arch;
use crate::elem::{Elem, Lanes};
use crate::mem::{self, Load, Store};
use crate::row::{RowAt, Rows};
use crate::team::Team;

/// Elements in a quad.
pub const LEN: u32 = 4;

/// Four elements, held as loaded: two words of a 16-bit type, four of f32.
#[derive(Clone, Copy)]
pub struct Quad<T> {
    pub(crate) words: [u32; 4],
    pub(crate) element: PhantomData<T>,
}

impl<T: Elem> Quad<T> {
    /// All bits zero.
    pub const ZERO: Self = Self { words: [0; 4], element: PhantomData };

    /// From values in f32, each rounded once.
    #[inline(always)]
    pub fn from_lanes([a, b, c, d]: [f32; 4]) -> Self {
        let lanes = T::Lanes::from_fn(|i| match i {
            0 => a,
            1 => b,
            2 => c,
            3 => d,
            _ => 0.0,
        });
        Self { words: T::pack(lanes), element: PhantomData }
    }

    /// The same quad, of which the compiler has forgotten the lanes: see [`Pack::forget_lanes`](crate::pack::Pack::forget_lanes).
    #[inline(always)]
    pub fn forget_lanes(self) -> Self {
        Self { words: arch::opaque(self.words), ..self }
    }

    /// Its values in f32, exact.
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        let lanes = T::unpack(self.words);
        [lanes.get(0), lanes.get(1), lanes.get(2), lanes.get(3)]
    }
}

/// `lanes`, each as `T` holds it: the rounding that a store and a load would make.
#[inline(always)]
pub fn round<T: Elem>(lanes: [f32; 4]) -> [f32; 4] {
    Quad::<T>::from_lanes(lanes).lanes()
}

/// The columns that a thread holds of its row.
#[derive(Clone, Copy)]
pub struct QuadColumns {
    rank: u32,
    size: u32,
    cols: u32,
}

impl QuadColumns {
    /// Those of `team`'s thread in a row of `cols` columns; none if there is no row.
    #[inline(always)]
    pub fn of(team: Team, at: RowAt, cols: u32) -> Self {
        Self { rank: team.rank, size: team.size, cols: if at.exists() { cols } else { 0 } }
    }

    /// The thread's first column of `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        LEN * (self.rank + tile * self.size)
    }

    /// How many of the quad's columns the row has, 0 to 4.
    #[inline(always)]
    pub fn count(&self, tile: u32) -> u32 {
        self.cols.saturating_sub(self.first(tile)).min(LEN)
    }

    /// Does the row reach into the thread's quad?
    #[inline(always)]
    pub fn has(&self, tile: u32) -> bool {
        self.first(tile) < self.cols
    }

    /// Tiles that cover a row of `cols` columns: the same for every thread of a block.
    #[inline(always)]
    pub fn tiles(team: Team, cols: u32) -> u32 {
        cols.div_ceil(LEN * team.size)
    }
}

/// A row to read.
#[derive(Clone, Copy)]
pub struct QuadRow<T, const VECTOR: bool> {
    start: *const T,
    columns: QuadColumns,
}

impl<T: Elem, const VECTOR: bool> QuadRow<T, VECTOR> {
    /// The row of `rows` at `at`; nothing if there is none.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has the columns of `columns` to read, and is `Rows::is_quads` if
    /// `VECTOR`.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowAt, columns: QuadColumns) -> Self {
        Self { start: rows.start(at), columns }
    }

    /// The thread's quad of `tile`; zeros past the end.
    #[inline(always)]
    pub fn load(&self, tile: u32, hint: Load) -> Quad<T> {
        if !self.columns.has(tile) {
            return Quad::ZERO;
        }
        let at = self.start.wrapping_add(self.columns.first(tile) as usize);
        // SAFETY: the columns lie inside the row (`of`); with `VECTOR` whole quads fill it.
        let words = unsafe {
            if !VECTOR {
                let count = self.columns.count(tile);
                let element =
                    |i: u32| if i < count { load_element(at.wrapping_add(i as usize), hint) } else { 0 };
                if size_of::<T>() == 2 {
                    [element(0) | element(1) << 16, element(2) | element(3) << 16, 0, 0]
                } else {
                    [element(0), element(1), element(2), element(3)]
                }
            } else if size_of::<T>() == 2 {
                let [a, b] = mem::load_u32x2(at.cast(), hint);
                [a, b, 0, 0]
            } else {
                mem::load_u32x4(at.cast(), hint)
            }
        };
        Quad { words, element: PhantomData }
    }
}

/// The bits of one element.
///
/// # Safety
/// As [`mem::load_u32`].
#[inline(always)]
unsafe fn load_element<T>(at: *const T, hint: Load) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        if size_of::<T>() == 2 {
            u32::from(mem::load_u16(at.cast(), hint))
        } else {
            mem::load_u32(at.cast(), hint)
        }
    }
}

/// A row to write.
#[derive(Clone, Copy)]
pub struct QuadRowMut<T, const VECTOR: bool> {
    start: *mut T,
    columns: QuadColumns,
}

impl<T: Elem, const VECTOR: bool> QuadRowMut<T, VECTOR> {
    /// The row of `rows` at `at`: see [`QuadRow::of`].
    ///
    /// # Safety
    /// As [`QuadRow::of`], writable, and no other team has the same row.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowAt, columns: QuadColumns) -> Self {
        Self { start: rows.start(at), columns }
    }

    /// Writes the thread's quad of `tile`; nothing past the end.
    #[inline(always)]
    pub fn store(&self, tile: u32, quad: Quad<T>, hint: Store) {
        if !self.columns.has(tile) {
            return;
        }
        let at = self.start.wrapping_add(self.columns.first(tile) as usize);
        let [a, b, ..] = quad.words;
        // SAFETY: the columns lie inside the row (`of`) and are this thread's alone; with `VECTOR` whole quads fill it.
        unsafe {
            match (VECTOR, size_of::<T>()) {
                (true, 2) => mem::store_u32x2(at.cast(), [a, b], hint),
                (true, _) => mem::store_u32x4(at.cast(), quad.words, hint),
                (false, size) => {
                    let count = self.columns.count(tile) as usize;
                    for i in 0..4 {
                        let at = at.wrapping_add(i).cast();
                        if i >= count {
                        } else if size == 2 {
                            let word = if i < 2 { a } else { b };
                            mem::store_u16(at, (word >> (16 * (i % 2))) as u16, hint);
                        } else {
                            mem::store_u32(at, quad.words[i], hint);
                        }
                    }
                }
            }
        }
    }
}

/// A row whose elements are of type `T` or f32, decided at run time: a weight, a modulation, a table.
#[derive(Clone, Copy)]
pub struct MixedRow<T, const VECTOR: bool> {
    start: *const u8,
    single: bool,
    columns: QuadColumns,
    element: PhantomData<T>,
}

impl<T: Elem, const VECTOR: bool> MixedRow<T, VECTOR> {
    /// The row of `rows` at `at`, of f32 if `single`.
    ///
    /// # Safety
    /// As [`QuadRow::of`], for the type that `single` says.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowAt, columns: QuadColumns, single: bool) -> Self {
        let start = if single { rows.start::<f32>(at).cast() } else { rows.start::<T>(at).cast::<u8>() };
        Self { start, single, columns, element: PhantomData }
    }

    /// The thread's quad of `tile` in f32; zeros past the end.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> [f32; 4] {
        let Self { start, columns, .. } = *self;
        if self.single {
            QuadRow::<f32, VECTOR> { start: start.cast(), columns }.load(tile, Load::ReadOnly).lanes()
        } else {
            QuadRow::<T, VECTOR> { start: start.cast(), columns }.load(tile, Load::ReadOnly).lanes()
        }
    }
}
