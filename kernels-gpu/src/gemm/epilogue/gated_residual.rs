//! Adds a residual: `residual + gate * sum`.
use cuda_std::elem::Elem;
use cuda_std::mem;
use cuda_std::prelude::*;

use super::Epilogue;
use super::fragments::{FragmentPlace, load_word};
use crate::elementwise::partition::Divisor;
use crate::elementwise::rounded_chain::RoundedVec;
use crate::layout::operand_kind::OperandKind;
use crate::norm::broadcast_elements::BroadcastElements;
use crate::norm::gated_residual::gated_sum;
use crate::norm::operand::Operand;

/// The kernel argument: the residual and the gate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedResidualParams {
    /// The residual, with the rows and columns of the result.
    pub residual: *const u8,
    /// Distance of two rows of the residual in bytes.
    pub row_bytes: u64,
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the result. The number is a multiple of 8.
    pub columns: u32,
    /// The gate, which broadcasts to the result, or absent.
    pub gate: Operand,
    /// Number of consecutive rows of the gate in one group. The starts of consecutive groups are
    /// `Rows::outer_stride` elements apart.
    pub group: Divisor,
    /// 1 if the gate has one element per column, 0 if it has one element per row.
    pub gate_step: u32,
    /// 1 to round the matrix product and the gated product to the element type. 0 to round only the result.
    pub exact: u32,
}

/// Epilogue that computes `residual + gate * product`, where `product` is an element of `x wᵀ + bias`. In
/// exact mode, it rounds as the op `gated_residual` does. If `PAIRS` is true, it loads two adjacent elements
/// of the residual with one 4-byte access, which requires aligned rows. The same applies to a gate with
/// 16-bit elements.
#[derive(Clone, Copy)]
pub(crate) struct GatedResidual<const PAIRS: bool>(pub GatedResidualParams);

impl<const PAIRS: bool> GatedResidual<PAIRS> {
    /// Returns the address of the gate's element in column 0 of row `row`.
    #[inline(always)]
    fn gate_row(&self, row: u32) -> *const u8 {
        let (rows, [group, within]) = (&self.0.gate.rows, self.0.group.divide(row));
        let offset = i64::from(within) * rows.inner_stride + i64::from(group) * rows.outer_stride;
        let size = if self.0.gate.kind.is(OperandKind::F32) { 4 } else { 2 };
        rows.base.wrapping_offset((offset * size) as isize)
    }

    /// Returns whether the result has word `word` of a fragment.
    #[inline(always)]
    fn has(&self, at: FragmentPlace, word: u32) -> bool {
        let [row, column] = at.word(word);
        row < self.0.rows && column < self.0.columns
    }

    /// Returns `residual + sum`.
    #[inline(always)]
    fn without_gate<T: Elem<F32Vec = [f32; 8]>>(&self, residual: Pack<T>, sums: [f32; 8]) -> [u32; 4] {
        if self.0.exact != 0 {
            RoundedVec::of(residual).plus(RoundedVec::new(sums)).pack().words()
        } else {
            let residual = residual.lanes();
            T::pack(core::array::from_fn(|i| residual[i] + sums[i]))
        }
    }

    /// Returns the gate's elements for a fragment (a thread's values that are processed together), as words
    /// of two 16-bit elements.
    ///
    /// # Safety
    /// The gate belongs to this launch, and its elements have 16 bits.
    #[inline(always)]
    unsafe fn gate_words(&self, at: FragmentPlace) -> [u32; 4] {
        let rows = [0, 8].map(|offset| self.gate_row(at.row + offset));
        if self.0.gate_step == 0 {
            let values = [0, 1].map(|i| {
                // SAFETY: the load reads the gate's element of a row. The result has this row, and the gate
                // broadcasts to the result.
                let load = || u32::from(unsafe { mem::load_u16(rows[i], Load::ReadOnly) });
                if self.has(at, i as u32) { load() * 0x1_0001 } else { 0 }
            });
            return [values[0], values[1], values[0], values[1]];
        }
        core::array::from_fn(|i| {
            let from = rows[i % 2].wrapping_add(2 * at.word(i as u32)[1] as usize);
            // SAFETY: the load reads the gate's elements of a row and a column. The result has both, and the
            // gate broadcasts to the result.
            if self.has(at, i as u32) { unsafe { load_word(from, PAIRS) } } else { 0 }
        })
    }

