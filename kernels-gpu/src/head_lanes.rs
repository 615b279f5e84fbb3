//! Heads of up to 256 columns in the lanes of warps: normalised, rotated, written.
//!
//! A warp has several heads of one token, so that several loads are in flight and the token's angles are read once for
//! all of them. Queries and keys are one list of heads, queries first.
use core::marker::PhantomData;

use cuda_std::prelude::*;

use crate::affine::{Affine, AffineRow};
use crate::angles::Angles;
use crate::head_norm::{Group, HeadNorm, Normed, Parameters};
use crate::heads::{Heads, Token, only, put_quad_at, quad_at};
use crate::moments::Cols;
use crate::rotary::Rotary;

/// Queries or keys, and what becomes of them: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// What is read.
    pub x: Heads,
    /// What is written.
    pub y: Heads,
    /// The parameters of the norm.
    pub affine: Affine,
    /// How many heads there are; 0: no such tensor.
    pub heads: u32,
    /// Columns that are normalised together: a head's, or those of all heads.
    pub cols: u32,
    /// `1 / cols`.
    pub inv_cols: f32,
}

/// What the kernels need to know beside their operands: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Tokens of all batches.
    pub rows: u32,
    /// Tokens of a batch.
    pub tokens: u32,
    /// Columns of a head.
    pub dim: u32,
    /// The norm.
    pub norm: Normed,
    /// Tiles of a row that shared memory has room for, in kernels of rows.
    pub staged: u32,
}

/// Heads of `dim` columns that a warp has, if each lane has quads of `together` of them.
pub const fn heads_of_warp(dim: u32, together: u32) -> u32 {
    together * (warp::SIZE / width(dim))
}

/// Lanes that share a head of `dim` columns.
const fn width(dim: u32) -> u32 {
    if dim > 64 { 32 } else { 16 }
}

/// A warp's part of the list of heads.
#[derive(Clone, Copy)]
struct Share {
    token: Token,
    /// Are they keys?
    keys: bool,
    /// The first head, of `keys` or queries.
    first: u32,
}

impl Share {
    /// The calling warp's, if it has any.
    #[inline(always)]
    fn of_warp(q: &Side, k: &Side, p: &Params, each: u32) -> Option<Self> {
        let ([_, warp, _], [_, warps, _]) = (thread::index(), thread::block_dim());
        let (queries, keys) = (q.heads.div_ceil(each), k.heads.div_ceil(each));
        let blocks = (queries + keys).div_ceil(warps);
        let block = thread::block_index()[0];
        let (row, part) = (block / blocks, block % blocks * warps + warp);
        if part >= queries + keys {
            return None;
        }
        let is_key = part >= queries;
        let first = each * (if is_key { part - queries } else { part });
        Some(Self { token: Token::of(row, p.tokens), keys: is_key, first })
    }
}

/// # Safety
/// The host checked that each side's `x` and `y` hold `p.rows` tokens of its heads of `p.dim` columns, at most `128 *
/// TILES`, that the parameters of the norm and the tables are what their fields say, all readable in quads, and that each
/// `y` overlaps nothing else. The grid has a warp for each share of the list.
#[inline(always)]
pub(crate) unsafe fn head_lanes<T: Elem, N: HeadNorm, const TILES: usize, const TOGETHER: usize>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    let each = heads_of_warp(p.dim, TOGETHER as u32);
    let Some(share) = Share::of_warp(&q, &k, &p, each) else { return };
    let side = if share.keys { k } else { q };
    let mut lanes = Lanes::<T, N, TILES>::of_warp(side, share, rotary, p);
    // SAFETY: as the caller promises; the heads are the warp's own.
    unsafe {
        if rotary.by_head() {
            // Angles are most of what is read, and of one head at a time.
            for _ in 0..TOGETHER {
                lanes.write::<1>();
                lanes.first += lanes.heads_at_once();
            }
        } else {
            lanes.write::<TOGETHER>();
        }
    }
}

/// A lane's part of the heads that a warp has.
struct Lanes<T, N, const TILES: usize> {
    side: Side,
    rotary: Rotary,
    p: Params,
    token: Token,
    group: Group,
    /// The group's first head.
    first: u32,
    kind: PhantomData<(T, N)>,
}

