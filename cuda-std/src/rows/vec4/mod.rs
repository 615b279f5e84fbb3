//! Rows read and written four neighbouring elements at a time, whatever their type.
//!
//! A quad is 8 bytes of a 16-bit type and 16 of f32, so operands of different types share one mapping of columns to
//! threads. A warp has a row: lane `l` has the columns from `4 * (l + 32 * tile)` on. That is also the order in which
//! torch's own row kernels read, which an op needs that wants their bits; and the number being a constant, tiles lie at
//! constant distances.
//!
//! `ACCESS` says how the columns are read, and nothing else: a row's bits do not depend on its alignment.
use core::marker::PhantomData;

use super::row::{RowAt, Rows};
use crate::arch;
use crate::numeric::elem::{Elem, Lanes};
use crate::simt::{thread, warp};

mod row;
pub mod shared_row;
pub use row::{MixedRow, QuadRow, QuadRowMut};

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

    /// Four times `value`, a constant, rounded.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self { words: T::splat(value), element: PhantomData }
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

    /// The same quad, of which the compiler has forgotten the lanes: see [`Pack::forget_lanes`](super::pack::Pack::forget_lanes).
    #[inline(always)]
    pub fn forget_lanes(self) -> Self {
        let [a, b, c, d] = self.words;
        let words = if size_of::<T>() == 2 {
            let [a, b] = arch::opaque([a, b]);
            [a, b, 0, 0]
        } else {
            arch::opaque([a, b, c, d])
        };
        Self { words, ..self }
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
/// `ACCESS`: a quad at a time, and no thread asks whether it has columns in one of the row's tiles; the row is
/// `Rows::is_vector` and [`Rows::is_near`], has four tiles or more, its columns are divisible by [`TILE`], and rows are
/// fewer than 2^30.
pub const WHOLE: u32 = 2;
/// `ACCESS`: as [`WHOLE`], of rows each of which the four warps of a block share: a warp has every fourth tile.
pub const TEAM: u32 = 3;
/// `ACCESS`: `HELD + n` as [`WHOLE`], of rows of `n` tiles that stay in the registers of their warp.
pub const HELD: u32 = 16;
/// `ACCESS`: `HELD_TEAM + n` as [`TEAM`], of rows of `4 n` tiles that stay in the registers of the block's warps.
pub const HELD_TEAM: u32 = 64;
/// `ACCESS`: `HELD_BLOCK + n` as [`HELD_TEAM`], but no row waits in shared memory.
pub const HELD_BLOCK: u32 = 128;

/// The most quads of a row that stay in a thread's registers.
pub const MOST_HELD: usize = 12;

/// The quads of a row that stay in a thread's registers, at most; 0: none.
pub const fn held(access: u32) -> usize {
    match access {
        HELD_BLOCK.. => (access - HELD_BLOCK) as usize,
        HELD_TEAM.. => (access - HELD_TEAM) as usize,
        HELD.. => (access - HELD) as usize,
        _ => 0,
    }
}

/// Does a block share each row?
pub const fn shared(access: u32) -> bool {
    matches!(access, TEAM | HELD_TEAM..)
}

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

    /// Those of the calling thread in its block's row: a warp has every tile of its own number modulo theirs.
    #[inline(always)]
    pub fn of_block(at: RowAt, cols: u32) -> Self {
        Self { own: LEN * thread::index()[0], cols: if at.exists() { cols } else { 0 } }
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

    /// Does the row reach into the thread's quad? From [`WHOLE`] on nobody asks beyond the row's tiles.
    #[inline(always)]
    pub fn has<const ACCESS: u32>(&self, tile: u32) -> bool {
        ACCESS >= WHOLE || self.first(tile) < self.cols
    }
}

impl Rows {
    /// May rows of `cols` elements of `element` bytes be accessed four elements at a time?
    pub fn is_quads(&self, cols: u32, element: usize) -> bool {
        self.is_aligned(cols, element, LEN as usize * element)
    }
}