    /// Returns the f32 gate's elements for a fragment (a thread's values that are processed together).
    ///
    /// # Safety
    /// The gate belongs to this launch, and its elements are f32.
    #[inline(always)]
    unsafe fn gate_lanes(&self, at: FragmentPlace) -> [f32; 8] {
        let rows = [0, 8].map(|offset| self.gate_row(at.row + offset));
        core::array::from_fn(|i| {
            let column = at.word(i as u32 / 2)[1] + i as u32 % 2;
            let from = rows[i / 2 % 2].wrapping_add((4 * self.0.gate_step * column) as usize);
            // SAFETY: the load reads the gate's element of a row and a column. The result has both, and the
            // gate broadcasts to the result.
            let bits = || unsafe { mem::load_u32(from, Load::ReadOnly) };
            f32::from_bits(if self.has(at, i as u32 / 2) { bits() } else { 0 })
        })
    }
}

/// A thread's elements of the gate, and their place.
#[derive(Clone, Copy)]
pub(crate) struct FetchedGate {
    words: [u32; 4],
    at: FragmentPlace,
}

impl<const PAIRS: bool> Epilogue for GatedResidual<PAIRS> {
    const OPERAND: bool = true;
    type Fetched = FetchedGate;

    #[inline(always)]
    unsafe fn operand(&self, at: FragmentPlace) -> [u32; 4] {
        let rows = [0, 8].map(|offset| {
            let offset = u64::from(at.row + offset) * self.0.row_bytes;
            self.0.residual.wrapping_add(offset as usize)
        });
        core::array::from_fn(|i| {
            let from = rows[i % 2].wrapping_add(2 * at.word(i as u32)[1] as usize);
            // SAFETY: the load reads two adjacent elements of the residual. `has` checked that the residual
            // has the row and the first element. The number of columns is even, so the second element exists,
            // too.
            if self.has(at, i as u32) { unsafe { load_word(from, PAIRS) } } else { 0 }
        })
    }

    #[inline(always)]
    unsafe fn fetch(&self, at: FragmentPlace) -> FetchedGate {
        let words = match self.0.gate.kind {
            // SAFETY: the caller guarantees that the gate belongs to this launch. Its kind says that its
            // elements have 16 bits.
            OperandKind::SAME => unsafe { self.gate_words(at) },
            _ => [0; 4],
        };
        FetchedGate { words, at }
    }

    #[inline(always)]
    fn apply<T: Elem<F32Vec = [f32; 8]>>(
        &self,
        [sums, _]: [[f32; 8]; 2],
        residual: [u32; 4],
        FetchedGate { words, at }: FetchedGate,
    ) -> [u32; 4] {
        let residual = Pack::<T>::from_words(residual);
        let gate = match self.0.gate.kind {
            OperandKind::ABSENT => return self.without_gate(residual, sums),
            // SAFETY: the caller of `fetch` guaranteed that the gate belongs to this launch. Its kind says
            // that its elements are f32.
            OperandKind::F32 => BroadcastElements::F32(unsafe { self.gate_lanes(at) }),
            _ => BroadcastElements::Same(Pack::from_words(words)),
        };
        if self.0.exact != 0 {
            let round_each = self.0.gate.kind.is_not(OperandKind::F32);
            gated_sum(residual, Pack::from_lanes(sums), gate, round_each).words()
        } else {
            let (residual, gate) = (residual.lanes(), gate.lanes());
            T::pack(core::array::from_fn(|i| residual[i] + gate[i] * sums[i]))
        }
    }
}
