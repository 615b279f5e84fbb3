//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
//!
//! Element by element. A thread loads its packs before it computes any. `gated_residual_<dtype>` takes any layout;
//! `gated_residual_hold2_<dtype>` wants rows that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::elementwise::{Extent, MAX_THREADS};
use crate::gated::{Gated, clamped};
use crate::operand::{Modulation, Operand};

/// A thread's columns of an operand whose type is known when the kernel runs.
#[derive(Clone, Copy)]
struct AnyRow<T, const VECTOR: bool> {
    same: Row<T, VECTOR>,
    single: Row<f32, VECTOR>,
    kind: u32,
}

impl<T: Elem, const VECTOR: bool> AnyRow<T, VECTOR> {
    /// # Safety
    /// As [`Row::of`], for the type that the operand's kind says.
    #[inline(always)]
    unsafe fn of(operand: &Operand, team: Team, at: RowAt, cols: u32) -> Self {
        // SAFETY: as the caller promises: only the row of the operand's own type is read.
        unsafe {
            Self {
                same: Row::of(&operand.rows, team, at, cols),
                single: Row::of(&operand.rows, team, at, cols),
                kind: operand.kind,
            }
        }
    }

    #[inline(always)]
    fn lanes(&self, tile: u32) -> T::Lanes {
        match self.kind {
            Operand::F32 => self.single.lanes(tile, Load::ReadOnly),
            _ => self.same.lanes(tile, Load::ReadOnly),
        }
    }
}

/// A thread's columns of the gate.
#[derive(Clone, Copy)]
struct Gate<T, const VECTOR: bool> {
    value: AnyRow<T, VECTOR>,
    table: AnyRow<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Gate<T, VECTOR> {
    /// # Safety
    /// As [`AnyRow::of`]; the table is one row.
    #[inline(always)]
    unsafe fn of(gate: &Modulation, team: Team, at: RowAt, cols: u32) -> Self {
        // SAFETY: as the caller promises; an absent table is never read.
        unsafe {
            Self {
                value: AnyRow::of(&gate.value, team, at, cols),
                table: AnyRow::of(&gate.table, team, RowAt::FIRST, cols),
            }
        }
    }

    #[inline(always)]
    fn lanes(&self, tile: u32) -> T::Lanes {
        let value = self.value.lanes(tile);
        if self.table.kind == Operand::NONE {
            return value;
        }
        let sum = self.table.lanes(tile).zip(value, |table, value| table + value);
        let both_same = self.value.kind == Operand::SAME && self.table.kind == Operand::SAME;
        if both_same { Pack::<T>::from_lanes(sum).lanes() } else { sum }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `sum` have the extent's rows, the gate as many of the type that its kind says, its
/// table one row, all `Rows::is_vector` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const HELD: usize, const VECTOR: bool>(gated: Gated, extent: Extent) {
    thread::launch_bounds::<MAX_THREADS, 4>();
    let team = Team::of_block();
    let (at, cols) = extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, y, gate, sum) = unsafe {
        (
            Row::<T, VECTOR>::of(&gated.x, team, at, cols),
            Row::<T, VECTOR>::of(&gated.y, team, at, cols),
            Gate::<T, VECTOR>::of(&gated.gate, team, at, cols),
            RowMut::<T, VECTOR>::of(&gated.sum, team, at, cols),
        )
    };
    for first in extent.parts::<HELD>() {
        let mut held = [[Pack::<T>::ZERO; 2]; HELD];
        for i in 0..HELD {
            let tile = first + i as u32;
            held[i] = [x.load(tile, Load::ReadOnly), y.load(tile, Load::ReadOnly)];
        }
        for i in 0..HELD {
            let (tile, [x, y]) = (first + i as u32, held[i]);
            let branch = gate.lanes(tile).zip(y.lanes(), |gate, y| gate * y);
            let branch = if gated.round_each != 0 { Pack::<T>::from_lanes(branch).lanes() } else { branch };
            let total = Pack::<T>::from_lanes(x.lanes().zip(branch, |x, branch| x + branch));
            let total = if gated.clip != 0 { Pack::from_lanes(total.lanes().map(clamped)) } else { total };
            sum.store(tile, total, Store::Default);
        }
    }
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 1, false>(gated, extent);
    gated_residual_hold2<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 2, true>(gated, extent)
}
