//! Queries and keys as arguments of the ops `rope` and `qk_norm_rope`. This file checks query and key tensors
//! and converts them to kernel arguments.
use cuda_std::row::Rows;
use kernels_gpu::heads::params::HeadsOperand;
use kernels_gpu::layout::heads::Heads as HeadsArg;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::operand::Operand as OperandArg;

use super::overlap::{expect_disjoint, is_same};
use super::rows::Operand;
use crate::arguments::{Argument, Role, Source, choices};
use crate::{Affine, Device, Dtype, Error, Result, View, ViewMut};

/// The order of the token and head dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadsOrder {
    /// `[B, S, heads, D]`.
    #[default]
    TokensFirst,
    /// `[B, heads, S, D]`.
    HeadsFirst,
}

choices! { HeadsOrder: HeadsFirst, TokensFirst; }

/// Queries or keys, and their output.
#[derive(Debug)]
pub struct Heads<'a> {
    /// Input `[B, S, heads, D]`, `[B, heads, S, D]` or `[B, S, heads * D]`. Its last dimension is contiguous.
    pub x: View<'a>,
    /// Weight and bias of the norm that `qk_norm_rope` applies. Their shape is `[D]`, or `[heads * D]` if all
    /// heads of a token are normalized together.
    pub affine: Affine<'a>,
    /// Output, with the shape and dtype of `x`.
    pub y: ViewMut<'a>,
}

/// Takes queries and keys, with the parameters of their norms, from the arguments of a call. The tensors of
/// the call have this order: `q`, `k`, the weights of both norms, the biases of both norms. `k`, the weights
/// and the biases are optional.
impl<'t> Argument<'t> for [Option<Heads<'t>>; 2] {
    #[inline]
    fn take<S: Source<'t>>(source: &mut S) -> Result<Self, S::Error> {
        let inputs = pair(source, Role::Heads)?;
        let (weights, biases) = (pair(source, Role::HeadVector)?, pair(source, Role::HeadVector)?);
        let mut taken = [None, None];
        for (at, x) in inputs.into_iter().enumerate() {
            let y = source.optional_output()?;
            let affine = Affine { weight: weights[at], bias: biases[at] };
            taken[at] = x.zip(y).map(|(x, y)| Heads { x, affine, y });
        }
        Ok(taken)
    }
}

/// Takes up to two tensors with the role `role` (such as "weight of a norm") from the front of the call's
/// tensors. Returns `None` for each tensor that is absent or has another role.
fn pair<'t, S: Source<'t>>(source: &mut S, role: Role) -> Result<[Option<View<'t>>; 2], S::Error> {
    let mut taken = [None, None];
    for view in &mut taken {
        if source.role() == Some(role) {
            *view = source.optional()?;
        }
    }
    Ok(taken)
}

/// The sizes and the dtype that queries and keys have in common. `heads` is the number of heads if queries
/// and keys have equally many. Otherwise `heads` is 1, and all heads of a token must have the same rotation
/// angles.
pub(crate) struct Extent {
    pub batches: i64,
    pub tokens: i64,
    pub heads: i64,
    pub dim: i64,
    pub dtype: Dtype,
    pub order: HeadsOrder,
}

/// The properties of a query or key tensor: its sizes (batches, tokens, heads, columns), and its kernel
/// argument.
struct Split {
    sizes: [i64; 4],
    arg: HeadsArg,
}

/// How an op interprets the dimensions of query and key tensors.
pub(crate) struct Shape {
    pub order: HeadsOrder,
    /// The number D of columns per head, if queries and keys have the shape `[B, S, heads * D]`. `None` means
    /// that the last dimension is a single head.
    pub head_dim: Option<i64>,
    /// Whether all heads of a token are normalized together.
    pub across: bool,
}

/// The argument names of the queries, or of the keys, for error messages.
pub(crate) struct HeadsNames {
    pub x: &'static str,
    y: &'static str,
    weight: &'static str,
    bias: &'static str,
}

pub(crate) const NAMES: [HeadsNames; 2] = [
    HeadsNames { x: "q", y: "q_out", weight: "q_weight", bias: "q_bias" },
    HeadsNames { x: "k", y: "k_out", weight: "k_weight", bias: "k_bias" },
];

/// The kernel argument for queries or keys that the call does not have.
pub(crate) const ABSENT: HeadsOperand = HeadsOperand {
    x: HeadsArg::ABSENT,
    y: HeadsArg::ABSENT,
    affine: kernels_gpu::norm::affine::Affine { weight: OperandArg::ABSENT, bias: OperandArg::ABSENT },
    heads: 0,
    cols: 1,
    inv_cols: 1.0,
};

