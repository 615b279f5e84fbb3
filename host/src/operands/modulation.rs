//! The operands of a norm: scale, shift, gate, weight and bias. This file checks these operands and converts
//! them to kernel arguments.
use cuda_std::row::Rows;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::affine::{Affine as AffineArg, ScaleShift as ScaleShiftArg};
use kernels_gpu::norm::operand::{Modulation as ModulationArg, Operand as OperandArg};
use kernels_gpu::norm::params::OperandForm;

use super::rows::{Operand, columns, has_two_levels};
use crate::arguments::{Argument, Source, arguments};
use crate::{Device, Dtype, Error, Result, View};

arguments! {
    /// A scale, shift or gate, in the dtype of `x` or in f32. It broadcasts to the shape `[B, S, D]` of `x`,
    /// for example from `[B, 1, D]` or `[D]`. An optional table `[D]`, such as a row of diffusers'
    /// `scale_shift_table`, is added to the scale, shift or gate.
    #[derive(Clone, Copy, Debug)]
    pub struct Modulation<'a> {
        /// The value, which broadcasts to `x`.
        pub value: View<'a>,
        /// Table `[D]` that is added to every row of the value.
        pub table: Option<View<'a>>,
    }
}

impl<'t> Argument<'t> for Option<Modulation<'t>> {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let at = source.position();
        match (source.optional()?, source.optional()?) {
            (Some(value), table) => Ok(Some(Modulation { value, table })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(source.given_without(at + 1, at)),
        }
    }
}

impl<'a> From<View<'a>> for Modulation<'a> {
    fn from(value: View<'a>) -> Self {
        Self { value, table: None }
    }
}

arguments! {
    /// Scale and shift of a norm. The result is `norm * (1 + scale) + shift`.
    #[derive(Clone, Copy, Debug)]
    pub struct ScaleShift<'a> {
        /// The norm is multiplied by `1 + scale`.
        pub scale: Modulation<'a>,
        /// Added after the multiplication.
        pub shift: Option<Modulation<'a>>,
    }
}

arguments! {
    /// Weight and bias of a norm, each `[D]` in the dtype of `x` or in f32.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Affine<'a> {
        /// Factor of the normalized value.
        pub weight: Option<View<'a>>,
        /// Added after the multiplication.
        pub bias: Option<View<'a>>,
    }
}

/// The data that the checks of an operand need: the name of the op, its device, and its input `x`. All
/// operands (scales, shifts, gates, weights and biases) broadcast to the shape of `x`.
#[derive(Clone, Copy)]
pub(crate) struct Target<'v, 'a> {
    pub op: &'static str,
    pub device: &'v Device,
    pub x: &'v View<'a>,
    /// Whether the op has kernels for operands of any float dtype (kernels with `mixed` in their names).
    /// Otherwise, an operand has the dtype of `x` or f32.
    pub mixed: bool,
}

