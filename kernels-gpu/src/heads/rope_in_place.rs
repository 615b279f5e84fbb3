//! RoPE without a norm, for outputs that may be the inputs. The heads may have any length and alignment, and
//! any columns may be rotated.
//!
//! A thread has both columns of each of its pairs, and reads both before it writes one of them. If the pairs
//! are half-split (columns `dim / 2` apart), the threads of the second halves of heads do nothing.
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, LEN, Scalar, Vectorized, is_scalar};

use super::params::{HeadParams, HeadsOperand, PositionedRotary, Rotary};
use super::rope_angles::Angles;
use crate::layout::heads::{Token, divide, put_element_at, put_vec4_at};

/// Rotates pairs of columns of one query head and of the key head with the same index. With the access type
/// [`Scalar`], the thread has one pair, otherwise four columns, and if the pairs are
/// half-split, also the four columns of their partners.
///
/// # Safety
/// The safety conditions of [`head_lanes`](super::warp::head_lanes) apply, with these exceptions. Any head
/// dimension is permitted. The required alignment is that of the access type `A`. Each `y` may be the `x` of
/// the same operand.
///
/// The grid has `p.blocks` blocks for each group of tokens. A block processes some columns of all tokens of
/// one group. `threadIdx.y` is the index of the token in the group.
#[inline(always)]
pub(crate) unsafe fn rotated_in_place<T: Elem, A: Access>(
    q: HeadsOperand,
    k: HeadsOperand,
    rotary: PositionedRotary,
    p: HeadParams,
) {
    let ([rank, nth, _], [threads, tokens, _], [block, ..]) =
        (thread::index(), thread::block_dim(), thread::block_index());
    let (group, block) = divide(block, p.blocks);
    // If the sum saturates, `number` is not below `p.rows`, so the token does not exist.
    let number = (group * tokens).saturating_add(nth);
    let columns = if is_scalar::<A>() { 1 } else { LEN };
    let (head, column) = divide(columns * (rank + threads * block), p.dim);
    let (operands, token) = ([&q, &k], Token::of(number, p.tokens));
    let has = operands.map(|operand| number < p.rows && head < operand.heads);
    // SAFETY: this code reads and writes only operands whose shapes, dtypes and alignment the host checked.
    // `has` excludes tokens and heads that do not exist. Only this thread accesses its pairs of columns.
    unsafe {
        let rotary = rotary.of_token::<T>(token, number < p.rows);
        let Some(pairs) = ThreadPairs::of::<T, A>(rotary, token, head, column, has[0] || has[1]) else {
            return;
        };
        for i in 0..2 {
            let (x, y) = (operands[i].x.at::<T>(token, head), operands[i].y.at::<T>(token, head));
            if has[i] && is_scalar::<A>() {
                pairs.rotate_elements(x, y);
            } else if has[i] {
                pairs.rotate_vec4s(x, y);
            }
        }
    }
}

/// The pairs of columns of a thread, and their angles.
struct ThreadPairs {
    rotary: Rotary,
    is_rotated: bool,
    /// The thread's column, or the first of its four columns, and the partner of this column. The partner is
    /// used only for a column that is rotated.
    columns: [u32; 2],
    /// The angles of both columns. A thread with one pair uses only the first element of each array.
    angles: [Angles; 2],
}

impl ThreadPairs {
    /// Returns the pairs of the columns from `column` on, or `None` if another thread has these pairs.
    /// `exists` says whether the launch has a head with index `head`.
    ///
    /// # Safety
    /// The safety conditions of [`rotated_in_place`] apply.
    #[inline(always)]
    unsafe fn of<T: Elem, A: Access>(
        rotary: Rotary,
        token: Token,
        head: u32,
        column: u32,
        exists: bool,
    ) -> Option<Self> {
        let is_rotated = exists && rotary.rotates(token, column);
        let is_split = is_scalar::<A>() || rotary.halves != 0;
        if is_rotated && is_split && rotary.is_second(column) {
            return None;
        }
        let columns = [column, rotary.partner(column)];
        let mut angles = [Angles::NONE; 2];
        for i in 0..2 {
            if is_rotated && (i == 0 || is_split) {
                // SAFETY: the tables have angles for this token and column, because RoPE rotates both.
                angles[i] = unsafe {
                    if is_scalar::<A>() {
                        let (cos, sin) = rotary.element::<T>(token, head, columns[i], true);
                        Angles { cos: [cos; 4], sin: [sin; 4] }
                    } else {
                        rotary.vec4::<T>(token, head, columns[i], true)
                    }
                };
            }
        }
        Some(Self { rotary, is_rotated, columns, angles })
    }

