//! RoPE tables whose rows are chosen by the positions of the tokens: token `t` has the angles in row
//! `positions[t]` of the tables.
use cuda_std::mem;
use cuda_std::prelude::*;

use super::params::{PositionedRotary, Positions, Rotary};
use crate::layout::heads::{Heads, Token};

impl PositionedRotary {
    /// Returns the rotary position embedding of `token`. Its tables have the angles of this token in every
    /// row. `exists` says whether the launch has the token.
    ///
    /// # Safety
    /// If `exists` is true and RoPE rotates the token, the positions have an entry for it.
    #[inline(always)]
    pub(crate) unsafe fn of_token<T: Elem>(&self, token: Token, exists: bool) -> Rotary {
        let Self { mut rotary, positions } = *self;
        if positions.base.is_null() || !exists || !rotary.rotates(token, 0) {
            return rotary;
        }
        let token = Token { number: token.number - rotary.first, ..token };
        // SAFETY: the load reads the position of this token. The caller guarantees that there is one.
        let row = unsafe { positions.row(token) };
        let size = if rotary.single != 0 { size_of::<f32>() } else { size_of::<T>() };
        [rotary.cos, rotary.sin] = [rotary.cos, rotary.sin].map(|table| table.only_row(row, size));
        rotary
    }
}

impl Positions {
    /// Returns the row of the tables for `token`, whose number counts from the first rotated token. A
    /// position that the tables do not have gives their last row.
    ///
    /// # Safety
    /// The positions have an entry for this token.
    #[inline(always)]
    unsafe fn row(&self, token: Token) -> u32 {
        let index = i64::from(token.batch) * self.batch_stride + i64::from(token.number) * self.token_stride;
        let place = self.base.wrapping_offset((index * i64::from(self.bytes)) as isize);
        // SAFETY: the loads read the position of this token. The caller guarantees that there is one.
        let position = unsafe {
            if self.bytes == 8 {
                let [low, high] = mem::load_u32x2(place, Load::ReadOnly);
                if high == 0 { low } else { u32::MAX }
            } else {
                mem::load_u32(place, Load::ReadOnly)
            }
        };
        position.min(self.rows - 1)
    }
}

impl Heads {
    /// Returns the table that has row `row` of this table for all tokens. An element has `size` bytes.
    #[inline(always)]
    fn only_row(self, row: u32, size: usize) -> Self {
        let bytes = i64::from(row) * self.token_stride * size as i64;
        Self { base: self.base.wrapping_offset(bytes as isize), token_stride: 0, ..self }
    }
}
