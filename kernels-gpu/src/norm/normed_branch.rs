//! `out = x + gate * norm(y)`: the second pass of a norm whose result is a branch that is added to a residual
//! stream.
//!
//! `AddBranch` is for operands of one dtype, and `MixedAddBranch` for operands of any dtypes.
use core::marker::PhantomData;

use cuda_std::libdevice::tanh;
use cuda_std::prelude::*;
use cuda_std::vec4::{Access, round};
use half::{bf16, f16};

use super::affine::{Affine, Norm, Parameters};
use super::io::Sink;
use super::known_form::RoundEach;
use super::mixed::{MixedAffine, MixedModulationRow, MixedOperandRow, rounded};
use super::operand::{Modulation, Operand, zip};
use super::operand_forms::{ModulationSource, OperandSource};
use super::reduce::stats::Stats;
use super::row_context::RowContext;
use crate::layout::operand_kind::OperandKind;

/// The operands of the residual: a kernel argument. The element type of a kernel is that of `y`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NormedBranch {
    /// The residual stream.
    pub x: Rows,
    /// The output of the branch, which is normalised.
    pub y: Rows,
    /// The factor of the normalised branch. The gate may be absent.
    pub gate: Modulation,
    /// The output.
    pub out: Rows,
    /// The element type of `x` and `out`.
    pub stream: OperandKind,
    /// 1: round `gate * norm(y)` to the element type of `y` before the addition. 0: do not round it. Only
    /// kernels for operands of any dtypes read this field and the next one.
    pub round_product: u32,
    /// 1: multiply by `tanh(gate)`, rounded to the element type of the gate, instead of by the gate.
    pub tanh: u32,
}

/// Writes `out = x + gate * norm(y)`. `x`, `y` and `out` have the same dtype.
pub(crate) struct AddBranch<T, N, F, P, R, A> {
    x: Vec4Row<T, A>,
    gate: F,
    affine: P,
    out: Vec4RowMut<T, A>,
    round_each: R,
    norm: PhantomData<N>,
}

impl<T: Elem, N: Norm, F: ModulationSource<T>, P: Parameters, R: RoundEach, A: Access>
    AddBranch<T, N, F, P, R, A>
{
    /// Returns the operands for the row and the columns of the calling thread.
    ///
    /// # Safety
    /// The requirements of [`Vec4Row::of`] apply to `x`, those of [`Vec4RowMut::of`] to the output, those of
    /// [`ModulationSource::of`] to the gate, and those of [`Parameters::of`] to weight and bias.
    #[inline(always)]
    pub unsafe fn of(branch: &NormedBranch, affine: &Affine, row: &RowContext<T, A>, round_each: R) -> Self {
        let (at, columns) = (row.at, row.columns);
        // SAFETY: the loaders access this thread's columns of the operands. The caller guarantees that the
        // operands have these columns, with the dtypes that the loaders expect.
        unsafe {
            Self {
                x: Vec4Row::of(&branch.x, at, columns),
                gate: F::of(&branch.gate, at, columns),
                affine: P::of(affine, columns),
                out: Vec4RowMut::of(&branch.out, at, columns),
                round_each,
                norm: PhantomData,
            }
        }
    }
}

impl<T: Elem, N: Norm, F: ModulationSource<T>, P: Parameters, R: RoundEach, A: Access> Sink<T>
    for AddBranch<T, N, F, P, R, A>
{
    const GROUPED: bool = F::GROUPED && P::GROUPED;
    type Fetched = (Vec4<T>, F::Fetched, P::Fetched);
    const EMPTY: Self::Fetched = (Vec4::ZERO, F::EMPTY, P::EMPTY);

    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        (self.x.get(tile), self.gate.fetch(tile), self.affine.fetch(tile))
    }

    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, (x, gate, parameters): Self::Fetched) {
        let (weight, bias) = self.affine.values(parameters);
        let y = vec4.lanes();
        let out = if self.round_each.get() {
            let normed = N::rounded::<T>(stats, y, weight, bias);
            x.plus(if self.gate.exists() { normed.times(F::vec4(gate)) } else { normed })
        } else {
            let mut branch = N::apply(stats, y, weight, bias);
            if self.gate.exists() {
                branch = zip(F::lanes(gate), branch, |gate, branch| gate * branch);
            }
            Vec4::from_lanes(zip(x.lanes(), branch, |x, branch| x + branch))
        };
        self.out.put(tile, out);
    }
}

