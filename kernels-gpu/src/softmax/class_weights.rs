//! One weight per class, as the argument `weight` of torch's `cross_entropy`.
use cuda_std::prelude::*;

use crate::layout::operand_kind::OperandKind;
use crate::rms::weight::Weight;

/// The weights of all classes, in the element type of the logits or in f32.
#[derive(Clone, Copy)]
pub(crate) struct ClassWeights<T, const VECTOR: bool> {
    kind: OperandKind,
    same: Row<T, VECTOR>,
    single: Row<f32, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> ClassWeights<T, VECTOR> {
    /// Returns the weights as a row that the team reads together with each row of the logits.
    ///
    /// # Safety
    /// `weight` is absent, or has `cols` elements of the type in `weight.kind`. If `VECTOR` is true, they are
    /// aligned to 16 bytes.
    #[inline(always)]
    pub unsafe fn of(weight: Weight, team: Team, cols: u32) -> Self {
        let (rows, kind) = (Rows::single(weight.base), weight.kind);
        // SAFETY: the caller guarantees `cols` elements of the type in `kind`. The methods read only the row
        // of this type.
        unsafe {
            Self {
                kind,
                same: Row::of(&rows, team, RowIndex::FIRST, cols),
                single: Row::of(&rows, team, RowIndex::FIRST, cols),
            }
        }
    }

    /// Loads the weights of the thread's columns of tile number `tile`. They are 0 after the last column.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> T::F32Vec {
        match self.kind {
            OperandKind::SAME => self.same.lanes(tile, Load::ReadOnly),
            _ => self.single.lanes(tile, Load::ReadOnly),
        }
    }

    /// Returns the weight of the class `column`, which is one of the classes.
    #[inline(always)]
    pub fn get(&self, column: u32) -> f32 {
        let weight = match self.kind {
            OperandKind::SAME => self.same.get(column, Load::ReadOnly),
            _ => self.single.get(column, Load::ReadOnly),
        };
        weight.unwrap_or(f32::NAN)
    }

    /// Returns the mean of all weights. Every thread of the block must call this function. All threads of the
    /// team get the same bits.
    #[inline(always)]
    pub fn mean(&self, team: Team, cols: u32) -> f32 {
        let mut sum = 0.0;
        for tile in 0..self.same.tiles() {
            sum += self.lanes(tile).sum();
        }
        team.sum(sum, &mut SharedMemory::of_launch()) * (1.0 / cols as f32)
    }
}
