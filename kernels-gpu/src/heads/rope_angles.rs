//! Cosines and sines of the RoPE angles. A kernel loads them from tables in one of several layouts, or
//! computes them from the angle `position * frequency`.
use cuda_std::prelude::*;
use cuda_std::trig::sin_cos;

use super::params::Rotary;
use crate::layout::heads::{Heads, Token, element_at, vec4_at};

/// Cosines and sines for four columns.
#[derive(Clone, Copy)]
pub(crate) struct Angles {
    pub cos: [f32; 4],
    pub sin: [f32; 4],
}

impl Angles {
    /// The angle 0, which rotates nothing.
    pub const NONE: Self = Self { cos: [1.0; 4], sin: [0.0; 4] };

    /// Computes cosines and sines of `position * frequencies` for four columns. If `distinct` is false,
    /// adjacent columns have equal frequencies, so the function computes only two angles.
    #[inline(always)]
    fn of(position: f32, frequencies: [f32; 4], distinct: bool) -> Self {
        let [a, b, c, d] = frequencies;
        let [first, third] = [a, c].map(|frequency| sin_cos(position * frequency));
        let (mut second, mut fourth) = (first, third);
        if distinct {
            [second, fourth] = [b, d].map(|frequency| sin_cos(position * frequency));
        }
        let all = [first, second, third, fourth];
        Self { cos: all.map(|(_, cos)| cos), sin: all.map(|(sin, _)| sin) }
    }

    /// Negates the angles.
    #[inline(always)]
    fn conjugate(&mut self) {
        self.sin = self.sin.map(|sin| -sin);
    }
}

impl Rotary {
    /// Returns the cosines and sines of the four columns from `column` on, which must be columns that RoPE
    /// rotates. `made` says whether the calling kernel contains the code that computes angles from
    /// frequencies.
    ///
    /// # Safety
    /// The tables have the layout that the fields of [`Rotary`] describe, and are readable as aligned vectors
    /// of four elements. `dim` (the number of rotated columns) is a multiple of 8, or a multiple of 4 for
    /// interleaved pairs with [`Rotary::WIDE`] tables. `token` is one of the tokens that RoPE rotates.
    #[inline(always)]
    pub(crate) unsafe fn vec4<T: Elem>(&self, token: Token, head: u32, column: u32, made: bool) -> Angles {
        // SAFETY: `vec4s` reads entries of the tables for this token and column. The tables have these
        // entries, because RoPE rotates the token and the column. The caller passes tables with the layout
        // that the fields of `Rotary` describe.
        unsafe {
            let [mut angles] = self.vec4s::<T, 1>(token, head, [column]);
            if made && self.angles >= Self::COUNTED {
                let token = Token { number: token.number - self.first, ..token };
                angles = Angles::of(self.position(token), angles.cos, self.halves != 0);
                if self.conjugate != 0 {
                    angles.conjugate();
                }
            }
            angles
        }
    }

    /// Returns the cosines and sines of several vectors of four columns. The vectors start at `columns`, and
    /// RoPE must rotate all these columns. If the tables contain frequencies, the field `cos` of the result
    /// contains these frequencies instead of cosines.
    ///
    /// The function branches on the layout of the tables only once, not once per vector. No branch separates
    /// the loads, so all loads are in flight together.
    ///
    /// # Safety
    /// The safety conditions of [`Rotary::vec4`] apply.
    #[inline(always)]
    pub(crate) unsafe fn vec4s<T: Elem, const VEC4S: usize>(
        &self,
        token: Token,
        head: u32,
        columns: [u32; VEC4S],
    ) -> [Angles; VEC4S] {
        let token = Token { number: token.number - self.first, ..token };
        if self.angles == Self::WIDE && self.conjugate == 0 {
            // `WIDE` tables (one entry per column) are the most frequent layout. Unless the angles are
            // negated (`conjugate`), the entries of such tables need no conversion. No instruction in this
            // branch uses the loaded values, so the kernel does not wait for the loads here.
            // SAFETY: the loads read entries of the tables. The caller guarantees that the tables have the
            // layout that the fields of `Rotary` describe. The tables have entries for all rotated columns,
            // and the caller passes only rotated columns.
            return unsafe { self.entries::<T, VEC4S>(token, head, columns, true) };
        }
        let by_pair = self.angles != Self::WIDE && self.angles != Self::COMPLEX;
        let at = columns.map(|column| if by_pair { self.pair(column) } else { column });
        let both = self.angles <= Self::NARROW;
        // SAFETY: `entries` reads entries of the tables for this token and these columns. The tables have
        // these entries, because RoPE rotates the token and the columns. The caller passes tables with the
        // layout that the fields of `Rotary` describe.
        let mut angles = unsafe { self.entries::<T, VEC4S>(token, head, at.map(|at| at / 4 * 4), both) };
        if by_pair && self.halves == 0 {
            for i in 0..VEC4S {
                // The two adjacent columns of a pair use the same entry.
                let spread =
                    |[a, b, c, d]: [f32; 4]| if at[i] % 4 == 0 { [a, a, b, b] } else { [c, c, d, d] };
                let Angles { cos, sin } = angles[i];
                angles[i] = Angles { cos: spread(cos), sin: spread(sin) };
            }
        }
        if self.angles == Self::COMPLEX {
            angles = angles
                .map(|Angles { cos: [a, b, c, d], .. }| Angles { cos: [a, a, c, c], sin: [b, b, d, d] });
        }
        if self.conjugate != 0 {
            angles.iter_mut().for_each(Angles::conjugate);
        }
        angles
    }

