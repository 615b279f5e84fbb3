//! Operands of mixed dtypes and shapes: loaders for modulations, weights and the branch of a gated residual.
//!
//! The kernels with `mixed` in their names use these loaders. Compared with the other kernels, an operand may
//! also have the 16-bit type that the rows do not have. It may have one column, that is, one number for each
//! row. Scale, shift and gate may be the rows of a tensor that an index per row selects.
use cuda_std::mem;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, Scalar, round};
use half::{bf16, f16};

use super::affine::{Affine, Parameters};
use super::gated_residual::{GatedResidualArg, clamped};
use super::io::Source;
use super::operand::{Modulation, Operand, zip};
use super::operand_forms::{ModulationSource, OperandSource};
use super::reduce::warp::GROUP;
use super::row_context::RowContext;
use crate::layout::operand_kind::OperandKind;

/// Kernel argument: the index that selects the rows of scale, shift and gate, and the dtypes of a gated
/// residual.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    /// One integer per row of the launch, or null if scale, shift and gate broadcast to the rows.
    pub index: *const u8,
    /// Bytes of an integer of the index: 4 or 8.
    pub index_bytes: u32,
    /// Number of rows of scale, shift and gate. The last row replaces the rows of larger integers.
    pub index_rows: u32,
    /// The element type of the branch `y` of a gated residual.
    pub y: OperandKind,
    /// The type to which the product `gate * y` is rounded before the addition.
    pub product: OperandKind,
}

impl Mixed {
    /// Returns the row of scale, shift and gate for the row `at` of the calling team (the threads that share
    /// a row).
    ///
    /// # Safety
    /// If `index` is not null, it has an integer for each row of the launch.
    #[inline(always)]
    pub(crate) unsafe fn row_of(&self, at: RowIndex) -> RowIndex {
        if self.index.is_null() {
            return at;
        }
        let team = Team::of_block();
        let place = self.index.wrapping_add(team.row as usize * self.index_bytes as usize);
        // SAFETY: the loads read the integer of this row. The caller guarantees that it exists.
        let number = unsafe {
            if self.index_bytes == 8 {
                let [low, high] = mem::load_u32x2(place.cast(), Load::ReadOnly);
                if high == 0 { low } else { u32::MAX }
            } else {
                mem::load_u32(place.cast(), Load::ReadOnly)
            }
        };
        let row = u64::from(number.min(self.index_rows - 1));
        RowIndex::of(Team { row, ..team }, u64::MAX, 0)
    }
}

/// The calling thread's columns of an operand whose element type is tested at run time.
#[derive(Clone, Copy)]
pub(crate) struct MixedOperandRow<A> {
    rows: Rows,
    at: RowIndex,
    columns: Vec4Columns,
    kind: OperandKind,
    access: core::marker::PhantomData<A>,
}

impl<A: Access> MixedOperandRow<A> {
    /// # Safety
    /// If the operand is present, the requirements of [`Vec4Row::of`] apply to its element type.
    /// `operand.kind` states this type, and whether the operand has one column.
    #[inline(always)]
    pub unsafe fn of(operand: &Operand, at: RowIndex, columns: Vec4Columns) -> Self {
        Self { rows: operand.rows, at, columns, kind: operand.kind, access: core::marker::PhantomData }
    }

    #[inline(always)]
    fn load<E: Elem>(&self, tile: u32) -> [f32; 4] {
        // SAFETY: `of` requires that the operand has this row and these columns, with elements of type `E`.
        // An operand with one column has one element per row.
        unsafe {
            if self.kind.is_per_row() {
                let value = Vec4Row::<E, Scalar>::of(&self.rows, self.at, Vec4Columns::of_one(0, 1));
                return [value.get(0).lanes()[0]; 4];
            }
            Vec4Row::<E, A>::of(&self.rows, self.at, self.columns).get(tile).lanes()
        }
    }

    /// Returns the operand for the thread's columns of `tile`, or `None` if the operand is absent.
    #[inline(always)]
    pub fn lanes(&self, tile: u32) -> Option<[f32; 4]> {
        match self.kind.element() {
            OperandKind::ABSENT => None,
            OperandKind::F32 => Some(self.load::<f32>(tile)),
            OperandKind::F16 => Some(self.load::<f16>(tile)),
            _ => Some(self.load::<bf16>(tile)),
        }
    }
}

/// Rounds to the element type `kind`.
#[inline(always)]
pub(crate) fn rounded(kind: OperandKind, lanes: [f32; 4]) -> [f32; 4] {
    match kind {
        OperandKind::F16 => round::<f16>(lanes),
        OperandKind::BF16 => round::<bf16>(lanes),
        _ => lanes,
    }
}

/// The calling thread's columns of a [`Modulation`] with any dtypes.
#[derive(Clone, Copy)]
pub(crate) struct MixedModulationRow<A> {
    value: MixedOperandRow<A>,
    table: MixedOperandRow<A>,
}

