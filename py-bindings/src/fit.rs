//! A check that runs when operators are registered. The schema of an operator must have exactly the arguments
//! that the operator's `oxiwarp` function takes.

use crate::boundary::Failure;
use crate::schema::{Argument, Kind, Schema};
use oxiwarp::arguments::{Role, ScalarKind, Source};
use oxiwarp::{Dtype, View, ViewMut};

/// A [`Source`] of placeholder arguments. It counts the arguments that an `oxiwarp` function takes from it. A
/// request for an argument that the schema does not have returns an error.
pub struct Fit<'s> {
    op: &'static str,
    inputs: Vec<&'s Argument>,
    tensors: usize,
    /// One bool for each output parameter of the `oxiwarp` function. It is true if the operator has this
    /// output.
    outputs: &'s [bool],
    written: usize,
    /// The number of floats, integers and bools that are left.
    scalars: [usize; 3],
}

const SCALARS: [(ScalarKind, &str); 3] =
    [(ScalarKind::Float, "float"), (ScalarKind::Int, "int"), (ScalarKind::Bool, "bool")];

/// Checks that an `oxiwarp` function takes all arguments of the schema and all `outputs`, and no others. The
/// function `take` takes the same arguments from a [`Fit`] (a source of placeholder arguments) as a call of
/// the `oxiwarp` function would, but does not make the call.
pub fn expect_fit(
    op: &'static str,
    schema: &Schema,
    outputs: &[bool],
    take: fn(&mut Fit<'_>) -> Result<(), Failure>,
) -> Result<(), String> {
    let scalars = SCALARS.map(|(scalar, _)| schema.count(Kind::Scalar(scalar)));
    let mut fit = Fit { op, inputs: schema.inputs().collect(), tensors: 0, outputs, written: 0, scalars };
    take(&mut fit).map_err(|Failure(problem)| problem)?;
    if let Some(tensor) = fit.inputs.get(fit.tensors) {
        return Err(format!("the host function does not take {}", tensor.name));
    }
    if fit.outputs.iter().skip(fit.written).any(|&exists| exists) {
        return Err(format!("the host function writes {} outputs, expected {}", fit.written, outputs.len()));
    }
    match SCALARS.iter().zip(fit.scalars).find(|&(_, left)| left > 0) {
        Some(((_, kind), left)) => Err(format!("the host function does not take the last {left} {kind}")),
        None => Ok(()),
    }
}

fn lacks(what: &str) -> Failure {
    Failure(format!("the host function takes another {what}, which the schema does not have"))
}

impl Fit<'_> {
    fn count(&mut self, scalar: ScalarKind) -> Result<(), Failure> {
        let (left, what) = (&mut self.scalars[scalar as usize], SCALARS[scalar as usize].1);
        *left = left.checked_sub(1).ok_or_else(|| lacks(what))?;
        Ok(())
    }
}

impl Source<'static> for Fit<'_> {
    type Error = Failure;

    fn op(&self) -> &'static str {
        self.op
    }

    fn tensor(&mut self) -> Result<View<'static>, Failure> {
        if let Some(Argument { name, kind: Kind::Tensor { optional: true, .. } }) =
            self.inputs.get(self.tensors)
        {
            return Err(Failure(format!("{name} is optional, and the host function needs it")));
        }
        self.optional()?.ok_or_else(|| lacks("tensor"))
    }

    fn optional(&mut self) -> Result<Option<View<'static>>, Failure> {
        self.tensors += 1;
        if self.tensors > self.inputs.len() {
            return Err(lacks("tensor"));
        }
        // SAFETY: a view without elements is never read.
        Ok(Some(unsafe { View::from_raw(std::ptr::null(), Dtype::F32, &[0], &[1]) }?))
    }

    fn output(&mut self) -> Result<ViewMut<'static>, Failure> {
        self.optional_output()?.ok_or_else(|| lacks("output"))
    }

    fn optional_output(&mut self) -> Result<Option<ViewMut<'static>>, Failure> {
        self.written += 1;
        if !self.outputs.get(self.written - 1).is_some_and(|&exists| exists) {
            return Ok(None);
        }
        // SAFETY: a view without elements is never written.
        Ok(Some(unsafe { ViewMut::from_raw(std::ptr::null_mut(), Dtype::F32, &[0], &[1]) }?))
    }

    fn float(&mut self) -> Result<f32, Failure> {
        self.count(ScalarKind::Float).map(|()| 0.0)
    }

    fn int(&mut self) -> Result<i64, Failure> {
        self.count(ScalarKind::Int).map(|()| 0)
    }

    fn bool(&mut self) -> Result<bool, Failure> {
        self.count(ScalarKind::Bool).map(|()| false)
    }

    fn has(&self, scalar: ScalarKind) -> bool {
        self.scalars[scalar as usize] > 0
    }

    fn role(&self) -> Option<Role> {
        self.inputs.get(self.tensors)?.role()
    }

    fn position(&self) -> usize {
        self.tensors
    }

    fn given_without(&self, _: usize, _: usize) -> Failure {
        lacks("tensor")
    }

    fn missing(&self, _: usize) -> Failure {
        lacks("tensor")
    }
}
