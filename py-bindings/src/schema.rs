//! Parser for operator schemas, which Python passes as text.

use oxiwarp::arguments::{Role, ScalarKind};

/// The name, arguments and number of results of an operator.
#[derive(Debug, PartialEq)]
pub struct Schema {
    /// The name of the operator.
    pub name: String,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// The number of returned tensors.
    pub results: usize,
}

/// An argument of an operator.
#[derive(Debug, PartialEq)]
pub struct Argument {
    /// The name of the argument.
    pub name: String,
    /// The type of the argument.
    pub kind: Kind,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `Tensor`, `Tensor?`, `Tensor(a!)` or `Tensor(a!)?`.
    Tensor {
        /// Whether the argument may be None.
        optional: bool,
        /// Whether the operator writes to it.
        written: bool,
        /// The role of the tensor in the operator.
        role: Role,
    },
    /// `float`, `int` or `bool`.
    Scalar(ScalarKind),
    /// A `bool`, such as `with_lse`, that says whether the caller of the operator needs a result, or which
    /// dtype a result has. The `oxiwarp` function does not receive this bool.
    Flag,
}

impl Schema {
    /// Parses a schema such as `name(Tensor x, Tensor? y, float eps, Tensor(a!) out) -> (Tensor, Tensor)`.
    /// `roles` has the role of each tensor argument, in the order of the schema. Fails if the text is not a
    /// schema, or if the number of roles differs from the number of tensor arguments.
    pub fn parse(text: &str, roles: &[String]) -> Result<Self, String> {
        let parts = text.split_once('(').and_then(|(name, rest)| Some((name, rest.rsplit_once(") -> ")?)));
        let (name, (arguments, results)) = parts.ok_or_else(|| format!("{text}: this is no schema"))?;
        let mut roles = roles.iter();
        let arguments = arguments.split(", ").map(|argument| Argument::parse(argument, &mut roles));
        let arguments =
            arguments.collect::<Result<_, _>>().map_err(|problem| format!("{name}: {problem}"))?;
        if let Some(role) = roles.next() {
            return Err(format!("{name}: the role {role} belongs to no tensor"));
        }
        Ok(Self { name: name.into(), arguments, results: results.matches("Tensor").count() })
    }
}

impl Schema {
    /// Returns the input tensors in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| matches!(argument.kind, Kind::Tensor { written: false, .. }))
    }

    /// Returns the number of output tensors that the caller passes.
    pub fn outs(&self) -> usize {
        let is_out = |argument: &&Argument| matches!(argument.kind, Kind::Tensor { written: true, .. });
        self.arguments.iter().filter(is_out).count()
    }

    /// Returns the number of arguments of this kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.arguments.iter().filter(|argument| argument.kind == kind).count()
    }

    /// Returns the index of an input tensor among all input tensors.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.inputs().position(|argument| argument.name == name)
    }

    /// Returns the index of the argument `name` among all arguments of kind `kind`.
    pub fn index(&self, kind: Kind, name: &str) -> Option<usize> {
        let mut of_kind = self.arguments.iter().filter(|argument| argument.kind == kind);
        of_kind.position(|argument| argument.name == name)
    }
}

impl Argument {
    /// Returns the role of a tensor, or `None` for other arguments.
    #[inline]
    pub fn role(&self) -> Option<Role> {
        match self.kind {
            Kind::Tensor { role, .. } => Some(role),
            _ => None,
        }
    }

    fn parse<'r>(text: &str, roles: &mut impl Iterator<Item = &'r String>) -> Result<Self, String> {
        let (kind, name) = text.rsplit_once(' ').ok_or_else(|| format!("{text:?} is no argument"))?;
        let kind = match kind {
            "float" => Kind::Scalar(ScalarKind::Float),
            "int" => Kind::Scalar(ScalarKind::Int),
            "bool" => Kind::Scalar(ScalarKind::Bool),
            _ => {
                let (required, optional) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
                let written = match required.strip_prefix("Tensor") {
                    Some("") => false,
                    Some(alias) if alias.starts_with('(') && alias.ends_with("!)") => true,
                    _ => return Err(format!("{name} has type {kind}, which no kernel takes")),
                };
                let role = roles.next().ok_or_else(|| format!("{name} has no role"))?;
                Kind::Tensor { optional, written, role: parse_role(role)? }
            }
        };
        Ok(Self { name: name.into(), kind })
    }
}