impl<A: Access> MixedModulationRow<A> {
    /// Returns `table + value` for the thread's columns of `tile`. If both have the same element type, the
    /// sum is rounded to this type.
    #[inline(always)]
    fn sum(&self, tile: u32) -> Option<[f32; 4]> {
        let value = self.value.lanes(tile)?;
        let Some(table) = self.table.lanes(tile) else { return Some(value) };
        let kind = self.value.kind.element();
        let sum = zip(table, value, |table, value| table + value);
        Some(if kind.is(self.table.kind) { rounded(kind, sum) } else { sum })
    }
}

impl<T: Elem, A: Access> OperandSource<T> for MixedModulationRow<A> {
    const GROUPED: bool = false;
    type Fetched = [f32; 4];
    const EMPTY: [f32; 4] = [0.0; 4];
    #[inline(always)]
    fn fetch(&self, tile: u32) -> [f32; 4] {
        self.sum(tile).unwrap_or([0.0; 4])
    }
    #[inline(always)]
    fn exists(&self) -> bool {
        self.value.kind.is_not(OperandKind::ABSENT)
    }
    #[inline(always)]
    fn lanes(fetched: [f32; 4]) -> [f32; 4] {
        fetched
    }
    #[inline(always)]
    fn vec4(fetched: [f32; 4]) -> Vec4<T> {
        Vec4::from_lanes(fetched)
    }
}

impl<T: Elem, A: Access> ModulationSource<T> for MixedModulationRow<A> {
    #[inline(always)]
    unsafe fn of(modulation: &Modulation, at: RowIndex, columns: Vec4Columns) -> Self {
        // SAFETY: the caller guarantees that value and table have the row and the columns, if they are
        // present.
        unsafe {
            Self {
                value: MixedOperandRow::of(&modulation.value, at, columns),
                table: MixedOperandRow::of(&modulation.table, at, columns),
            }
        }
    }
}

/// Weight and bias with any dtypes.
#[derive(Clone, Copy)]
pub(crate) struct MixedAffine<A> {
    weight: MixedOperandRow<A>,
    bias: MixedOperandRow<A>,
}

impl<A: Access> Parameters for MixedAffine<A> {
    const GROUPED: bool = false;
    type Fetched = (Option<[f32; 4]>, Option<[f32; 4]>);
    const EMPTY: Self::Fetched = (None, None);
    #[inline(always)]
    unsafe fn of(affine: &Affine, columns: Vec4Columns) -> Self {
        // SAFETY: the caller guarantees that weight and bias each have one row, if they are present.
        unsafe {
            Self {
                weight: MixedOperandRow::of(&affine.weight, RowIndex::FIRST, columns),
                bias: MixedOperandRow::of(&affine.bias, RowIndex::FIRST, columns),
            }
        }
    }
    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        (self.weight.lanes(tile), self.bias.lanes(tile))
    }
    #[inline(always)]
    fn values(&self, fetched: Self::Fetched) -> Self::Fetched {
        fetched
    }
}

/// The loaded operands of one vec4 (four columns) of a gated residual: `x`, `y` and the gate.
type GatedParts<T> = (Vec4<T>, [f32; 4], Option<[f32; 4]>);

/// The row `x + gate * y` that the calling thread processes. `y` and the gate have any dtypes.
#[derive(Clone, Copy)]
pub(crate) struct MixedGatedRow<T, A> {
    x: Vec4Row<T, A>,
    y: MixedOperandRow<A>,
    gate: MixedModulationRow<A>,
    sum: Vec4RowMut<T, A>,
    product: OperandKind,
    clip: bool,
}

impl<T: Elem, A: Access> MixedGatedRow<T, A> {
    const EMPTY: GatedParts<T> = (Vec4::ZERO, [0.0; 4], None);

    /// Returns row `row.at` of the operands in `gated`.
    ///
    /// # Safety
    /// The requirements of [`Vec4Row::of`] apply to each operand and its element type. `mixed.y` states the
    /// element type of `y`. If `mixed.index` is not null, it has an integer for each row of the launch, and
    /// the gate has `mixed.index_rows` rows.
    #[inline(always)]
    pub unsafe fn of(gated: &GatedResidualArg, row: &RowContext<T, A>, mixed: &Mixed) -> Self {
        let (at, columns) = (row.at, row.columns);
        let y = Operand { rows: gated.y, kind: mixed.y };
        // SAFETY: the loaders access this thread's columns of the operands. The caller guarantees that the
        // rows of all operands have these columns, and that the kinds state their element types.
        unsafe {
            Self {
                x: Vec4Row::of(&gated.x, at, columns),
                y: MixedOperandRow::of(&y, at, columns),
                gate: ModulationSource::<T>::of(&gated.gate, mixed.row_of(at), columns),
                sum: Vec4RowMut::of(&gated.sum, at, columns),
                product: mixed.product,
                clip: gated.clip != 0,
            }
        }
    }

    #[inline(always)]
    fn load(&self, tile: u32) -> GatedParts<T> {
        (self.x.get(tile), self.y.lanes(tile).unwrap_or([0.0; 4]), self.gate.sum(tile))
    }