impl<'a> Target<'_, 'a> {
    /// Returns the kind of an operand, which states its dtype. Returns an error if the op has no kernel for
    /// this dtype.
    fn kind(&self, arg: &'static str, view: &View) -> Result<OperandKind> {
        match view.dtype() {
            dtype if dtype == self.x.dtype() => Ok(OperandKind::SAME),
            Dtype::F32 => Ok(OperandKind::F32),
            Dtype::F16 if self.mixed => Ok(OperandKind::F16),
            Dtype::Bf16 if self.mixed => Ok(OperandKind::BF16),
            got if self.mixed => {
                Err(Error::Dtype { op: self.op, arg, got, expected: "f32, f16 or bf16".into() })
            }
            got => {
                let expected = self.x.dtype().or_f32("x");
                Err(Error::Dtype { op: self.op, arg, got, expected })
            }
        }
    }

    /// Checks an optional vector with one element per column of `x`. Sets `vec4s` to false if a kernel cannot
    /// read the vector four elements at a time.
    fn vector(&self, arg: &'static str, view: Option<&View>, vec4s: &mut bool) -> Result<OperandArg> {
        let Some(view) = view else { return Ok(OperandArg::ABSENT) };
        let cols = &self.x.shape()[self.x.shape().len() - 1..];
        view.expect_on(self.op, arg, self.device)?;
        view.expect_shape(self.op, arg, cols)?;
        if view.strides()[0] != 1 && cols[0] > 1 {
            return Err(view.bad_strides(self.op, arg, "it must be contiguous"));
        }
        let (rows, kind) = (Rows::single(view.ptr().cast()), self.kind(arg, view)?);
        *vec4s &= rows.is_vec4s(cols[0] as u32, view.dtype().size());
        Ok(OperandArg { rows, kind })
    }

    /// Checks the weight and the bias of a norm, and returns their kernel arguments.
    pub fn affine(&self, affine: &Affine, vec4s: &mut bool) -> Result<AffineArg> {
        Ok(AffineArg {
            weight: self.vector("weight", affine.weight.as_ref(), vec4s)?,
            bias: self.vector("bias", affine.bias.as_ref(), vec4s)?,
        })
    }

    /// Checks a scale, shift or gate, and returns the kernel argument for it. `rows` has the address of the
    /// scale, shift or gate, and its strides after the broadcast to the shape of `x`.
    pub fn modulation(
        &self,
        [arg, table]: ModulationNames,
        modulation: &Modulation,
        rows: Rows,
        vec4s: &mut bool,
    ) -> Result<ModulationArg> {
        let value = OperandArg { rows, kind: self.kind(arg, &modulation.value)? };
        Ok(ModulationArg { value, table: self.vector(table, modulation.table.as_ref(), vec4s)? })
    }

    /// A scale, shift or gate may have a table (an additional vector that is added to it). Returns true if
    /// this table is aligned to 16 bytes, or if there is no table.
    pub fn table_is_vector(&self, modulation: &Modulation) -> bool {
        modulation.table.is_none_or(|table| (table.ptr() as usize).is_multiple_of(16))
    }

    /// Returns a view of a scale, shift or gate, broadcast to the shape of `x`. If the call has no such
    /// tensor, returns the view of `x` as a placeholder. Kernels do not read the placeholder.
    pub fn over_rows(&self, arg: &'static str, modulation: Option<&Modulation<'a>>) -> Result<View<'a>> {
        let Some(Modulation { value, .. }) = modulation else { return Ok(*self.x) };
        // Check `x` first. If `x` is invalid, the error message then names `x`.
        let cols = columns(self.op, "x", self.x)?;
        if value.shape().last() != Some(&i64::from(cols)) {
            value.broadcast_to(self.op, arg, self.x.shape())?;
            let expected = format!("a last dimension of {cols}");
            return Err(Error::Shape { op: self.op, arg, got: value.shape().to_vec(), expected });
        }
        self.broadcast(arg, value)
    }

    /// Returns a view of a scale, shift or gate that is broadcast to the shape of `x`. Also returns whether
    /// the operand has one value per row (a last dimension of size 1, or no dimension) instead of one value
    /// per column. An operand with one value per row must not have a table (an additional vector that is
    /// added to it).
    pub fn over_rows_or_column(
        &self,
        arg: &'static str,
        modulation: &Modulation<'a>,
    ) -> Result<(View<'a>, bool)> {
        let (cols, shape) = (columns(self.op, "x", self.x)?, modulation.value.shape());
        let one_column = shape.is_empty() || cols != 1 && shape.last() == Some(&1);
        if !one_column {
            return Ok((self.over_rows(arg, Some(modulation))?, false));
        }
        if modulation.table.is_some() {
            let expected = format!("a last dimension of {cols}, because there is a table");
            return Err(Error::Shape { op: self.op, arg, got: shape.to_vec(), expected });
        }
        Ok((self.broadcast(arg, &modulation.value)?, true))
    }

    /// Returns a view of an operand that is broadcast to the shape of `x`.
    fn broadcast(&self, arg: &'static str, value: &View<'a>) -> Result<View<'a>> {
        let wide = value.broadcast_to(self.op, arg, self.x.shape())?;
        // The kernels support only some strides of the operand after the broadcast. If the strides are not
        // supported, the error names the shape of the user's tensor and not the strides. The user does not
        // know the strides after the broadcast.
        if wide.strides() != value.strides() && !has_two_levels(&wide) {
            let shape = self.x.shape();
            let sizes = shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let expected = format!(
                "one that broadcasts to {shape:?} in its first or in its last leading dimensions, not between or both: \
                 use .expand({sizes}).contiguous()"
            );
            return Err(Error::Shape { op: self.op, arg, got: value.shape().to_vec(), expected });
        }
        Ok(wide)
    }
}

