//! Operands of the kernels with `mixed` in their names: scales, shifts, gates, weights and biases of any
//! float dtype, with one column, or chosen by an index.
use cuda_std::row::Rows;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::affine::{Affine as AffineArg, ScaleShift as ScaleShiftArg};
use kernels_gpu::norm::mixed::Mixed;
use kernels_gpu::norm::operand::{Modulation as ModulationArg, Operand as OperandArg};

use super::modulation::{Modulation, ModulationNames, ScaleShift, Target};
use super::rows::columns;
use crate::{Dtype, Error, Result, View};

/// A scale, shift or gate in the layout of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// The operand, broadcast to the shape of `x`. If the operand is absent or chosen by an index, this is a
    /// view of `x`, which kernels do not read.
    pub view: View<'a>,
    /// Whether the operand has one value per column, instead of one value per row.
    pub has_columns: bool,
    /// The rows of an operand that is chosen by an index.
    chosen: Option<Rows>,
}

/// The index that chooses the rows of scale, shift and gate.
#[derive(Clone, Copy)]
pub(crate) struct Index<'a> {
    view: View<'a>,
    /// Number of rows of scale, shift and gate.
    rows: i64,
}

impl<'a> Target<'_, 'a> {
    /// Checks the index of an op, which has one integer for each row of `x`. `first` is a scale or a gate.
    pub fn index(&self, index: Option<View<'a>>, first: &View) -> Result<Option<Index<'a>>> {
        let Some(view) = index else { return Ok(None) };
        let (op, arg, lead) = (self.op, "index", &self.x.shape()[..self.x.shape().len() - 1]);
        view.expect_on(op, arg, self.device)?;
        if !Dtype::INDICES.contains(&view.dtype()) {
            return Err(Error::Dtype { op, arg, got: view.dtype(), expected: "i64 or i32".into() });
        }
        view.expect_shape(op, arg, lead)?;
        if !view.is_contiguous() {
            return Err(view.bad_strides(op, arg, "it must be contiguous"));
        }
        Ok(Some(Index { view, rows: first.shape().first().copied().unwrap_or(0) }))
    }

    /// Checks the shape of a scale, shift or gate, and returns its layout.
    pub fn placed(
        &self,
        arg: &'static str,
        modulation: Option<&Modulation<'a>>,
        index: Option<Index<'a>>,
    ) -> Result<Placed<'a>> {
        let whole = |view, chosen| Placed { view, has_columns: true, chosen };
        let Some(modulation) = modulation else { return Ok(whole(*self.x, None)) };
        let cols = i64::from(columns(self.op, "x", self.x)?);
        let value = &modulation.value;
        if let Some(index) = index {
            self.chosen(arg, value, index, cols)?;
            let stride = value.strides()[0];
            let base = value.ptr().cast_mut().cast();
            return Ok(whole(*self.x, Some(Rows { base, inner_stride: stride, outer_stride: 0 })));
        }
        let (view, one_column) = self.over_rows_or_column(arg, modulation)?;
        Ok(Placed { has_columns: !one_column, ..whole(view, None) })
    }

    /// Checks the shape `[rows, columns]` of an operand that is chosen by an index.
    fn chosen(&self, arg: &'static str, value: &View, index: Index, cols: i64) -> Result<()> {
        let fits = value.shape().len() == 2 && value.shape()[0] == index.rows && value.shape()[1] == cols;
        if !fits || index.rows == 0 || index.rows > i64::from(u32::MAX) {
            let expected = format!("[{}, {cols}], because there is an index", index.rows.max(1));
            return Err(Error::Shape { op: self.op, arg, got: value.shape().to_vec(), expected });
        }
        value.expect_on(self.op, arg, self.device)?;
        if value.strides()[1] != 1 && cols > 1 {
            return Err(value.bad_strides(self.op, arg, "its last dimension must be contiguous"));
        }
        Ok(())
    }

    /// Checks a scale, shift or gate, and returns its kernel argument. `rows` has the address and the strides
    /// of the operand in the layout of the launch.
    pub fn argument(
        &self,
        names: ModulationNames,
        modulation: Option<&Modulation>,
        placed: Placed,
        rows: Rows,
        vec4s: &mut bool,
    ) -> Result<ModulationArg> {
        let Some(modulation) = modulation else { return Ok(ModulationArg::ABSENT) };
        let rows = placed.chosen.unwrap_or(rows);
        let mut arg = self.modulation(names, modulation, rows, vec4s)?;
        if placed.chosen.is_some() {
            *vec4s &= rows.is_vec4s(columns(self.op, "x", self.x)?, modulation.value.dtype().size());
        }
        if !placed.has_columns {
            arg.value.kind = arg.value.kind.per_row();
        }
        Ok(arg)
    }

    /// Checks the shapes of scale and shift, and returns their layouts.
    pub fn placed_scale_shift(
        &self,
        [scale, shift]: [ModulationNames; 2],
        by: &ScaleShift<'a>,
        index: Option<Index<'a>>,
    ) -> Result<[Placed<'a>; 2]> {
        let scale = self.placed(scale[0], Some(&by.scale), index)?;
        Ok([scale, self.placed(shift[0], by.shift.as_ref(), index)?])
    }

    /// Checks scale and shift, and returns their kernel arguments: see [`Target::argument`].
    pub fn scale_shift(
        &self,
        [scale, shift]: [ModulationNames; 2],
        by: &ScaleShift,
        [of_scale, of_shift]: [Placed; 2],
        [scale_rows, shift_rows]: [Rows; 2],
        vec4s: &mut bool,
    ) -> Result<ScaleShiftArg> {
        Ok(ScaleShiftArg {
            scale: self.argument(scale, Some(&by.scale), of_scale, scale_rows, vec4s)?,
            shift: self.argument(shift, by.shift.as_ref(), of_shift, shift_rows, vec4s)?,
        })
    }

    /// Returns the kind of an operand of this dtype as kernels with `mixed` in their names expect it.
    fn explicit(&self, kind: OperandKind) -> OperandKind {
        if kind.element() != OperandKind::SAME {
            return kind;
        }
        let element = kind_of(self.x.dtype());
        if kind.is_per_row() { element.per_row() } else { element }
    }

    /// Returns an operand of a kernel with `mixed` in its name.
    pub fn mixed_operand(&self, operand: OperandArg) -> OperandArg {
        OperandArg { kind: self.explicit(operand.kind), ..operand }
    }

    /// Returns weight and bias of a kernel with `mixed` in its name.
    pub fn mixed_affine(&self, affine: AffineArg) -> AffineArg {
        AffineArg { weight: self.mixed_operand(affine.weight), bias: self.mixed_operand(affine.bias) }
    }

    /// Returns a scale, shift or gate of a kernel with `mixed` in its name.
    pub fn mixed_modulation(&self, modulation: ModulationArg) -> ModulationArg {
        let ModulationArg { value, table } = modulation;
        ModulationArg { value: self.mixed_operand(value), table: self.mixed_operand(table) }
    }

    /// Returns scale and shift of a kernel with `mixed` in its name.
    pub fn mixed_scale_shift(&self, by: ScaleShiftArg) -> ScaleShiftArg {
        ScaleShiftArg { scale: self.mixed_modulation(by.scale), shift: self.mixed_modulation(by.shift) }
    }

    /// Returns the argument of a kernel with `mixed` in its name. `gate` is the gate of a gated residual with
    /// the branch `y`. If `exact` is true, torch would round `gate * y` to the common dtype of the two.
    pub fn mixed(&self, index: Option<Index>, y: &View, gate: &ModulationArg, exact: bool) -> Mixed {
        let y = kind_of(y.dtype());
        let gate = self.mixed_modulation(*gate);
        let (value, table) = (gate.value.kind.element(), gate.table.kind);
        let of_gate = if [OperandKind::ABSENT, value].contains(&table) { value } else { OperandKind::F32 };
        let product = if exact && of_gate == y { y } else { OperandKind::F32 };
        let (index_rows, index) = index.map_or((1, None), |index| (index.rows as u32, Some(index.view)));
        Mixed {
            index: index.map_or(std::ptr::null(), |index| index.ptr().cast()),
            index_bytes: index.map_or(4, |index| index.dtype().size() as u32),
            index_rows,
            y,
            product,
        }
    }
}

/// Returns the kind of an operand of a kernel with `mixed` in its name.
pub(crate) fn kind_of(dtype: Dtype) -> OperandKind {
    match dtype {
        Dtype::F16 => OperandKind::F16,
        Dtype::Bf16 => OperandKind::BF16,
        _ => OperandKind::F32,
    }
}

/// Returns whether only a kernel with `mixed` in its name supports one of the operands: an operand with one
/// column, or an operand of a 16-bit dtype that `x` does not have.
pub(crate) fn needs_mixed<'o>(operands: impl IntoIterator<Item = &'o OperandArg>) -> bool {
    let known = [OperandKind::ABSENT, OperandKind::SAME, OperandKind::F32];
    operands.into_iter().any(|operand| !known.contains(&operand.kind))
}

/// Returns an error if the dtype of `view` is not f32, f16 or bf16.
pub(crate) fn expect_float(op: &'static str, arg: &'static str, view: &View) -> Result<()> {
    if Dtype::FLOATS.contains(&view.dtype()) {
        return Ok(());
    }
    Err(Error::Dtype { op, arg, got: view.dtype(), expected: "f32, f16 or bf16".into() })
}