    /// Computes `x + gate * y` for the thread's four columns of `tile`, writes this sum to global memory, and
    /// returns it.
    #[inline(always)]
    fn add(&self, tile: u32, (x, y, gate): GatedParts<T>) -> Vec4<T> {
        let product = gate.map_or(y, |gate| rounded(self.product, zip(gate, y, |gate, y| gate * y)));
        let mut total = Vec4::from_lanes(zip(x.lanes(), product, |x, product| x + product));
        if self.clip {
            total = Vec4::from_lanes(total.lanes().map(clamped));
        }
        self.sum.put(tile, total);
        total
    }

    /// Computes and writes all columns of the row.
    #[inline(always)]
    pub fn write(&self, row: &RowContext<T, A>) {
        each_tile(
            row.tiles(),
            Self::EMPTY,
            |tile| self.load(tile),
            |tile, parts| {
                self.add(tile, parts);
            },
        );
    }
}

/// Loads and computes the tiles (128 columns each) of a row. The loads of several tiles are in flight
/// together. `empty` is any value of the loaded operands.
#[inline(always)]
pub(crate) fn each_tile<P: Copy>(tiles: u32, empty: P, load: impl Fn(u32) -> P, compute: impl Fn(u32, P)) {
    let mut first = 0;
    while first < tiles {
        // Do not use `core::array::from_fn`, which LLVM does not inline for closures as large as these.
        let mut parts = [empty; GROUP];
        for i in 0..GROUP {
            // Past the end of the row, load the last tile again. The result of this load is not used.
            parts[i] = load((first + i as u32).min(tiles - 1));
        }
        for i in 0..GROUP {
            if first + (i as u32) < tiles {
                compute(first + i as u32, parts[i]);
            }
        }
        first += GROUP as u32;
    }
}

impl<T: Elem, A: Access> Source<T, A> for MixedGatedRow<T, A> {
    type Parts = ();
    const NOTHING: () = ();
    #[inline(always)]
    fn stage(&self, row: &RowContext<T, A>) {
        each_tile(
            row.tiles(),
            Self::EMPTY,
            |tile| self.load(tile),
            |tile, parts| {
                let sum = self.add(tile, parts);
                if row.columns.has::<A>(tile) {
                    row.staged.put(tile, sum);
                }
            },
        );
    }
    #[inline(always)]
    fn parts(&self, _: &RowContext<T, A>, _: u32) {}
    #[inline(always)]
    fn make(&self, row: &RowContext<T, A>, tile: u32, (): ()) -> Vec4<T> {
        row.staged_vec4(tile).unwrap_or_else(|| self.add(tile, self.load(tile)))
    }
    #[inline(always)]
    fn again(&self, tile: u32) -> Vec4<T> {
        self.sum.written(tile)
    }
}

/// The row `x * (1 + scale) + shift` that the calling thread processes. Scale and shift have any dtypes.
#[derive(Clone, Copy)]
pub(crate) struct MixedModulatedRow<T, A> {
    x: Vec4Row<T, A>,
    scale: MixedOperandRow<A>,
    shift: MixedOperandRow<A>,
    y: Vec4RowMut<T, A>,
    round_each: bool,
}

impl<T: Elem, A: Access> MixedModulatedRow<T, A> {
    /// # Safety
    /// The requirements of [`MixedGatedRow::of`] apply to `x`, scale, shift and the output `y`.
    #[inline(always)]
    pub unsafe fn of(
        [x, y]: [&Rows; 2],
        [scale, shift]: [&Operand; 2],
        row: &RowContext<T, A>,
        mixed: &Mixed,
        round_each: bool,
    ) -> Self {
        let (at, columns) = (row.at, row.columns);
        // SAFETY: the caller guarantees that the operands have the rows and columns that the loaders access.
        unsafe {
            let by = mixed.row_of(at);
            Self {
                x: Vec4Row::of(x, at, columns),
                scale: MixedOperandRow::of(scale, by, columns),
                shift: MixedOperandRow::of(shift, by, columns),
                y: Vec4RowMut::of(y, at, columns),
                round_each,
            }
        }
    }

    /// Computes and writes all columns of the row.
    #[inline(always)]
    pub fn write(&self, row: &RowContext<T, A>) {
        let load =
            |tile| (self.x.get(tile), self.scale.lanes(tile).unwrap_or([0.0; 4]), self.shift.lanes(tile));
        each_tile(row.tiles(), (Vec4::ZERO, [0.0; 4], None), load, |tile, (x, scale, shift)| {
            let step = |lanes| if self.round_each { round::<T>(lanes) } else { lanes };
            let product = step(zip(x.lanes(), step(scale.map(|scale| 1.0 + scale)), |x, factor| x * factor));
            let y = shift.map_or(product, |shift| zip(product, shift, |product, shift| product + shift));
            self.y.put(tile, Vec4::from_lanes(y));
        });
    }
}
