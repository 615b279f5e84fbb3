//! Rows of heads that are normalised together, or heads too long or too odd for lanes: reduced by a team, then rotated
//! head by head and written. Queries and keys of a token are neighbouring rows, so that its angles come from L1.
use cuda_std::prelude::*;

use crate::affine::AffineRow;
use crate::head_lanes::{Params, Side};
use crate::head_norm::HeadNorm;
use crate::heads::{Token, divide, only, put_element_at};
use crate::moments::Stats;
use crate::passes::{self, Passes};
use crate::rotary::Rotary;

/// The row of a team.
#[derive(Clone, Copy)]
struct HeadRow<T> {
    x: *const T,
    y: *mut T,
    side: Side,
    token: Token,
    /// Its first head.
    head: u32,
}

impl<T: Elem> HeadRow<T> {
    /// Row `row` of the list: for each token its queries, then its keys; each a row, or a row for each head.
    #[inline(always)]
    fn of(q: Side, k: Side, p: &Params, row: u32) -> Self {
        let [queries, keys] = p.shares;
        let (token, row) = divide(row, queries + keys);
        let token = Token::of(token, p.tokens);
        let is_key = row >= queries;
        let (side, head) = (if is_key { k } else { q }, if is_key { row - queries } else { row });
        Self { x: side.x.at(token, head), y: side.y.at(token, head), side, token, head }
    }

    /// The norm of the quad at `at`, a multiple of 4.
    ///
    /// # Safety
    /// The row has its columns or some of them, and can be read in quads if `VECTOR`.
    #[inline(always)]
    unsafe fn normed<N: HeadNorm, const VECTOR: bool>(&self, stats: Stats, at: u32, p: &Params) -> [f32; 4] {
        let columns = only(at, self.side.cols);
        // SAFETY: as the caller promises; parameters have as many columns as the row.
        let (x, affine) = unsafe {
            (
                QuadRow::<T, VECTOR>::of(&Rows::single(self.x.cast()), RowAt::FIRST, columns),
                AffineRow::<T, VECTOR>::of(&self.side.affine, columns),
            )
        };
        let x = x.load(0, Load::ReadOnly).lanes();
        N::apply::<T>(stats, x, N::parameters(&affine, 0), p.norm)
    }

    /// The norm of column `at`.
    ///
    /// # Safety
    /// The row has it.
    #[inline(always)]
    unsafe fn normed_element<N: HeadNorm>(&self, stats: Stats, at: u32, p: &Params) -> f32 {
        // SAFETY: as the caller promises.
        let [a, b, c, d] = unsafe { self.normed::<N, false>(stats, at / 4 * 4, p) };
        match at % 4 {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }

    /// Normalises, rotates and writes column `at`.
    ///
    /// # Safety
    /// The row has it, for this thread alone to write.
    #[inline(always)]
    unsafe fn write<N: HeadNorm>(&self, stats: Stats, at: u32, rotary: &Rotary, p: &Params) {
        let (head, column) = divide(at, p.dim);
        // SAFETY: columns of the row; the angle of a rotated one.
        unsafe {
            let mut y = self.normed_element::<N>(stats, at, p);
            if rotary.rotates(self.token, column) {
                let partner = head * p.dim + rotary.partner(column);
                let partner = self.normed_element::<N>(stats, partner, p);
                let angle = rotary.element::<T>(self.token, self.head + head, column, N::MAKES_ANGLES);
                y = rotary.turn_element::<T>(column, y, partner, angle);
            }
            put_element_at(self.y, at, y);
        }
    }
}

/// # Safety
/// As [`head_lanes`](crate::head_lanes::head_lanes), for heads of any number of columns; where they are normalised
/// together they lie side by side. Readable in quads if `VECTOR`, element by element otherwise.
#[inline(always)]
pub(crate) unsafe fn head_rows<T: Elem, N: HeadNorm, const VECTOR: bool>(
    q: Side,
    k: Side,
    rotary: Rotary,
    p: Params,
) {
    let mut memory = SharedMemory::of_launch();
    let row = HeadRow::<T>::of(q, k, &p, Team::of_block().row as u32);
    let passes = Passes::<T, VECTOR>::of_block(
        &mut memory,
        passes::Params {
            rows: u64::from(p.rows) * u64::from(p.shares[0] + p.shares[1]),
            inner: 0,
            cols: row.side.cols,
            inv_cols: row.side.inv_cols,
            eps: p.norm.eps,
            staged: p.staged,
            round_each: 0,
            vector: u32::from(VECTOR),
        },
    );
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, y, affine) = unsafe {
        (
            QuadRow::<T, VECTOR>::of(&Rows::single(row.x.cast()), RowAt::FIRST, passes.columns),
            QuadRowMut::<T, VECTOR>::of(&Rows::single(row.y.cast()), RowAt::FIRST, passes.columns),
            AffineRow::<T, VECTOR>::of(&row.side.affine, passes.columns),
        )
    };
    let stats = N::of_row(&passes, x, &mut memory, p.norm);
    for tile in passes.own_tiles() {
        let at = passes.columns.first(tile);
        if !VECTOR {
            for at in at..at + passes.columns.count(tile) {
                // SAFETY: a column of the row.
                unsafe { row.write::<N>(stats, at, &rotary, &p) };
            }
            continue;
        }
        let lanes = passes.again(tile, x).lanes();
        let mut quad = N::apply::<T>(stats, lanes, N::parameters(&affine, tile), p.norm);
        let (head, column) = divide(at, p.dim);
        if rotary.rotates(row.token, column) {
            let mut partners = quad;
            // SAFETY: the partner is a column of the row; the angles are of rotated ones.
            let angles = unsafe {
                if rotary.halves != 0 {
                    partners = row.normed::<N, VECTOR>(stats, head * p.dim + rotary.partner(column), &p);
                }
                rotary.quad::<T>(row.token, row.head + head, column, N::MAKES_ANGLES)
            };
            quad = rotary.turn_quad::<T>(column, quad, partners, angles);
        }
        y.store(tile, Quad::from_lanes(quad), Store::Default);
    }
}
