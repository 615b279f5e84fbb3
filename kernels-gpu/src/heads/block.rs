//! Rows of heads that are normalised together, or heads too long or too odd for lanes: reduced by a team,
//! then rotated head by head and written. Queries and keys of a token are neighbouring rows, so that its
//! angles come from L1.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, Scalar, is_scalar, is_vector};

use super::norm::HeadNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use crate::layout::heads::{Token, divide, put_element_at};
use crate::norm::affine::AffineRow;
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::TeamCols;
use crate::norm::reduce::team_row::TeamRow;

/// The row of a team.
#[derive(Clone, Copy)]
pub(crate) struct HeadRow<T> {
    pub x: *const T,
    pub y: *mut T,
    pub operand: HeadsOperand,
    pub token: Token,
    /// Its first head.
    pub head: u32,
}

impl<T: Elem> HeadRow<T> {
    /// Row `row` of the list: for each token its queries, then its keys; each a row, or a row for each head.
    #[inline(always)]
    pub fn of(q: HeadsOperand, k: HeadsOperand, p: &HeadParams, row: u32) -> Self {
        let [queries, keys] = p.warp_tasks;
        let (token, row) = divide(row, queries + keys);
        let token = Token::of(token, p.tokens);
        let is_key = row >= queries;
        let (operand, head) = (if is_key { k } else { q }, if is_key { row - queries } else { row });
        Self { x: operand.x.at(token, head), y: operand.y.at(token, head), operand, token, head }
    }

    /// The norm of the quad at `at`, a multiple of 4.
    ///
    /// # Safety
    /// The row has its columns or some of them, and can be read as `A` says.
    #[inline(always)]
    unsafe fn normed<N: HeadNorm, A: Access>(&self, stats: Stats, at: u32, p: &HeadParams) -> [f32; 4] {
        let columns = Vec4Columns::of_one(at, self.operand.cols);
        // SAFETY: as the caller promises; parameters have as many columns as the row.
        let (x, affine) = unsafe {
            (
                Vec4Row::<T, A>::of(&Rows::single(self.x.cast()), RowIndex::FIRST, columns),
                AffineRow::<T, A>::of(&self.operand.affine, columns),
            )
        };
        let [normed] = N::apply::<T, 1>(stats, [x.get(0).lanes()], &[N::parameters(&affine)], p.norm);
        normed
    }

    /// The norm of column `at`.
    ///
    /// # Safety
    /// The row has it.
    #[inline(always)]
    unsafe fn normed_element<N: HeadNorm>(&self, stats: Stats, at: u32, p: &HeadParams) -> f32 {
        // SAFETY: as the caller promises.
        let [a, b, c, d] = unsafe { self.normed::<N, Scalar>(stats, at / 4 * 4, p) };
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
    unsafe fn write<N: HeadNorm>(&self, stats: Stats, at: u32, rotary: &Rotary, p: &HeadParams) {
        let (head, column) = divide(at, p.dim);
        // SAFETY: columns of the row; the angle of a rotated one.
        unsafe {
            let mut y = self.normed_element::<N>(stats, at, p);
            if rotary.rotates(self.token, column) {
                let partner = head * p.dim + rotary.partner(column);
                let partner = self.normed_element::<N>(stats, partner, p);
                let angle = rotary.element::<T>(self.token, self.head + head, column, N::MAKES_ANGLES);
                y = rotary.rotate_element::<T>(column, y, partner, angle);
            }
            put_element_at(self.y, at, y);
        }
    }
}

/// # Safety
/// As [`head_lanes`](super::warp::head_lanes), for heads of any number of columns; where they are normalised
/// together they lie side by side. Readable as `A` says.
#[inline(always)]
pub(crate) unsafe fn head_rows<T: Elem, N: HeadNorm, A: Access>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: Rotary,
    p: HeadParams,
) {
    let mut memory = SharedMemory::of_launch();
    let number = Team::of_block().row;
    let row = HeadRow::<T>::of(q, k, &p, number as u32);
    let HeadsOperand { cols, inv_cols: inv, .. } = row.operand;
    let exists = number < u64::from(p.rows) * u64::from(p.warp_tasks[0] + p.warp_tasks[1]);
    // SAFETY: as the caller promises.
    let x = unsafe { TeamRow::<T, A>::of(row.x, if exists { cols } else { 0 }, p.staged, &mut memory) };
    let by_fours = is_vector::<A>() || cols.is_multiple_of(LEN);
    let stats = N::of_row(&x, &mut memory, TeamCols { count: cols as f32, inv, by_fours }, p.norm);
    for tile in x.warp_tiles() {
        let (at, columns) = (x.first(tile), x.columns(tile));
        if is_scalar::<A>() {
            for at in at..at + columns.count(0) {
                // SAFETY: a column of the row.
                unsafe { row.write::<N>(stats, at, &rotary, &p) };
            }
            continue;
        }
        // SAFETY: as the caller promises; a team's row is its own.
        let (affine, y) = unsafe {
            (
                AffineRow::<T, A>::of(&row.operand.affine, columns),
                Vec4RowMut::<T, A>::of(&Rows::single(row.y.cast()), RowIndex::FIRST, columns),
            )
        };
        let [mut vec4] = N::apply::<T, 1>(stats, [x.again(tile).lanes()], &[N::parameters(&affine)], p.norm);
        let (head, column) = divide(at, p.dim);
        if rotary.rotates(row.token, column) {
            let mut partners = vec4;
            // SAFETY: the partner is a column of the row; the angles are of rotated ones.
            let angles = unsafe {
                if rotary.halves != 0 {
                    partners = row.normed::<N, A>(stats, head * p.dim + rotary.partner(column), &p);
                }
                rotary.vec4::<T>(row.token, row.head + head, column, N::MAKES_ANGLES)
            };
            vec4 = rotary.rotate_vec4::<T>(column, vec4, partners, angles);
        }
        y.put(0, Vec4::from_lanes(vec4));
    }
}
