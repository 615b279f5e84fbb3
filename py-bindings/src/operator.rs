//! An operator: its schema, and the indices of the arguments that the binding treats specially.

use crate::schema::{Argument, Kind, Schema};
use oxiwarp::arguments::ScalarKind;

/// The most tensors that an operator reads.
pub const MAX_TENSORS: usize = 12;
/// The most outputs of an operator, with workspaces.
pub const MAX_OUTPUTS: usize = 4;
/// The most floats, the most integers and the most truth values. Flags are fewer: an output has one at most.
pub const MAX_SCALARS: usize = 8;

const BOOL: Kind = Kind::Scalar(ScalarKind::Bool);

/// An operator.
pub struct Operator {
    /// The name in errors.
    pub op: &'static str,
    /// Its arguments.
    pub schema: Schema,
    /// The index of the tensor that gives device, dtype and shape: `x`, or the first one.
    pub reference: usize,
    /// The index of `heads_first` among the truth values.
    pub heads_first: Option<usize>,
    /// A tensor whose name in errors depends on a truth value: its index, both names, the index of the truth value.
    pub alias: Option<(usize, [&'static str; 2], usize)>,
}

impl Operator {
    /// The operator with this schema. Truth values with the names in `flags` are for the outputs.
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
        // The second tensor of a gated activation is the gate, unless the first is.
        let alias = schema.input("second").zip(schema.index(BOOL, "gate_first"));
        let alias = alias.map(|(tensor, gate_first)| (tensor, ["gate", "up"], gate_first));
        Ok(Self { op, reference, heads_first: schema.index(BOOL, "heads_first"), alias, schema })
    }

    /// The name of a tensor that is read.
    pub fn name(&self, input: usize) -> &str {
        self.schema.inputs().nth(input).map_or("a tensor", |argument| &argument.name)
    }
}
