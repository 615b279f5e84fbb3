//! Rotary position embedding (RoPE): a pair of columns `(a, b)` becomes `(a cos - b sin, b cos + a sin)`.
//!
//! The two columns of a pair are called partners. The module `rope_pairs` defines which columns are partners.
//! The module `rope_angles` loads or computes the angles.
use cuda_std::prelude::*;
use cuda_std::vec4::round;

use super::params::Rotary;
use super::rope_angles::Angles;
use crate::norm::operand::zip;

impl Rotary {
    /// Rotates `x`, the four columns from `column` on. For half-split pairs (columns `dim / 2` apart),
    /// `partners` has the other column of each pair. For interleaved pairs (adjacent columns), `x` has both
    /// columns of each pair, and `partners` is not used.
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

    /// Returns `x cos + rotated sin`. For each column of `x`, `rotated` contains the other column of the same
    /// pair. The caller must negate this value if the column of `x` is the first column of its pair.
    ///
    /// This method rounds as the torch modules do in eager mode. Each multiplication and each addition rounds
    /// to f32. With `round_each`, the two products are also rounded to the element type. The caller rounds
    /// the sum to the element type. With [`Rotary::COMPLEX`], a fused multiply-add computes one product and
    /// the sum, as in torch's complex multiplication.
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
        // Each branch contains a loop over all vectors of four columns. The compiler can then interleave the
        // instructions of several vectors.
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

    /// Rotates one column, whose value is `x`, with the roundings of [`Rotary::rotate`]. `partner` is the
    /// value of the other column of the same pair.
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

/// Takes the two interleaved pairs `(a, b)` and `(c, d)`. Returns `(-b, a, -d, c)`: for each column, the
/// other column of the same pair. The value is negated if the column is the first column of its pair.
#[inline(always)]
pub(crate) fn interleaved_partners([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [-b, a, -d, c]
}