/// Returns the role with this name in `oxiwarp/ops/_roles.py`.
fn parse_role(name: &str) -> Result<Role, String> {
    Ok(match name {
        "ROWS" => Role::Rows,
        "VECTOR" => Role::Vector,
        "BIAS" => Role::Bias,
        "BROADCAST" => Role::Broadcast,
        "PER_ROW" => Role::PerRow,
        "CLASSES" => Role::Classes,
        "INDEX" => Role::Index,
        "BRANCH" => Role::Branch,
        "ANY_VECTOR" => Role::AnyVector,
        "MODULATION" => Role::Modulation,
        "HEADS" => Role::Heads,
        "HEAD_VECTOR" => Role::HeadVector,
        "PER_HEAD" => Role::PerHead,
        "TABLE" => Role::Table,
        "TABLE_ROWS" => Role::TableRows,
        "MASK" => Role::Mask,
        "MATRIX" => Role::Matrix,
        "PRODUCT" => Role::Product,
        "PRODUCT_GATE" => Role::ProductGate,
        "OFFSETS" => Role::Offsets,
        "OUTPUT" => Role::Output,
        "QUANTIZED" => Role::Quantized,
        "SCALES" => Role::Scales,
        "QUANTIZED_MATRIX" => Role::QuantizedMatrix,
        "MATRIX_SCALES" => Role::MatrixScales,
        _ => return Err(format!("no kernel takes a tensor of the role {name}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, roles: &[&str]) -> Result<Schema, String> {
        Schema::parse(text, &roles.iter().map(|role| role.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn every_type_is_parsed() {
        let text = "f(Tensor x, Tensor? w, float eps, int n, bool b, Tensor(a!) y, Tensor(b!)? z) -> (Tensor, Tensor)";
        let schema = parse(text, &["ROWS", "VECTOR", "OUTPUT", "OUTPUT"]).expect("a schema");
        let tensor = |optional, written, role| Kind::Tensor { optional, written, role };
        let expected = [
            ("x", tensor(false, false, Role::Rows)),
            ("w", tensor(true, false, Role::Vector)),
            ("eps", Kind::Scalar(ScalarKind::Float)),
            ("n", Kind::Scalar(ScalarKind::Int)),
            ("b", Kind::Scalar(ScalarKind::Bool)),
            ("y", tensor(false, true, Role::Output)),
            ("z", tensor(true, true, Role::Output)),
        ];
        let expected = expected.map(|(name, kind)| Argument { name: name.into(), kind });
        assert_eq!(schema, Schema { name: "f".into(), arguments: expected.into(), results: 2 });
        assert_eq!(parse("f(Tensor x) -> Tensor", &["ROWS"]).expect("a schema").results, 1);
        assert_eq!(parse("f(Tensor x) -> ()", &["ROWS"]).expect("a schema").results, 0);
    }

    #[test]
    fn errors_name_operator_and_argument() {
        for (text, roles, expected) in [
            ("f", &[] as &[&str], "f: this is no schema"),
            ("f(Tensor x) -> Tensor", &[], "f: x has no role"),
            ("f(Tensor x) -> Tensor", &["ROWS", "ROWS"], "f: the role ROWS belongs to no tensor"),
            ("f(Tensor x) -> Tensor", &["ROW"], "f: no kernel takes a tensor of the role ROW"),
            ("f(str x) -> Tensor", &[], "f: x has type str, which no kernel takes"),
            ("f(Tensor[] x) -> Tensor", &["ROWS"], "f: x has type Tensor[], which no kernel takes"),
        ] {
            assert_eq!(parse(text, roles), Err(expected.into()), "{text}");
        }
    }
}
