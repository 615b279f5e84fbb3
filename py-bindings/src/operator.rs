//! A torch operator: its schema, and the indices of arguments with a special meaning, such as the bool
//! `heads_first`.

use crate::schema::{Argument, Kind, Schema};
use oxiwarp::arguments::ScalarKind;

/// Maximum number of input tensors of an operator.
pub const MAX_TENSORS: usize = 12;
/// Maximum number of outputs of an operator, including workspaces.
pub const MAX_OUTPUTS: usize = 4;
/// Maximum number of float arguments of an operator. The same maximum applies to integers, to bools, and to
/// flags (bools that say whether an output is needed).
pub const MAX_SCALARS: usize = 8;

const BOOL: Kind = Kind::Scalar(ScalarKind::Bool);

/// An operator.
pub struct Operator {
    /// The name in error messages.
    pub op: &'static str,
    /// The schema, with the arguments.
    pub schema: Schema,
    /// Index of the reference tensor: `x`, or the first tensor if there is no `x`. It determines the device
    /// of a call. By default, outputs have the dtype and shape of this tensor.
    pub reference: usize,
    /// Index of `heads_first` among the bools.
    pub heads_first: Option<usize>,
    /// A tensor whose name in error messages depends on a bool argument. The tuple has the index of the
    /// tensor, the names for false and true, and the index of the bool.
    pub alias: Option<(usize, [&'static str; 2], usize)>,
}

impl Operator {
    /// Makes the operator with the given schema. `flags` names the bools that say whether an output is
    /// needed. Fails if the schema has too many arguments, or if the tensor `x` is optional. Without `x`, the
    /// first tensor must not be optional.
    pub fn of(op: &'static str, mut schema: Schema, flags: &[&str]) -> Result<Self, String> {
        for Argument { name, kind } in &mut schema.arguments {
            if *kind == BOOL && flags.contains(&name.as_str()) {
                *kind = Kind::Flag;
            }
        }
        let scalars = [ScalarKind::Float, ScalarKind::Int, ScalarKind::Bool]
            .map(|scalar| schema.count(Kind::Scalar(scalar)));
        if schema.inputs().count() > MAX_TENSORS || scalars.into_iter().any(|count| count > MAX_SCALARS) {
            return Err(format!(
                "expected at most {MAX_TENSORS} tensors and {MAX_SCALARS} numbers of one type"
            ));
        }
        let reference = schema.input("x").unwrap_or(0);
        match schema.inputs().nth(reference).map(|argument| argument.kind) {
            Some(Kind::Tensor { optional: false, .. }) => {}
            _ => return Err("expected a tensor that is not optional as x or as the first argument".into()),
        }
        // The operator's argument `second`, for gated activations. It is the gate, or the value if
        // `gate_first` is true. Error messages call this tensor "gate" or "up".
        let alias = schema.input("second").zip(schema.index(BOOL, "gate_first"));
        let alias = alias.map(|(tensor, gate_first)| (tensor, ["gate", "up"], gate_first));
        Ok(Self { op, reference, heads_first: schema.index(BOOL, "heads_first"), alias, schema })
    }

    /// Returns the name of an input tensor.
    pub fn name(&self, input: usize) -> &str {
        self.schema.inputs().nth(input).map_or("a tensor", |argument| &argument.name)
    }
}
