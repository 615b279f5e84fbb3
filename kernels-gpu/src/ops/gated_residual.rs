//! `sum = x + gate * y`: a residual connection with a gate for all rows, for a batch, or for a token.
//!
//! Element by element. A thread loads its packs, those of the gate too, before it computes any. `gated_residual_<dtype>`
//! takes any layout; `gated_residual_hold2_<dtype>` wants rows that can be read 16 bytes at a time ([`Rows::is_vector`]).
use cuda_std::prelude::*;

use crate::chains::Held;
use crate::elementwise::{Extent, MAX_THREADS};
use crate::gated::{Gated, clamped};
use crate::operand::{Modulation, Operand};

/// A thread's columns of the gate.
trait Gate<T: Elem>: Copy {
    /// What is read of a pack's columns.
    type Fetched: Copy;
    /// # Safety
    /// As [`Row::of`], of the types that the gate's kinds say; the table is one row.
    unsafe fn of(gate: &Modulation, team: Team, at: RowAt, cols: u32) -> Self;
    /// Reads those of `tile`.
    fn fetch(&self, tile: u32) -> Self::Fetched;
    /// `x + gate * y`, with the product rounded too if `round_each`.
    fn sum(gate: Self::Fetched, x: Pack<T>, y: Pack<T>, round_each: bool) -> Pack<T>;
}

#[inline(always)]
fn sum<T: Elem>(gate: T::Lanes, x: Pack<T>, y: Pack<T>, round_each: bool) -> Pack<T> {
    let product = gate.zip(y.lanes(), |gate, y| gate * y);
    let product = if round_each { Pack::<T>::from_lanes(product).lanes() } else { product };
    Pack::from_lanes(x.lanes().zip(product, |x, product| x + product))
}

impl<T: Elem, const VECTOR: bool> Gate<T> for Row<T, VECTOR> {
    type Fetched = Pack<T>;
    #[inline(always)]
    unsafe fn of(gate: &Modulation, team: Team, at: RowAt, cols: u32) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Row::of(&gate.value.rows, team, at, cols) }
    }
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Pack<T> {
        self.load(tile, Load::ReadOnly)
    }
    #[inline(always)]
    fn sum(gate: Pack<T>, x: Pack<T>, y: Pack<T>, round_each: bool) -> Pack<T> {
        if round_each {
            return Held::of(x).plus(Held::of(gate).times(Held::of(y))).pack();
        }
        sum(gate.lanes(), x, y, false)
    }
}

/// A gate in f32 beside elements of 16 bits, or of 32.
#[derive(Clone, Copy)]
struct Single<const VECTOR: bool>(Row<f32, VECTOR>);

impl<T: Elem, const VECTOR: bool> Gate<T> for Single<VECTOR> {
    type Fetched = T::Lanes;
    #[inline(always)]
    unsafe fn of(gate: &Modulation, team: Team, at: RowAt, cols: u32) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { Row::of(&gate.value.rows, team, at, cols) })
    }
    #[inline(always)]
    fn fetch(&self, tile: u32) -> T::Lanes {
        self.0.lanes(tile, Load::ReadOnly)
    }
    #[inline(always)]
    fn sum(gate: T::Lanes, x: Pack<T>, y: Pack<T>, _: bool) -> Pack<T> {
        sum(gate, x, y, false)
    }
}

/// An operand whose type is known when the kernel runs.
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

/// A gate of either type, with a table or without.
#[derive(Clone, Copy)]
struct AnyGate<T, const VECTOR: bool> {
    value: AnyRow<T, VECTOR>,
    table: AnyRow<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Gate<T> for AnyGate<T, VECTOR> {
    type Fetched = T::Lanes;
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
    fn fetch(&self, tile: u32) -> T::Lanes {
        let value = self.value.lanes(tile);
        if self.table.kind == Operand::NONE {
            return value;
        }
        let sum = self.table.lanes(tile).zip(value, |table, value| table + value);
        let both_same = self.value.kind == Operand::SAME && self.table.kind == Operand::SAME;
        if both_same { Pack::<T>::from_lanes(sum).lanes() } else { sum }
    }
    #[inline(always)]
    fn sum(gate: T::Lanes, x: Pack<T>, y: Pack<T>, round_each: bool) -> Pack<T> {
        sum(gate, x, y, round_each)
    }
}

/// # Safety
/// As [`gated_residual`]; the gate is a `G`.
#[inline(always)]
unsafe fn add<T: Elem, G: Gate<T>, const HELD: usize, const VECTOR: bool>(gated: &Gated, extent: Extent) {
    let team = Team::of_block();
    let (at, cols) = extent.row(team);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, y, gate, total) = unsafe {
        (
            Row::<T, VECTOR>::of(&gated.x, team, at, cols),
            Row::<T, VECTOR>::of(&gated.y, team, at, cols),
            G::of(&gated.gate, team, at, cols),
            RowMut::<T, VECTOR>::of(&gated.sum, team, at, cols),
        )
    };
    for first in extent.parts::<HELD>() {
        let held: [_; HELD] = core::array::from_fn(|i| {
            let tile = first + i as u32;
            (x.load(tile, Load::ReadOnly), y.load(tile, Load::ReadOnly), gate.fetch(tile))
        });
        for i in 0..HELD {
            let (x, y, gate) = held[i];
            let mut sum = G::sum(gate, x, y, gated.round_each != 0);
            if gated.clip != 0 {
                sum = Pack::from_lanes(sum.lanes().map(clamped));
            }
            total.store(first + i as u32, sum, Store::Default);
        }
    }
}

/// # Safety
/// The host checked that `x`, `y` and `sum` have the extent's rows, the gate as many of the type that its kind says, its
/// table one row, all `Rows::is_vector` if `VECTOR`, and that `sum` overlaps nothing else.
#[inline(always)]
unsafe fn gated_residual<T: Elem, const HELD: usize, const VECTOR: bool, const MIN_BLOCKS: u32>(
    gated: Gated,
    extent: Extent,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    let kinds = (gated.gate.value.kind, gated.gate.table.kind);
    // SAFETY: as the caller promises.
    unsafe {
        match kinds {
            (Operand::SAME, Operand::NONE) if VECTOR => {
                add::<T, Row<T, VECTOR>, HELD, VECTOR>(&gated, extent)
            }
            (Operand::F32, Operand::NONE) if VECTOR => add::<T, Single<VECTOR>, HELD, VECTOR>(&gated, extent),
            _ => add::<T, AnyGate<T, VECTOR>, HELD, VECTOR>(&gated, extent),
        }
    }
}

entry! {
    gated_residual<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 1, false, 3>(gated, extent);
    gated_residual_hold2<T: [f32, f16, bf16]>(gated: Gated, extent: Extent)
        => gated_residual::<T, 2, true, 4>(gated, extent)
}
