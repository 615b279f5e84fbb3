//! Rows read and written four neighbouring elements at a time, whatever their type.
//!
//! A quad is 8 bytes of a 16-bit type and 16 of f32, so operands of different types share one mapping of columns to
//! threads. A warp has a row: lane `l` has the columns from `4 * (l + 32 * tile)` on. That is also the order in which
//! torch's own row kernels read, which an op needs that wants their bits; and the number being a constant, tiles lie at
//! constant distances.
//!
//! `ACCESS` says how the columns are read, and nothing else: a row's bits do not depend on its alignment.
use core::marker::PhantomData;

use crate::arch;
use crate::elem::{Elem, Lanes};
use crate::mem::{self, Load, Store};
use crate::row::{RowAt, Rows};
use crate::staged::Staged;
use crate::warp;

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

    /// Four times `value`, rounded.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self::from_lanes([value; 4])
    }

    /// The sums, each rounded once to `T`.
    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        self.by_words(other, T::add_words)
    }

    /// The products, each rounded once to `T`.
    #[inline(always)]
    pub fn times(self, other: Self) -> Self {
        self.by_words(other, T::mul_words)
    }

    #[inline(always)]
    fn by_words(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let ([a, b, c, d], [e, g, h, i]) = (self.words, other.words);
        let words =
            if size_of::<T>() == 2 { [f(a, e), f(b, g), 0, 0] } else { [f(a, e), f(b, g), f(c, h), f(d, i)] };
        Self { words, element: PhantomData }
    }

    /// Its bits as a quad of `E`, which is `T` or of its size.
    #[inline(always)]
    pub fn cast<E: Elem>(self) -> Quad<E> {
        Quad { words: self.words, element: PhantomData }
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

/// `ACCESS`: one element at a time; any row.
pub const SCALAR: u32 = 0;
/// `ACCESS`: a quad at a time; the row is `Rows::is_quads`.
pub const QUADS: u32 = 1;
/// `ACCESS`: a quad at a time, and no thread asks whether it has columns in a tile; the row is `Rows::is_vector`, and its
/// columns are divisible by [`GROUP`].
pub const WHOLE: u32 = 2;

/// Columns of four tiles.
pub const GROUP: u32 = 4 * TILE;

/// Columns of a tile.
pub const TILE: u32 = LEN * warp::SIZE;

/// The columns that a thread holds of its row.
#[derive(Clone, Copy)]
pub struct QuadColumns {
    /// The thread's first column.
    own: u32,
    cols: u32,
}

impl QuadColumns {
    /// Those of the calling thread in its warp's row of `cols` columns; none if there is no row.
    #[inline(always)]
    pub fn of_warp(at: RowAt, cols: u32) -> Self {
        Self { own: LEN * warp::lane(), cols: if at.exists() { cols } else { 0 } }
    }

    /// The quad at `column` of a row of `cols` columns, as tile 0 of a thread that has no other.
    #[inline(always)]
    pub fn of_one(column: u32, cols: u32) -> Self {
        Self { own: column, cols }
    }

    /// The thread's first column of `tile`.
    #[inline(always)]
    pub fn first(&self, tile: u32) -> u32 {
        self.own + tile * TILE
    }

    /// Where the thread's quad of `tile` lies in the row that starts at `start`.
    #[inline(always)]
    fn place<T>(&self, start: *const T, tile: u32) -> *const T {
        start.wrapping_add(self.own as usize).wrapping_add((tile * TILE) as usize)
    }

    /// How many of the quad's columns the row has, 0 to 4.
    #[inline(always)]
    pub fn count(&self, tile: u32) -> u32 {
        self.cols.saturating_sub(self.first(tile)).min(LEN)
    }

    /// Does the row reach into the thread's quad? With [`WHOLE`] nobody asks beyond the row.
    #[inline(always)]
    pub fn has<const ACCESS: u32>(&self, tile: u32) -> bool {
        ACCESS == WHOLE || self.first(tile) < self.cols
    }
}

/// A row to read.
#[derive(Clone, Copy)]
pub struct QuadRow<T, const ACCESS: u32> {
    start: *const T,
    columns: QuadColumns,
}

impl<T: Elem, const ACCESS: u32> QuadRow<T, ACCESS> {
    /// The row of `rows` at `at`; nothing if there is none.
    ///
    /// # Safety
    /// While the kernel runs, every row of `rows` has the columns of `columns` to read, and is what
    /// `ACCESS` says.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowAt, columns: QuadColumns) -> Self {
        Self { start: rows.start(at), columns }
    }

    /// The thread's quad of `tile`; zeros past the end.
    #[inline(always)]
    pub fn get(&self, tile: u32) -> Quad<T> {
        self.load(tile, Load::ReadOnly)
    }

    /// Copies the row to shared memory; [`Staged::wait`] before it is read. `packs`: is the row
    /// `Rows::is_vector`?
    #[inline(always)]
    pub fn copy_to(&self, staged: &Staged<T>, packs: bool) {
        if ACCESS == WHOLE || ACCESS == QUADS && packs {
            // SAFETY: the row is readable (`of`), and aligned as the caller says.
            return unsafe { staged.copy(self.start, self.columns.cols) };
        }
        let mut tile = 0;
        while self.columns.cols > tile * TILE {
            staged.put(tile, self.get(tile));
            tile += 1;
        }
    }

    #[inline(always)]
    fn load(&self, tile: u32, hint: Load) -> Quad<T> {
        if !self.columns.has::<ACCESS>(tile) {
            return Quad::ZERO;
        }
        let at = self.columns.place(self.start, tile);
        // SAFETY: the columns lie inside the row (`of`); unless `SCALAR`, whole quads fill it.
        let words = unsafe {
            if ACCESS == SCALAR {
                let count = self.columns.count(tile);
                let element =
                    |i: u32| if i < count { load_element(at.wrapping_add(i as usize), hint) } else { 0 };
                if size_of::<T>() == 2 {
                    [element(0) | element(1) << 16, element(2) | element(3) << 16, 0, 0]
                } else {
                    [element(0), element(1), element(2), element(3)]
                }
            } else {
                load_words(at, hint)
            }
        };
        Quad { words, element: PhantomData }
    }
}