    /// Loads several vectors of four table entries. `at` contains the index of the first entry of each
    /// vector. Each index is a multiple of 4. If `both` is false, the method loads only the table `cos`, and
    /// the sines in the result are zero.
    ///
    /// # Safety
    /// The safety conditions of [`Rotary::vec4`] apply.
    #[inline(always)]
    unsafe fn entries<T: Elem, const VEC4S: usize>(
        &self,
        token: Token,
        head: u32,
        at: [u32; VEC4S],
        both: bool,
    ) -> [Angles; VEC4S] {
        // SAFETY: `entries_of` reads these entries of the tables. The caller guarantees that the tables have
        // them. The field `single` says whether the tables are f32.
        unsafe {
            if self.single != 0 {
                self.entries_of::<f32, VEC4S>(token, head, at, both)
            } else {
                self.entries_of::<T, VEC4S>(token, head, at, both)
            }
        }
    }

    /// Implements [`Rotary::entries`] for tables whose elements have type `E`.
    ///
    /// # Safety
    /// The safety conditions of [`Rotary::entries`] apply. In addition, the tables have elements of type `E`.
    #[inline(always)]
    unsafe fn entries_of<E: Elem, const VEC4S: usize>(
        &self,
        token: Token,
        head: u32,
        at: [u32; VEC4S],
        both: bool,
    ) -> [Angles; VEC4S] {
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.at::<E>(token, head));
        // SAFETY: the caller passes tables of `E` with these entries.
        let entries = at.map(|at| unsafe { (vec4_at(cos, at, true), vec4_at(sin, at, both)) });
        entries.map(|(cos, sin)| Angles { cos: cos.lanes(), sin: sin.lanes() })
    }

    /// Returns cosine and sine for `column`, which must be a column that RoPE rotates. `made` says whether
    /// the calling kernel contains the code that computes angles from frequencies.
    ///
    /// # Safety
    /// The tables have the layout that the fields of [`Rotary`] describe. `token` is one of the tokens that
    /// RoPE rotates.
    #[inline(always)]
    pub(crate) unsafe fn element<T: Elem>(
        &self,
        token: Token,
        head: u32,
        column: u32,
        made: bool,
    ) -> (f32, f32) {
        let token = Token { number: token.number - self.first, ..token };
        let pair = self.pair(column);
        // SAFETY: the loads read the entries of the tables for this token and column. The tables have these
        // entries, because RoPE rotates the token and the column. The caller passes tables with the layout
        // that the fields of `Rotary` describe.
        let (cos, sin) = unsafe {
            match self.angles {
                Self::WIDE | Self::NARROW => {
                    let at = if self.angles == Self::WIDE { column } else { pair };
                    (self.entry::<T>(&self.cos, token, head, at), self.entry::<T>(&self.sin, token, head, at))
                }
                Self::COMPLEX => {
                    let table = self.cos.at::<f32>(token, head);
                    (element_at(table, 2 * pair), element_at(table, 2 * pair + 1))
                }
                _ if made => {
                    let (sin, cos) =
                        sin_cos(self.position(token) * element_at(self.cos.at::<f32>(token, head), pair));
                    (cos, sin)
                }
                _ => (1.0, 0.0),
            }
        };
        (cos, if self.conjugate != 0 { -sin } else { sin })
    }

    /// Loads entry `at` of `table` for token `token` and head `head`.
    ///
    /// # Safety
    /// The safety conditions of [`Rotary::element`] apply.
    #[inline(always)]
    unsafe fn entry<T: Elem>(&self, table: &Heads, token: Token, head: u32, at: u32) -> f32 {
        // SAFETY: the load reads entry `at` of the table. The caller guarantees that the table has this
        // entry. The field `single` says whether the table is f32.
        unsafe {
            if self.single != 0 {
                element_at::<f32>(table.at(token, head), at)
            } else {
                element_at::<T>(table.at(token, head), at)
            }
        }
    }

    /// Returns the position of `token`. With [`Rotary::COUNTED`], the position is the index of the token
    /// among the rotated tokens. With [`Rotary::POSITIONED`], the position is the token's entry in the table
    /// `sin`.
    ///
    /// # Safety
    /// The safety conditions of [`Rotary::element`] apply.
    #[inline(always)]
    unsafe fn position(&self, token: Token) -> f32 {
        if self.angles == Self::COUNTED {
            return token.number as f32;
        }
        // SAFETY: the load reads the position of `token` in the table `sin`. The table has a position for
        // each token that RoPE rotates, and the caller passes such a token.
        unsafe { element_at(self.sin.at::<f32>(token, 0), 0) }
    }
}
