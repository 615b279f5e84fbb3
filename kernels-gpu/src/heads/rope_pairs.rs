//! The pairs of columns that RoPE rotates.
//!
//! An interleaved pair consists of two adjacent columns. The columns of a half-split pair are `dim / 2`
//! apart.
use super::params::Rotary;
use crate::layout::heads::Token;

impl Rotary {
    /// Returns whether `column` is rotated in `token`.
    #[inline(always)]
    pub(crate) fn rotates(&self, token: Token, column: u32) -> bool {
        token.number.wrapping_sub(self.first) < self.tokens && column < self.dim
    }

    /// Returns the other column of the pair that contains `column`.
    #[inline(always)]
    pub(crate) fn partner(&self, column: u32) -> u32 {
        let half = self.dim / 2;
        match (self.halves != 0, column < half) {
            (false, _) => column ^ 1,
            (true, true) => column + half,
            (true, false) => column - half,
        }
    }

    /// Returns whether `column` is the second column of its pair.
    #[inline(always)]
    pub(crate) fn is_second(&self, column: u32) -> bool {
        if self.halves != 0 { column >= self.dim / 2 } else { column % 2 == 1 }
    }

    /// Returns the index of the pair that contains `column`.
    #[inline(always)]
    pub(crate) fn pair(&self, column: u32) -> u32 {
        match (self.halves != 0, column < self.dim / 2) {
            (false, _) => column / 2,
            (true, true) => column,
            (true, false) => column - self.dim / 2,
        }
    }
}
