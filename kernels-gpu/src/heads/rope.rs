//! Rotary position embedding: which columns make a pair, and how the pair is rotated by its angle.
//!
//! The pair (a, b) becomes (a cos - b sin, b cos + a sin). Pairs are neighbours, or columns half the rotated width apart.
//! A thread reads the partners of its columns from memory, where they are in L1 because another lane of the warp has them.
use cuda_std::prelude::*;
use cuda_std::vec4::round;

use super::rope_angles::Angles;
use crate::layout::heads::{Heads, Token};
use crate::norm::operand::zip;

/// How heads are rotated: a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Cosines; cosine and sine in turn if they are complex; frequencies, f32, if the kernel makes the angles.
    pub cos: Heads,
    /// Sines; positions, f32, if the kernel makes the angles and they are given.
    pub sin: Heads,
    /// The first token that is rotated.
    pub first: u32,
    /// Tokens that are rotated from there on; the others pass.
    pub tokens: u32,
    /// Columns of a head that are rotated, an even number; the others pass.
    pub dim: u32,
    /// One of [`Rotary::WIDE`], [`Rotary::NARROW`], [`Rotary::COMPLEX`], [`Rotary::COUNTED`], [`Rotary::POSITIONED`].
    pub angles: u32,
    /// Are pairs half the rotated columns apart (`rotate_half`), not neighbours? 0 or 1.
    pub halves: u32,
    /// Are the tables in f32, not of the element type? 0 or 1.
    pub single: u32,
    /// Round both products and their sum to the element type, not the sum alone. 0 or 1.
    pub round_each: u32,
    /// Rotate by the negative angle. 0 or 1.
    pub conjugate: u32,
}

impl Rotary {
    /// Tables with an entry for each rotated column.
    pub const WIDE: u32 = 0;
    /// Tables with an entry for each pair.
    pub const NARROW: u32 = 1;
    /// A table with a complex number for each pair, which are neighbours.
    pub const COMPLEX: u32 = 2;
    /// Angles are the token's number times the pair's frequency.
    pub const COUNTED: u32 = 3;
    /// Angles are the token's position times the pair's frequency.
    pub const POSITIONED: u32 = 4;

    /// No rotation.
    pub const NONE: Self = Self {
        cos: Heads::ABSENT,
        sin: Heads::ABSENT,
        first: 0,
        tokens: 0,
        dim: 0,
        angles: Self::WIDE,
        halves: 0,
        single: 0,
        round_each: 0,
        conjugate: 0,
    };

    /// Has every head angles of its own?
    pub fn by_head(&self) -> bool {
        self.cos.head_stride != 0
    }

    /// Is `column` rotated in this token?
    #[inline(always)]
    pub(crate) fn rotates(&self, token: Token, column: u32) -> bool {
        token.number.wrapping_sub(self.first) < self.tokens && column < self.dim
    }

    /// The other column of the pair.
    #[inline(always)]
    pub(crate) fn partner(&self, column: u32) -> u32 {
        let half = self.dim / 2;
        match (self.halves != 0, column < half) {
            (false, _) => column ^ 1,
            (true, true) => column + half,
            (true, false) => column - half,
        }
    }

    /// Is `column` the second of its pair?
    #[inline(always)]
    fn is_second(&self, column: u32) -> bool {
        if self.halves != 0 { column >= self.dim / 2 } else { column % 2 == 1 }
    }

    /// The number of the column's pair.
    #[inline(always)]
    pub(crate) fn pair(&self, column: u32) -> u32 {
        match (self.halves != 0, column < self.dim / 2) {
            (false, _) => column / 2,
            (true, true) => column,
            (true, false) => column - self.dim / 2,
        }
    }

    /// The quad at `column` rotated, whose partners are `partners` if pairs are halves apart, else in it.
    #[inline(always)]
    pub(crate) fn turn_quad<T: Elem>(
        &self,
        column: u32,
        x: [f32; 4],
        partners: [f32; 4],
        angles: Angles,
    ) -> [f32; 4] {
        let turned = match (self.halves != 0, self.is_second(column)) {
            (false, _) => neighbours(x),
            (true, true) => partners,
            (true, false) => partners.map(|x| -x),
        };
        let [y] = self.turn::<T, 1>([x], [turned], &[angles]);
        y
    }

    /// `x cos + turned sin`, where `turned` are the partners, with the sign of the first one's changed; rounded as the eager
    /// modules do: after each operation in f32, and in the element type if asked for. torch's complex product has a
    /// fused multiply-add in each sum.
    #[inline(always)]
    pub(crate) fn turn<T: Elem, const QUADS: usize>(
        &self,
        x: [[f32; 4]; QUADS],
        turned: [[f32; 4]; QUADS],
        angles: &[Angles; QUADS],
    ) -> [[f32; 4]; QUADS] {
        let mut y = x;
        let own = |i: usize| zip(x[i], angles[i].cos, |x, cos| x * cos);
        let theirs = |i: usize| zip(turned[i], angles[i].sin, |x, sin| x * sin);
        // Asked once for all quads, that the compiler may mix their instructions.
        if self.angles == Self::COMPLEX {
            for i in 0..QUADS {
                let (x, turned, Angles { cos, sin }, own, theirs) =
                    (x[i], turned[i], angles[i], own(i), theirs(i));
                y[i] = [
                    fma(x[0], cos[0], theirs[0]),
                    fma(turned[1], sin[1], own[1]),
                    fma(x[2], cos[2], theirs[2]),
                    fma(turned[3], sin[3], own[3]),
                ];
            }
        } else if self.round_each != 0 {
            for i in 0..QUADS {
                y[i] = zip(round::<T>(own(i)), round::<T>(theirs(i)), |own, theirs| own + theirs);
            }
        } else {
            for i in 0..QUADS {
                y[i] = zip(own(i), theirs(i), |own, theirs| own + theirs);
            }
        }
        y
    }

    /// The same for one column.
    #[inline(always)]
    pub(crate) fn turn_element<T: Elem>(
        &self,
        column: u32,
        x: f32,
        partner: f32,
        (cos, sin): (f32, f32),
    ) -> f32 {
        let second = self.is_second(column);
        let turned = if second { partner } else { -partner };
        let (own, theirs) = (x * cos, turned * sin);
        match (self.angles == Self::COMPLEX, second, self.round_each != 0) {
            (true, false, _) => fma(x, cos, theirs),
            (true, true, _) => fma(turned, sin, own),
            (false, _, true) => T::round(own) + T::round(theirs),
            (false, _, false) => own + theirs,
        }
    }
}

/// The partners in a quad of neighbours, with the sign of the first one's changed.
#[inline(always)]
pub(crate) fn neighbours([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [-b, a, -d, c]
}