/// Writes `out = x + gate * norm(y)` for operands of any dtypes. `T` is the element type of `y`.
pub(crate) struct MixedAddBranch<T, N, A> {
    x: MixedOperandRow<A>,
    gate: MixedModulationRow<A>,
    affine: MixedAffine<A>,
    out: Rows,
    at: RowIndex,
    columns: Vec4Columns,
    /// The element type of `x` and `out`.
    stream: OperandKind,
    /// The element type of the gate if the factor is `tanh(gate)`. Otherwise the gate itself is the factor.
    tanh: Option<OperandKind>,
    round_norm: bool,
    round_product: bool,
    norm: PhantomData<(T, N)>,
}

impl<T: Elem, N: Norm, A: Access> MixedAddBranch<T, N, A> {
    /// Returns the operands for the row and the columns of the calling thread.
    ///
    /// # Safety
    /// The requirements of [`AddBranch::of`] apply to each operand and its element type. The field `kind` of
    /// an operand, and `branch.stream`, state the element types.
    #[inline(always)]
    pub unsafe fn of(branch: &NormedBranch, affine: &Affine, row: &RowContext<T, A>) -> Self {
        let (at, columns) = (row.at, row.columns);
        let x = Operand { rows: branch.x, kind: branch.stream };
        // SAFETY: the loaders access this thread's columns of the operands. The caller guarantees that the
        // operands have these columns, and that the kinds state their element types.
        unsafe {
            Self {
                x: MixedOperandRow::of(&x, at, columns),
                gate: ModulationSource::<T>::of(&branch.gate, at, columns),
                affine: MixedAffine::of(affine, columns),
                out: branch.out,
                at,
                columns,
                stream: branch.stream,
                tanh: (branch.tanh != 0).then_some(branch.gate.value.kind.element()),
                round_norm: row.p.round_each != 0,
                round_product: branch.round_product != 0,
                norm: PhantomData,
            }
        }
    }

    /// Writes the thread's four columns of `tile` in the element type `E`.
    #[inline(always)]
    fn write<E: Elem>(&self, tile: u32, lanes: [f32; 4]) {
        // SAFETY: `of` requires that row `at` of the output is writable, and that `stream` states its element
        // type. `put` calls this method with this type.
        let row = unsafe { Vec4RowMut::<E, A>::of(&self.out, self.at, self.columns) };
        row.put(tile, Vec4::from_lanes(lanes));
    }
}

impl<T: Elem, N: Norm, A: Access> Sink<T> for MixedAddBranch<T, N, A> {
    const GROUPED: bool = false;
    type Fetched = ([f32; 4], [f32; 4], <MixedAffine<A> as Parameters>::Fetched);
    const EMPTY: Self::Fetched = ([0.0; 4], [0.0; 4], MixedAffine::<A>::EMPTY);

    #[inline(always)]
    fn fetch(&self, tile: u32) -> Self::Fetched {
        let gate = OperandSource::<T>::fetch(&self.gate, tile);
        (self.x.lanes(tile).unwrap_or([0.0; 4]), gate, self.affine.fetch(tile))
    }

    #[inline(always)]
    fn put(&self, stats: Stats, tile: u32, vec4: Vec4<T>, (x, gate, (weight, bias)): Self::Fetched) {
        let y = vec4.lanes();
        let mut branch = if self.round_norm {
            N::rounded::<T>(stats, y, weight, bias).lanes()
        } else {
            N::apply(stats, y, weight, bias)
        };
        if OperandSource::<T>::exists(&self.gate) {
            let factor = self.tanh.map_or(gate, |kind| rounded(kind, gate.map(tanh)));
            branch = zip(branch, factor, |branch, factor| branch * factor);
            branch = if self.round_product { round::<T>(branch) } else { branch };
        }
        let out = zip(x, branch, |x, branch| x + branch);
        match self.stream {
            OperandKind::F32 => self.write::<f32>(tile, out),
            OperandKind::F16 => self.write::<f16>(tile, out),
            _ => self.write::<bf16>(tile, out),
        }
    }
}