impl<T: Elem, N: HeadNorm, const TILES: usize> Lanes<T, N, TILES> {
    #[inline(always)]
    fn of_warp(side: Side, share: Share, rotary: Rotary, p: Params) -> Self {
        let width = width(p.dim);
        let group = Group { rank: warp::lane() % width, width };
        let first = share.first + warp::lane() / width;
        Self { side, rotary, p, token: share.token, group, first, kind: PhantomData }
    }

    /// Heads that a warp has side by side.
    #[inline(always)]
    fn heads_at_once(&self) -> u32 {
        warp::SIZE / self.group.width
    }

    /// The lane's first column of `tile`.
    #[inline(always)]
    fn column(&self, tile: usize) -> u32 {
        4 * (self.group.rank + tile as u32 * self.group.width)
    }

    /// Normalises, rotates and writes the group's next `TOGETHER` heads.
    ///
    /// # Safety
    /// As [`head_lanes`].
    #[inline(always)]
    unsafe fn write<const TOGETHER: usize>(&self) {
        let Self { side, rotary, p, token, group, .. } = self;
        let head = |nth: usize| self.first + nth as u32 * self.heads_at_once();
        let has = |nth: usize, tile: usize| head(nth) < side.heads && self.column(tile) < p.dim;
        let turns = |tile: usize| rotary.rotates(*token, self.column(tile));

        let mut x = [[Quad::<T>::ZERO; TILES]; TOGETHER];
        for nth in 0..TOGETHER {
            for tile in 0..TILES {
                let start = side.x.at::<T>(*token, head(nth)).cast_const();
                // SAFETY: the head is one of the side's and the column one of the head's.
                x[nth][tile] = unsafe { quad_at(start, self.column(tile), has(nth, tile)) };
            }
        }
        let mut parameters = [Parameters::NONE; TILES];
        let mut angles = [Angles::NONE; TILES];
        for tile in 0..TILES {
            let columns = only(self.column(tile), p.dim);
            // SAFETY: a row of the head's columns.
            let affine = unsafe { AffineRow::<T, true>::of(&side.affine, columns) };
            parameters[tile] = N::parameters(&affine, 0);
            if turns(tile) && has(0, tile) {
                // SAFETY: the token and the column are rotated.
                angles[tile] =
                    unsafe { rotary.quad::<T>(*token, head(0), self.column(tile), N::MAKES_ANGLES) };
            }
        }
        let cols = Cols { count: p.dim as f32, inv: side.inv_cols };
        for nth in 0..TOGETHER {
            let mut lanes = [[0.0; 4]; TILES];
            for tile in 0..TILES {
                lanes[tile] = x[nth][tile].lanes();
            }
            let stats = N::of_lanes(lanes, *group, cols, p.norm);
            for tile in 0..TILES {
                lanes[tile] = N::apply::<T>(stats, lanes[tile], parameters[tile], p.norm);
            }
            let start = side.y.at::<T>(*token, head(nth));
            for tile in 0..TILES {
                let partners = self.partners(lanes, tile);
                let mut y = lanes[tile];
                if turns(tile) {
                    y = rotary.turn_quad::<T>(self.column(tile), y, partners, angles[tile]);
                }
                // SAFETY: as for `x`; the quad is this lane's alone.
                unsafe { put_quad_at(start, self.column(tile), Quad::from_lanes(y), has(nth, tile)) };
            }
        }
    }

    /// The partners of the quad of `tile`, from the lane that has them, if pairs are halves apart.
    #[inline(always)]
    fn partners(&self, lanes: [[f32; 4]; TILES], tile: usize) -> [f32; 4] {
        let mut partners = lanes[tile];
        if self.rotary.halves != 0 {
            let quad = self.rotary.partner(self.column(tile)) / 4;
            let (lane, from) = (quad % self.group.width, quad / self.group.width);
            for tile in 0..TILES {
                let theirs = lanes[tile].map(|x| self.group.from(lane, x));
                if TILES == 1 || from == tile as u32 {
                    partners = theirs;
                }
            }
        }
        partners
    }
}
