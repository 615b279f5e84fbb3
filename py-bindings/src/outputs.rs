//! The outputs that a call allocates: results and workspaces.

use crate::boundary::Failure;
use crate::call::{Call, Slot};
use crate::tensor::Tensor;
use Output::{
    DoubleColumns, Gradient, HalfColumns, Heads, Like, LikeOf, LogSumExp, PerRow, Scratch, Workspace,
};

/// How a call allocates an output. In the variants, the reference is the tensor `x`. If an operator has no
/// `x`, the reference is its first tensor.
#[derive(Clone, Copy)]
pub enum Output {
    /// A result with the shape and dtype of the reference.
    Like,
    /// A result with the shape and dtype of the named tensor. Operators without this tensor do not have this
    /// output.
    LikeOf(&'static str),
    /// A result with the shape and dtype of the named tensor, in the memory layout `[B, S, heads, D]`. If the
    /// tensor is `[B, heads, S, D]`, the strides of the result are permuted.
    Heads(&'static str),
    /// A result with one float32 for each row of the reference.
    PerRow,
    /// A result with the shape and dtype of the reference tensor. If the call has no tensor `second`, the
    /// result has half as many columns as the reference.
    HalfColumns,
    /// A result with the shape and dtype of the reference tensor. If the call has a tensor `second`, the
    /// result has twice as many columns as the reference.
    DoubleColumns,
    /// A result with one float32 per token and head. If the named bool is false, the result has no elements.
    LogSumExp(&'static str),
    /// The gradient of a parameter. If the named bool is false, the gradient has no elements. The bool is
    /// named after the parameter, for example `dweight` for `weight`.
    Gradient(&'static str),
    /// A workspace with the shape and dtype of the named tensor.
    Scratch(&'static str),
    /// A float32 workspace. The field is a function that returns its number of elements, or `None` if the
    /// call needs no workspace.
    Workspace(fn(&Call) -> Result<Option<i64>, Failure>),
}

impl Output {
    /// Whether the operator returns the output.
    pub fn is_result(self) -> bool {
        !matches!(self, Scratch(_) | Workspace(_))
    }

    /// The tensor on which the output depends. An operator without this tensor does not have the output.
    pub fn tensor(self) -> Option<&'static str> {
        match self {
            LikeOf(name) | Heads(name) | Scratch(name) => Some(name),
            _ => None,
        }
    }

    /// The bool that says whether the caller needs the output. An operator without this bool does not have
    /// the output.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            LogSumExp(name) | Gradient(name) => Some(name),
            _ => None,
        }
    }

    /// Allocates the output. The argument `flag` is the value of the bool that [`Output::flag`] names. The
    /// argument `like` is the tensor that [`Output::tensor`] names.
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
                None => with_columns(x, |columns| columns / 2)?,
                Some(_) => x.empty_like()?,
            },
            DoubleColumns => match call.named("second") {
                None => x.empty_like()?,
                Some(_) => with_columns(x, |columns| columns * 2)?,
            },
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

fn with_columns(x: &Tensor, columns: impl FnOnce(i64) -> i64) -> Result<Tensor, Failure> {
    let mut sizes = x.sizes()?.to_vec();
    if let Some(last) = sizes.last_mut() {
        *last = columns(*last);
    }
    Ok(x.empty(&sizes)?)
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

/// Returns the tensor that determines the shape and dtype of a parameter's gradient. This tensor is the
/// parameter, or the weight if the parameter is absent.
fn parameter<'t>(call: &'t Call, gradient: &str) -> Result<&'t Tensor, Failure> {
    let parameter = call.named(gradient.trim_start_matches('d')).or_else(|| call.named("weight"));
    parameter.ok_or_else(|| {
        let op = call.operator.op;
        Failure(format!("{op}: {gradient} is wanted, and there is no parameter that says its shape"))
    })
}
