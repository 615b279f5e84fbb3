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
    pub(crate) fn rotate_vec4<T: Elem>(
        &self,
        column: u32,
        x: [f32; 4],
        partners: [f32; 4],
        angles: Angles,
    ) -> [f32; 4] {
        let rotated = match (self.halves != 0, self.is_second(column)) {
            (false, _) => interleaved_partners(x),
            (true, true) => partners,
            (true, false) => partners.map(|x| -x),
        };
        let [y] = self.rotate::<T, 1>([x], [rotated], &[angles]);
        y
    }

    /// `x cos + rotated sin`, where `rotated` are the partners, with the sign of the first one's changed;
    /// rounded as the eager modules do: after each operation in f32, and in the element type if asked for.
    /// torch's complex product has a fused multiply-add in each sum.
    #[inline(always)]
    pub(crate) fn rotate<T: Elem, const VEC4S: usize>(
        &self,
        x: [[f32; 4]; VEC4S],
        rotated: [[f32; 4]; VEC4S],
        angles: &[Angles; VEC4S],
    ) -> [[f32; 4]; VEC4S] {
        let mut y = x;
        let direct = |i: usize| zip(x[i], angles[i].cos, |x, cos| x * cos);
        let theirs = |i: usize| zip(rotated[i], angles[i].sin, |x, sin| x * sin);
        // Asked once for all quads, that the compiler may mix their instructions.
        if self.angles == Self::COMPLEX {
            for i in 0..VEC4S {
                let (x, rotated, Angles { cos, sin }, direct, theirs) =
                    (x[i], rotated[i], angles[i], direct(i), theirs(i));
                y[i] = [
                    fma(x[0], cos[0], theirs[0]),
                    fma(rotated[1], sin[1], direct[1]),
                    fma(x[2], cos[2], theirs[2]),
                    fma(rotated[3], sin[3], direct[3]),
                ];
            }
        } else if self.round_each != 0 {
            for i in 0..VEC4S {
                y[i] = zip(round::<T>(direct(i)), round::<T>(theirs(i)), |direct, theirs| direct + theirs);
            }
        } else {
            for i in 0..VEC4S {
                y[i] = zip(direct(i), theirs(i), |direct, theirs| direct + theirs);
            }
        }
        y
    }

    /// The same for one column.
    #[inline(always)]
    pub(crate) fn rotate_element<T: Elem>(
        &self,
        column: u32,
        x: f32,
        partner: f32,
        (cos, sin): (f32, f32),
    ) -> f32 {
        let second = self.is_second(column);
        let rotated = if second { partner } else { -partner };
        let (direct, theirs) = (x * cos, rotated * sin);
        match (self.angles == Self::COMPLEX, second, self.round_each != 0) {
            (true, false, _) => fma(x, cos, theirs),
            (true, true, _) => fma(rotated, sin, direct),
            (false, _, true) => T::round(direct) + T::round(theirs),
            (false, _, false) => direct + theirs,
        }
    }
}

/// The partners in a quad of neighbours, with the sign of the first one's changed.
#[inline(always)]
pub(crate) fn interleaved_partners([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [-b, a, -d, c]
}