/// The names of a scale, shift or gate and of its table (an additional vector that is added to it), for error
/// messages.
pub(crate) type ModulationNames = [&'static str; 2];

pub(crate) const SCALE: ModulationNames = ["scale", "scale_table"];
pub(crate) const SHIFT: ModulationNames = ["shift", "shift_table"];
pub(crate) const GATE: ModulationNames = ["gate", "gate_table"];

/// Returns whether an operand has another dtype than `x`. In this case, torch's separate operators give f32
/// intermediate results, even if `x` has 16 bits. To reproduce these results, the kernel must then round to
/// 16 bits only at the end.
pub(crate) fn any_other(affine: &AffineArg, by: &[&ScaleShiftArg]) -> bool {
    let modulations = by.iter().flat_map(|by| [&by.scale, &by.shift]);
    let operands = modulations.flat_map(|modulation| [&modulation.value, &modulation.table]);
    operands.chain([&affine.weight, &affine.bias]).any(|operand| is_other(operand.kind))
}

/// Returns whether an operand of this kind has another dtype than `x`.
pub(crate) fn is_other(kind: OperandKind) -> bool {
    ![OperandKind::ABSENT, OperandKind::SAME].contains(&kind.element())
}

/// Returns the [`OperandForm`] (combination of dtypes) of the operands, by which the host chooses a kernel.
/// There are three forms: all operands have the dtype of the rows, all operands are f32, or any other
/// combination. Absent operands are ignored.
pub(crate) fn form<'o>(operands: impl Iterator<Item = &'o OperandArg> + Clone) -> OperandForm {
    let all = |kind| operands.clone().all(|operand| [OperandKind::ABSENT, kind].contains(&operand.kind));
    match () {
        () if all(OperandKind::SAME) => OperandForm::SAME,
        () if all(OperandKind::F32) => OperandForm::F32,
        () => OperandForm::ANY,
    }
}

/// Returns the [`OperandForm`] of a norm's operands, by which the host chooses a kernel. The form says which
/// dtypes the operands have. It also says which of these are present: a weight, a bias, and tables
/// (additional vectors that are added to a scale, shift or gate). For combinations without a form of their
/// own, for example different dtypes, the form is [`OperandForm::ANY`].
pub(crate) fn modulated_form(affine: &AffineArg, modulations: &[&ModulationArg]) -> OperandForm {
    let assume_present = || modulations.iter().filter(|m| m.value.kind != OperandKind::ABSENT);
    let parameters = [&affine.weight, &affine.bias];
    let has_affine = parameters.iter().any(|operand| operand.kind != OperandKind::ABSENT);
    let has_both = parameters.iter().all(|operand| operand.kind != OperandKind::ABSENT);
    let has_table = assume_present().any(|m| m.table.kind != OperandKind::ABSENT);
    let all_with_tables =
        assume_present().all(|m| m.value.kind == OperandKind::SAME && m.table.kind == OperandKind::SAME);
    match form(assume_present().map(|m| &m.value).chain(parameters)) {
        OperandForm::SAME if has_table && all_with_tables && !has_affine => OperandForm::TABLED,
        _ if has_table => OperandForm::ANY,
        OperandForm::SAME if has_both => OperandForm::AFFINE,
        OperandForm::SAME if has_affine => OperandForm::PARTLY_AFFINE,
        OperandForm::F32 if has_both => OperandForm::F32_AFFINE,
        OperandForm::F32 if has_affine => OperandForm::ANY,
        form => form,
    }
}

/// The named operands that an output must not overlap.
type Named<'v, 'a, const N: usize> = [Option<Operand<'v, 'a>>; N];

impl<'a> Modulation<'a> {
    pub(crate) fn named(&self, [value, table]: ModulationNames) -> Named<'_, 'a, 2> {
        [Some((value, &self.value)), self.table.as_ref().map(|view| (table, view))]
    }
}

impl<'a> ScaleShift<'a> {
    pub(crate) fn named(&self, [scale, shift]: [ModulationNames; 2]) -> Named<'_, 'a, 4> {
        let [a, b] = self.scale.named(scale);
        let [c, d] = self.shift.as_ref().map_or([None; 2], |modulation| modulation.named(shift));
        [a, b, c, d]
    }
}

impl<'a> Affine<'a> {
    pub(crate) fn named(&self) -> Named<'_, 'a, 2> {
        [self.weight.as_ref().map(|view| ("weight", view)), self.bias.as_ref().map(|view| ("bias", view))]
    }
}