/// Checks the query tensor or the key tensor, with its output, weight and bias. Returns the sizes of the
/// query or key tensor, and the kernel argument for all four tensors. Sets `vec4s` to false if a kernel
/// cannot access these tensors four elements at a time.
pub(crate) fn operand(
    op: &'static str,
    device: &Device,
    tensor: &Heads,
    names: &HeadsNames,
    shape: &Shape,
    vec4s: &mut bool,
) -> Result<([i64; 4], HeadsOperand)> {
    let Heads { x, affine, y } = tensor;
    let y = y.as_view();
    y.expect_dtype(op, names.y, x.dtype())?;
    y.expect_shape(op, names.y, x.shape())?;
    let x_split = split(op, device, names.x, x, shape)?;
    let y_split = split(op, device, names.y, y, shape)?;
    let [_, _, heads, dim] = x_split.sizes;
    let cols = if shape.across { heads * dim } else { dim };
    for (arg, view, split) in [(names.x, x, &x_split), (names.y, y, &y_split)] {
        if shape.across && heads > 1 && split.arg.head_stride != dim {
            return Err(view.bad_strides(
                op,
                arg,
                "heads that are normalised together must lie side by side",
            ));
        }
        *vec4s &= split.arg.is_vec4s(x.dtype().size());
    }
    let mut parameter = |arg, view: Option<&View>| parameter(op, device, arg, view, (cols, x.dtype()), vec4s);
    let affine = kernels_gpu::norm::affine::Affine {
        weight: parameter(names.weight, affine.weight.as_ref())?,
        bias: parameter(names.bias, affine.bias.as_ref())?,
    };
    let operand = HeadsOperand {
        x: x_split.arg,
        y: y_split.arg,
        affine,
        heads: heads as u32,
        cols: cols.max(1) as u32,
        inv_cols: 1.0 / cols as f32,
    };
    Ok((x_split.sizes, operand))
}

/// Checks a query or key tensor, and returns its sizes and strides as batches, tokens, heads and columns.
fn split(op: &'static str, device: &Device, arg: &'static str, view: &View, shape: &Shape) -> Result<Split> {
    view.expect_on(op, arg, device)?;
    let bad =
        |expected: &str| Error::Shape { op, arg, got: view.shape().to_vec(), expected: expected.into() };
    let (sizes, strides) = match (view.shape(), view.strides(), shape.order) {
        (&[b, s, h, d], &[i, j, k, l], HeadsOrder::TokensFirst) => ([b, s, h, d], [i, j, k, l]),
        (&[b, h, s, d], &[i, k, j, l], HeadsOrder::HeadsFirst) => ([b, s, h, d], [i, j, k, l]),
        (&[b, s, n], &[i, j, l], HeadsOrder::TokensFirst) => {
            let d = shape.head_dim.unwrap_or(n);
            if d < 1 || n % d != 0 {
                return Err(bad(&format!("a last dimension of heads of {d} columns")));
            }
            ([b, s, n / d, d], [i, j, d * l, l])
        }
        _ => return Err(bad("four dimensions, or three without heads")),
    };
    if sizes[3] < 1 || sizes[2] * sizes[3] > i64::from(i32::MAX) {
        return Err(bad("heads of between 1 and 2^31 - 1 columns together"));
    }
    if strides[3] != 1 && sizes[3] > 1 {
        return Err(view.bad_strides(op, arg, "its last dimension must be contiguous"));
    }
    // The stride of a dimension of size 1 has no effect on addresses, so the caller's tensor may have any
    // value there. Replace this stride by 0. A later check permits access to four elements at a time only if
    // all strides are multiples of four.
    let stride = |dim: usize| if sizes[dim] > 1 { strides[dim] } else { 0 };
    let base = view.ptr().cast_mut().cast();
    let arg = HeadsArg { base, batch_stride: stride(0), token_stride: stride(1), head_stride: stride(2) };
    Ok(Split { sizes, arg })
}

/// Checks the weight or bias of a norm, and returns the kernel argument for it. The weight or bias may be
/// absent.
fn parameter(
    op: &'static str,
    device: &Device,
    arg: &'static str,
    view: Option<&View>,
    (cols, dtype): (i64, Dtype),
    vec4s: &mut bool,
) -> Result<OperandArg> {
    let Some(view) = view else { return Ok(OperandArg::ABSENT) };
    view.expect_on(op, arg, device)?;
    view.expect_shape(op, arg, &[cols])?;
    if view.strides()[0] != 1 && cols > 1 {
        return Err(view.bad_strides(op, arg, "it must be contiguous"));
    }
    let kind = match view.dtype() {
        own if own == dtype => OperandKind::SAME,
        Dtype::F32 => OperandKind::F32,
        got => return Err(Error::Dtype { op, arg, got, expected: dtype.or_f32("q") }),
    };
    let rows = Rows::single(view.ptr().cast());
    *vec4s &= rows.is_vec4s(cols as u32, view.dtype().size());
    Ok(OperandArg { rows, kind })
}

/// Checks that no output overlaps an input, another output, or a tensor of the rotation. If `may_replace` is
/// true, an output may be its own input. Returns whether an output is its own input.
pub(crate) fn disjoint(
    op: &'static str,
    tensors: [Option<&Heads>; 2],
    angles: &[Option<Operand>],
    may_replace: bool,
) -> Result<bool> {
    let mut in_place = false;
    for (i, tensor) in tensors.iter().enumerate() {
        let Some(Heads { x: own, y, .. }) = tensor else { continue };
        let out = (NAMES[i].y, y.as_view());
        let replaces = may_replace && is_same(out.1, own);
        in_place |= replaces;
        for (at, (other, names)) in tensors.iter().zip(&NAMES).enumerate() {
            let Some(Heads { x, affine, .. }) = other else { continue };
            let others = [
                (at != i || !replaces).then_some((names.x, x)),
                affine.weight.as_ref().map(|view| (names.weight, view)),
                affine.bias.as_ref().map(|view| (names.bias, view)),
            ];
            expect_disjoint(op, out, &others)?;
        }
        expect_disjoint(op, out, angles)?;
        if let (1, Some(q)) = (i, tensors[0]) {
            expect_disjoint(op, out, &[Some((NAMES[0].y, q.y.as_view()))])?;
        }
    }
    Ok(in_place)
}
