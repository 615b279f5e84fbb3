//! Where the angles of a rotation come from: tables in one of several forms, or the product of a position and a frequency.
use cuda_std::prelude::*;
use cuda_std::trig::sin_cos;

use crate::heads::{Heads, Token, element_at, quad_at};
use crate::rotary::Rotary;

/// Cosines and sines of a quad of columns.
#[derive(Clone, Copy)]
pub(crate) struct Angles {
    pub cos: [f32; 4],
    pub sin: [f32; 4],
}

impl Angles {
    /// Those of no rotation.
    pub const NONE: Self = Self { cos: [1.0; 4], sin: [0.0; 4] };

    /// Of the products of `position` with `frequencies`, which are equal in pairs unless they are `distinct`.
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

    #[inline(always)]
    fn conjugate_if(self, wanted: bool) -> Self {
        let sin = if wanted { self.sin.map(|sin| -sin) } else { self.sin };
        Self { sin, ..self }
    }
}

impl Rotary {
    /// The angles of the quad at `column`, which is rotated.
    ///
    /// # Safety
    /// The tables are what the fields say and can be read in quads, as the number of pairs can. Are angles ever
    /// `made` in the kernel?
    #[inline(always)]
    pub(crate) unsafe fn quad<T: Elem>(&self, token: Token, head: u32, column: u32, made: bool) -> Angles {
        let token = Token { number: token.number - self.first, ..token };
        let by_pair = self.angles != Self::WIDE && self.angles != Self::COMPLEX;
        let at = if by_pair { self.pair(column) } else { column };
        // SAFETY: as the caller promises.
        let read = |table: &Heads| unsafe { self.table::<T>(table, token, head, at / 4 * 4) };
        // Neighbouring columns of a pair share its entry.
        let spread = |[a, b, c, d]: [f32; 4]| match (by_pair && self.halves == 0, at % 4 == 0) {
            (false, _) => [a, b, c, d],
            (true, true) => [a, a, b, b],
            (true, false) => [c, c, d, d],
        };
        let first = spread(read(&self.cos));
        let angles = match self.angles {
            Self::WIDE | Self::NARROW => Angles { cos: first, sin: spread(read(&self.sin)) },
            Self::COMPLEX => {
                let [a, b, c, d] = first;
                Angles { cos: [a, a, c, c], sin: [b, b, d, d] }
            }
            // SAFETY: as the caller promises.
            _ if made => Angles::of(unsafe { self.position(token) }, first, self.halves != 0),
            _ => Angles::NONE,
        };
        angles.conjugate_if(self.conjugate != 0)
    }

    /// Cosine and sine of `column`, which is rotated.
    ///
    /// # Safety
    /// The tables are what the fields say.
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
        // SAFETY: as the caller promises.
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

    /// # Safety
    /// As [`Rotary::quad`].
    #[inline(always)]
    unsafe fn table<T: Elem>(&self, table: &Heads, token: Token, head: u32, column: u32) -> [f32; 4] {
        // SAFETY: as the caller promises.
        unsafe {
            if self.single != 0 {
                quad_at::<f32>(table.at(token, head), column, true).lanes()
            } else {
                quad_at::<T>(table.at(token, head), column, true).lanes()
            }
        }
    }

    /// # Safety
    /// As [`Rotary::element`].
    #[inline(always)]
    unsafe fn entry<T: Elem>(&self, table: &Heads, token: Token, head: u32, at: u32) -> f32 {
        // SAFETY: as the caller promises.
        unsafe {
            if self.single != 0 {
                element_at::<f32>(table.at(token, head), at)
            } else {
                element_at::<T>(table.at(token, head), at)
            }
        }
    }

    /// # Safety
    /// As [`Rotary::element`].
    #[inline(always)]
    unsafe fn position(&self, token: Token) -> f32 {
        if self.angles == Self::COUNTED {
            return token.number as f32;
        }
        // SAFETY: as the caller promises.
        unsafe { element_at(self.sin.at::<f32>(token, 0), 0) }
    }
}