/// A quad at `at`, in one access.
///
/// # Safety
/// As [`mem::load_u32x4`].
#[inline(always)]
unsafe fn load_words<T>(at: *const T, hint: Load) -> [u32; 4] {
    // SAFETY: as the caller promises.
    unsafe {
        if size_of::<T>() == 2 {
            let [a, b] = mem::load_u32x2(at.cast(), hint);
            [a, b, 0, 0]
        } else {
            mem::load_u32x4(at.cast(), hint)
        }
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
pub struct QuadRowMut<T, const ACCESS: u32> {
    start: *mut T,
    columns: QuadColumns,
}

impl<T: Elem, const ACCESS: u32> QuadRowMut<T, ACCESS> {
    /// The row of `rows` at `at`: see [`QuadRow::of`].
    ///
    /// # Safety
    /// As [`QuadRow::of`], writable, and no other team has the same row.
    #[inline(always)]
    pub unsafe fn of(rows: &Rows, at: RowAt, columns: QuadColumns) -> Self {
        Self { start: rows.start(at), columns }
    }

    /// What the thread wrote as its quad of `tile`; zeros past the end.
    #[inline(always)]
    pub fn written(&self, tile: u32) -> Quad<T> {
        let Self { start, columns } = *self;
        QuadRow::<T, ACCESS> { start: start.cast_const(), columns }.load(tile, Load::Default)
    }

    /// Writes the thread's quad of `tile`; nothing past the end.
    #[inline(always)]
    pub fn put(&self, tile: u32, quad: Quad<T>) {
        if !self.columns.has::<ACCESS>(tile) {
            return;
        }
        let at = self.columns.place(self.start.cast_const(), tile).cast_mut();
        let ([a, b, ..], count) = (quad.words, self.columns.count(tile) as usize);
        // SAFETY: the columns lie inside the row (`of`) and are this thread's alone; unless `SCALAR`, whole quads fill it.
        unsafe {
            if ACCESS != SCALAR && size_of::<T>() == 2 {
                return mem::store_u32x2(at.cast(), [a, b], Store::Default);
            }
            if ACCESS != SCALAR {
                return mem::store_u32x4(at.cast(), quad.words, Store::Default);
            }
            for i in 0..4 {
                let at = at.wrapping_add(i).cast();
                if i >= count {
                } else if size_of::<T>() == 2 {
                    let word = if i < 2 { a } else { b };
                    mem::store_u16(at, (word >> (16 * (i % 2))) as u16, Store::Default);
                } else {
                    mem::store_u32(at, quad.words[i], Store::Default);
                }
            }
        }
    }
}

/// A row whose elements are of type `T` or f32, decided at run time: a weight, a modulation, a table.
#[derive(Clone, Copy)]
pub struct MixedRow<T, const ACCESS: u32> {
    start: *const u8,
    single: bool,
    columns: QuadColumns,
    element: PhantomData<T>,
}

impl<T: Elem, const ACCESS: u32> MixedRow<T, ACCESS> {
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
            QuadRow::<f32, ACCESS> { start: start.cast(), columns }.get(tile).lanes()
        } else {
            QuadRow::<T, ACCESS> { start: start.cast(), columns }.get(tile).lanes()
        }
    }
}