    /// Rotates one pair of columns of the head at `x`, or copies one column that is not rotated.
    ///
    /// # Safety
    /// The safety conditions of [`rotated_in_place`] apply.
    #[inline(always)]
    unsafe fn rotate_elements<T: Elem>(&self, x: *const T, y: *mut T) {
        let [own, partner] = self.columns;
        // SAFETY: the loads and stores access columns of the head. Its `partner` is a column of the head, if
        // the column is rotated.
        unsafe {
            let first = element_at(x, own);
            if !self.is_rotated {
                return put_element_at(y, own, first);
            }
            let second = element_at(x, partner);
            let [a, b] = self.angles.map(|Angles { cos: [cos, ..], sin: [sin, ..] }| (cos, sin));
            put_element_at(y, own, self.rotary.rotate_element::<T>(own, first, second, a));
            put_element_at(y, partner, self.rotary.rotate_element::<T>(partner, second, first, b));
        }
    }

    /// Rotates four columns of the head at `x`, and their partners, or copies four columns that are not
    /// rotated.
    ///
    /// # Safety
    /// The safety conditions of [`rotated_in_place`] apply.
    #[inline(always)]
    unsafe fn rotate_vec4s<T: Elem>(&self, x: *const T, y: *mut T) {
        let ([own, partner], is_split) = (self.columns, self.is_rotated && self.rotary.halves != 0);
        // SAFETY: the loads and stores access columns of the head. The vec4 (four columns) that starts at
        // `partner` is inside the head, if the columns are rotated and the pairs are half-split.
        unsafe {
            let first = columns_at::<T, Vectorized>(x, own, LEN);
            if !self.is_rotated {
                return put_vec4_at(y, own, first, true);
            }
            let second = if is_split { columns_at::<T, Vectorized>(x, partner, LEN) } else { first };
            let ([a, b], [first, second]) = (self.angles, [first, second].map(|vec4| vec4.lanes()));
            let rotated = self.rotary.rotate_vec4::<T>(own, first, second, a);
            put_vec4_at(y, own, Vec4::from_lanes(rotated), true);
            if is_split {
                let rotated = self.rotary.rotate_vec4::<T>(partner, second, first, b);
                put_vec4_at(y, partner, Vec4::from_lanes(rotated), true);
            }
        }
    }
}

/// Loads `count` columns of the head that starts at `start`, from column `column` on. `count` is [`LEN`], or
/// less if `A` is [`Scalar`]. Unlike `ld.global.nc`, the load may read memory that the kernel writes.
///
/// # Safety
/// The columns are readable, and have the alignment that the access type `A` requires.
#[inline(always)]
unsafe fn columns_at<T: Elem, A: Access>(start: *const T, column: u32, count: u32) -> Vec4<T> {
    let rows = Rows::single(start.wrapping_add(column as usize).cast());
    // SAFETY: the load reads `count` columns of `rows`. The caller guarantees that they are readable.
    unsafe { Vec4Row::<T, A>::of(&rows, RowIndex::FIRST, Vec4Columns::of_one(0, count)) }
        .load(0, Load::Default)
}

/// Loads the element in column `column` of the head that starts at `start`, and converts it to f32.
///
/// # Safety
/// The element is readable.
#[inline(always)]
unsafe fn element_at<T: Elem>(start: *const T, column: u32) -> f32 {
    // SAFETY: the caller guarantees that the element is readable.
    let [x, ..] = unsafe { columns_at::<T, Scalar>(start, column, 1) }.lanes();
    x
}
