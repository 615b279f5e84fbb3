//! Normalises and rotates (RoPE) rows of queries and keys. The threads that share a row are called a team.
//!
//! If all heads of a token are normalised together, they are one row. Otherwise, each row is one head. The
//! kernels of this module then run for heads with more than 256 columns and for heads that are not aligned.
//! The kernels of the module `warp` do not support such heads. The rows of a token have consecutive indices.
//! The team of the first row loads the RoPE angles of the token. The other teams then usually find the angles
//! in L1.
//!
//! RoPE rotates pairs of columns. For half-split pairs (columns `dim / 2` apart), the two columns of a pair
//! are in different vectors of four columns. For each of its vectors, a thread therefore also loads the
//! vector that contains the other columns of the pairs. This second load hits L1, because the team has
//! already loaded the whole row.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, Scalar, is_scalar, is_vector};

use super::norm::HeadNorm;
use super::params::{HeadParams, HeadsOperand, Rotary};
use crate::layout::heads::{Token, divide, put_element_at};
use crate::norm::affine::AffineRow;
use crate::norm::reduce::stats::Stats;
use crate::norm::reduce::team::TeamCols;
use crate::norm::reduce::team_row::TeamRow;

/// The row that the calling thread processes, together with the other threads of its team.
#[derive(Clone, Copy)]
pub(crate) struct HeadRow<T> {
    pub x: *const T,
    pub y: *mut T,
    pub operand: HeadsOperand,
    pub token: Token,
    /// The index of the row's first head.
    pub head: u32,
}

impl<T: Elem> HeadRow<T> {
    /// Returns row `row` of the launch. The rows of a token are consecutive: first the rows of its queries,
    /// then the rows of its keys.
    #[inline(always)]
    pub fn of(q: HeadsOperand, k: HeadsOperand, p: &HeadParams, row: u32) -> Self {
        let [queries, keys] = p.warp_tasks;
        let (token, row) = divide(row, queries + keys);
        let token = Token::of(token, p.tokens);
        let is_key = row >= queries;
        let (operand, head) = (if is_key { k } else { q }, if is_key { row - queries } else { row });
        Self { x: operand.x.at(token, head), y: operand.y.at(token, head), operand, token, head }
    }

    /// Loads and normalises the vec4 (four columns) at column `at`, which is a multiple of 4. Columns past
    /// the end of the row are read as zero.
    ///
    /// # Safety
    /// `at` is a column of the row. The row is readable, and has the alignment that the access type `A`
    /// requires. `A` says how many elements one load reads.
    #[inline(always)]
    unsafe fn normed<N: HeadNorm, A: Access>(&self, stats: Stats, at: u32, p: &HeadParams) -> [f32; 4] {
        let columns = Vec4Columns::of_one(at, self.operand.cols);
        // SAFETY: the loads read four columns of the row, the weight and the bias. The caller passes a
        // readable row and the first of four columns, `at`. Columns past the end are not read. The host
        // checked that weight and bias have as many columns as the row.
        let (x, affine) = unsafe {
            (
                Vec4Row::<T, A>::of(&Rows::single(self.x.cast()), RowIndex::FIRST, columns),
                AffineRow::<T, A>::of(&self.operand.affine, columns),
            )
        };
        let [normed] = N::apply::<T, 1>(stats, [x.get(0).lanes()], &[N::parameters(&affine)], p.norm);
        normed
    }

    /// Loads and normalises column `at`.
    ///
    /// # Safety
    /// `at` is a column of the row.
    #[inline(always)]
    unsafe fn normed_element<N: HeadNorm>(&self, stats: Stats, at: u32, p: &HeadParams) -> f32 {
        // SAFETY: `normed` requires a column of the row, which the caller passes. Scalar access needs no
        // alignment.
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
    /// `at` is a column of the row, and no other thread writes it.
    #[inline(always)]
    unsafe fn write<N: HeadNorm>(&self, stats: Stats, at: u32, rotary: &Rotary, p: &HeadParams) {
        let (head, column) = divide(at, p.dim);
        // SAFETY: the code reads column `at` of the row and the other column of its RoPE pair. The row has
        // both columns. The code reads the angle only if `rotates` returned true, which means that the tables
        // of angles have an entry for this token and column.
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

/// Normalises, rotates and writes the row of the calling thread's team (the threads that share this row).
///
/// # Safety
/// The safety conditions of [`head_lanes`](super::warp::head_lanes) apply, with two exceptions. Any head
/// dimension is permitted. The required alignment is that of the access type `A` (how many elements one load
/// reads). In addition, heads that are normalised together are contiguous in memory.
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
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. If the launch has no row for this team (the threads that share a row), `x` has 0 columns and
    // nothing is read.
    let x = unsafe { TeamRow::<T, A>::of(row.x, if exists { cols } else { 0 }, p.staged, &mut memory) };
    let by_fours = is_vector::<A>() || cols.is_multiple_of(LEN);
    let stats = N::of_row(&x, &mut memory, TeamCols { count: cols as f32, inv, by_fours }, p.norm);
    for tile in x.warp_tiles() {
        let (at, columns) = (x.first(tile), x.columns(tile));
        if is_scalar::<A>() {
            for at in at..at + columns.count(0) {
                // SAFETY: the loop covers only columns of the row. No other thread writes the column `at`.
                unsafe { row.write::<N>(stats, at, &rotary, &p) };
            }
            continue;
        }
        // SAFETY: the loads and stores access weight, bias and output, whose shapes, dtypes and alignment the
        // host checked. No thread outside of the calling team (the threads that share this row) writes this
        // row of the output.
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
            // SAFETY: the code reads column `at` of the row and the other column of its RoPE pair. The row
            // has both columns. The branch ensures that the tables of angles have entries for this token and
            // column.
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
