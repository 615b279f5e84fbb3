//! Rotary position embedding: how a pair of columns is rotated by its angle.
//!
//! The pair (a, b) becomes (a cos - b sin, b cos + a sin); `rope_pairs` says which columns are one. A thread
//! reads the partners of its columns from memory, where they are in L1 because another lane of the warp has
//! them.
use cuda_std::prelude::*;
use cuda_std::vec4::round;

use super::params::Rotary;
use super::rope_angles::Angles;
use crate::norm::operand::zip;

impl Rotary {
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

    /// `x cos + turned sin`, where `turned` are the partners, with the sign of the first one's changed;
    /// rounded as the eager modules do: after each operation in f32, and in the element type if asked for.
    /// torch's complex product has a fused multiply-add in each sum.
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
