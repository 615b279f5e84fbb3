//! The outputs that a call allocates: results and workspaces.

use crate::boundary::Failure;
use crate::call::{Call, Slot};
use crate::tensor::Tensor;
use Output::{
    DoubleColumns, Fp8, Fp8Product, Fp8Scales, Gradient, HalfColumns, HalfRowsOf, Heads, Like, LikeOf,
    LogSumExp, PerRow, RowsOf, Scratch, Workspace,
};
use oxiwarp::Fp8Scaling;
use oxiwarp::arguments::Argument as _;

/// How a call allocates an output. The reference tensor, which the variants mention, is the tensor `x`. If an
/// operator has no `x`, its first tensor is the reference tensor.
#[derive(Clone, Copy)]
pub enum Output {
    /// A result with the shape and dtype of the reference tensor.
    Like,
    /// A result with the shape and dtype of the tensor with this name. Operators without such a tensor do not
    /// have the result.
    LikeOf(&'static str),
    /// A result with the shape and dtype of the tensor with this name. In memory, the result always has the
    /// order `[B, S, heads, D]`. If its shape is `[B, heads, S, D]`, its strides are permuted.
    Heads(&'static str),
    /// A result with one float32 for each row of the reference tensor.
    PerRow,
    /// A result with the dtype of the reference tensor. If the call has a tensor `second`, the result has the
    /// shape of the reference tensor. Without `second`, it has half as many columns.
    HalfColumns,
    /// A result with the dtype of the reference tensor. If the call has no tensor `second`, the result has
    /// the shape of the reference tensor. With `second`, it has twice as many columns.
    DoubleColumns,
    /// A result with the dtype and shape of the reference tensor, except for the number of columns. It has as
    /// many columns as the matrix with this name has rows.
    RowsOf(&'static str),
    /// As `RowsOf`, with one column per two rows of the matrix.
    HalfRowsOf(&'static str),
    /// A result with the shape of the reference tensor, in an 8-bit float dtype. The string names a bool
    /// argument of the operator. If the argument is true, the dtype is float8_e5m2, otherwise float8_e4m3fn.
    Fp8(&'static str),
    /// The product of the reference tensor and the matrix `weight`, both in an 8-bit float dtype. The string
    /// names a bool argument of the operator. If the argument is true, the dtype is float16, otherwise
    /// bfloat16.
    Fp8Product(&'static str),
    /// The float32 scales of an `Fp8` result, in the layout of [`Fp8Scaling::layout`]. The first bool that
    /// the host function takes says which elements share a scale.
    Fp8Scales,
    /// A result with one float32 per token and head. The string names a bool argument of the operator. If the
    /// argument is false, the result has no elements.
    LogSumExp(&'static str),
    /// The gradient of a parameter. The string names a bool argument of the operator, for example `dweight`
    /// for the gradient of `weight`. If the argument is false, the gradient has no elements.
    Gradient(&'static str),
    /// A workspace with the shape and dtype of the tensor with this name.
    Scratch(&'static str),
    /// A float32 workspace. The function returns the number of elements that the call needs, or `None` if the
    /// call needs no workspace.
    Workspace(fn(&Call) -> Result<Option<i64>, Failure>),
}

impl Output {
    /// Whether the operator returns the output.
    pub fn is_result(self) -> bool {
        !matches!(self, Scratch(_) | Workspace(_))
    }

    /// The name of the tensor whose shape and dtype the output has. An operator without this tensor does not
    /// have the output.
    pub fn tensor(self) -> Option<&'static str> {
        match self {
            LikeOf(name) | Heads(name) | Scratch(name) => Some(name),
            _ => None,
        }
    }

    /// The name of a bool argument that the host function does not receive. It says whether the caller needs
    /// the output, or which dtype the output has. An operator without this argument does not have the output.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            LogSumExp(name) | Gradient(name) | Fp8(name) | Fp8Product(name) => Some(name),
            _ => None,
        }
    }

    /// Allocates the output. `flag` is the value of the bool argument whose name [`Output::flag`] returns.
    /// `like` is the tensor whose name [`Output::tensor`] returns.
    pub fn allocate(self, call: &Call, flag: bool, like: Option<&Tensor>) -> Result<Slot, Failure> {
        let x = call.reference()?;
        let like = like.unwrap_or(x);
        let tensor = match self {
            Like => x.empty_like()?,
            LikeOf(_) | Scratch(_) => like.empty_like()?,
            Heads(_) => like.empty_heads(call.heads_first())?,
            PerRow => {
                let sizes = x.sizes()?;
                x.empty_f32(&sizes[..sizes.len().saturating_sub(1)])?
            }
            HalfColumns => match call.named("second") {
                None => x.empty(&with_columns(x, |columns| columns / 2)?)?,
                Some(_) => x.empty_like()?,
            },
            DoubleColumns => match call.named("second") {
                None => x.empty_like()?,
                Some(_) => x.empty(&with_columns(x, |columns| columns * 2)?)?,
            },
            RowsOf(name) => x.empty(&product_shape(call, name, 1)?)?,
            HalfRowsOf(name) => x.empty(&product_shape(call, name, 2)?)?,
            Fp8Product(_) => x.empty_16_bits(&product_shape(call, "weight", 1)?, flag)?,
            Fp8(_) => x.empty_fp8(flag)?,
            Fp8Scales => {
                let scaling = Fp8Scaling::take(&mut call.source())?;
                let (sizes, strides) = scaling.layout(x.sizes()?);
                x.empty_f32_strided(&sizes, &strides)?
            }
            LogSumExp(_) if flag => log_sum_exp(x, call.heads_first())?,
            LogSumExp(_) => return Ok(Slot { is_written: false, ..x.empty_f32(&[0])?.into() }),
            Gradient(name) if flag => parameter(call, name)?.empty_like()?,
            Gradient(_) => return Ok(Slot { is_written: false, ..x.empty(&[0])?.into() }),
            Workspace(numbers) => match numbers(call)? {
                Some(numbers) => x.empty_f32(&[numbers])?,
                None => return Ok(Slot::default()),
            },
        };
        Ok(tensor.into())
    }
}

/// Returns the shape of `x` with another number of columns.
fn with_columns(x: &Tensor, columns: impl FnOnce(i64) -> i64) -> Result<Vec<i64>, Failure> {
    let mut sizes = x.sizes()?.to_vec();
    if let Some(last) = sizes.last_mut() {
        *last = columns(*last);
    }
    Ok(sizes)
}

/// Returns the shape of a result that has one column per `parts` rows of the matrix `name`.
fn product_shape(call: &Call, name: &str, parts: i64) -> Result<Vec<i64>, Failure> {
    let matrix = call.named(name).map(Tensor::sizes).transpose()?;
    let rows = matrix.and_then(|sizes| sizes.first().copied()).unwrap_or(0);
    with_columns(call.reference()?, |_| rows / parts)
}

/// Allocates `[B, heads, S]` in float32 for queries in either layout.
fn log_sum_exp(q: &Tensor, heads_first: bool) -> Result<Tensor, Failure> {
    let sizes = q.sizes()?;
    let mut rows = sizes[..sizes.len().saturating_sub(1)].to_vec();
    if let (false, [.., tokens, heads]) = (heads_first, &mut rows[..]) {
        std::mem::swap(tokens, heads);
    }
    Ok(q.empty_f32(&rows)?)
}

/// Returns the tensor whose shape and dtype a parameter's gradient has. This tensor is the parameter, or the
/// weight if the call does not have the parameter.
fn parameter<'t>(call: &'t Call, gradient: &str) -> Result<&'t Tensor, Failure> {
    let parameter = call.named(gradient.trim_start_matches('d')).or_else(|| call.named("weight"));
    parameter.ok_or_else(|| {
        let op = call.operator.op;
        Failure(format!("{op}: {gradient} is wanted, and there is no parameter that says its shape"))
    })
}
