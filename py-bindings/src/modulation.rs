//! Operands of norms as torch passes them: parameters, scales, shifts and gates, each of which may be absent.

use crate::boundary::Args;
use crate::device::Location;
use crate::tensor::Tensor;
use oxiwarp::{Affine, Modulation, ScaleShift, View};

/// `Tensor? weight, Tensor? bias`.
pub struct AffineArgs {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl AffineArgs {
    pub fn read(args: &mut Args) -> Self {
        AffineArgs { weight: args.optional_tensor("weight"), bias: args.optional_tensor("bias") }
    }

    /// Views, once both are known to be where `x` is.
    pub fn views(&self, place: Location, x: &View) -> Result<Affine<'_>, String> {
        Ok(Affine { weight: optional(&self.weight, place, x)?, bias: optional(&self.bias, place, x)? })
    }
}

/// `Tensor value, Tensor? table`.
pub struct ModulationArgs {
    name: &'static str,
    value: Option<Tensor>,
    table: Option<Tensor>,
}

impl ModulationArgs {
    /// Of an operand that must be there.
    pub fn read(args: &mut Args, value: &'static str, table: &'static str) -> Self {
        ModulationArgs { name: value, value: Some(args.tensor(value)), table: args.optional_tensor(table) }
    }

    /// Of one that may be absent (`Tensor? value, Tensor? table`).
    pub fn read_optional(args: &mut Args, value: &'static str, table: &'static str) -> Self {
        let (name, value) = (value, args.optional_tensor(value));
        ModulationArgs { name, value, table: args.optional_tensor(table) }
    }

    /// Views, once both are known to be where `x` is; `None` without a value, which a table needs.
    pub fn views(&self, place: Location, x: &View) -> Result<Option<Modulation<'_>>, String> {
        let Some(value) = optional(&self.value, place, x)? else {
            return self.table.as_ref().map_or(Ok(None), |table| Err(table.given_without(self.name)));
        };
        Ok(Some(Modulation { value, table: optional(&self.table, place, x)? }))
    }
}

/// `Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table`.
pub struct ScaleShiftArgs {
    scale: ModulationArgs,
    shift: ModulationArgs,
}

impl ScaleShiftArgs {
    pub fn read(
        args: &mut Args,
        [scale, scale_table, shift, shift_table]: [&'static str; 4],
    ) -> ScaleShiftArgs {
        let scale = ModulationArgs::read(args, scale, scale_table);
        ScaleShiftArgs { scale, shift: ModulationArgs::read_optional(args, shift, shift_table) }
    }

    /// Views, once all are known to be where `x` is.
    pub fn views(&self, place: Location, x: &View) -> Result<ScaleShift<'_>, String> {
        let scale = self.scale.views(place, x)?.ok_or("scale is missing")?;
        Ok(ScaleShift { scale, shift: self.shift.views(place, x)? })
    }
}

fn optional<'a>(tensor: &'a Option<Tensor>, place: Location, x: &View) -> Result<Option<View<'a>>, String> {
    let Some(tensor) = tensor else { return Ok(None) };
    tensor.expect_on(place)?;
    tensor.parameter_view(x).map(Some)
}
