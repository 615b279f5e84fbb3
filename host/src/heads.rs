//! Queries and keys as an op's arguments: their checks, the kernel arguments made of them, and the launch.
use kernels_gpu::head_lanes::{Params, Side, heads_of_warp};
use kernels_gpu::head_norm::Normed;
use kernels_gpu::heads::Heads as HeadsArg;
use kernels_gpu::operand::Operand as OperandArg;
use kernels_gpu::rotary::Rotary;

use cuda_std::row::Rows;

use crate::launch::{Launch, args};
use crate::rows::expect_disjoint;
use crate::{Affine, Device, Dtype, Error, Result, Rope, Stream, View, ViewMut};

/// Which of two dimensions comes first in a tensor of heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadsOrder {
    /// `[B, S, heads, D]`.
    #[default]
    TokensFirst,
    /// `[B, heads, S, D]`.
    HeadsFirst,
}

/// Queries or keys, and where the result goes.
#[derive(Debug)]
pub struct Heads<'a> {
    /// `[B, S, heads, D]`, or in another order; or `[B, S, heads * D]`. The last dimension is contiguous.
    pub x: View<'a>,
    /// The parameters of the norm: `[D]`, or `[heads * D]` if heads are normalised together.
    pub affine: Affine<'a>,
    /// Of `x`'s shape and dtype.
    pub y: ViewMut<'a>,
}

/// What queries and keys have in common, and the number of heads, of which tables may tell them apart.
pub(crate) struct Extent {
    pub batches: i64,
    pub tokens: i64,
    pub heads: i64,
    pub dim: i64,
    pub dtype: Dtype,
    pub order: HeadsOrder,
}

/// A tensor of heads with four dimensions: batch, token, head, column.
struct Split {
    sizes: [i64; 4],
    arg: HeadsArg,
}

/// How an op wants its heads.
pub(crate) struct Shape {
    pub order: HeadsOrder,
    /// Columns of a head in tensors of three dimensions; `None`: all of them.
    pub head_dim: Option<i64>,
    /// Are all heads of a token normalised together?
    pub across: bool,
}

/// The names of a side's arguments.
struct Names {
    x: &'static str,
    y: &'static str,
    weight: &'static str,
    bias: &'static str,
}

const NAMES: [Names; 2] = [
    Names { x: "q", y: "q_out", weight: "q_weight", bias: "q_bias" },
    Names { x: "k", y: "k_out", weight: "k_weight", bias: "k_bias" },
];

/// A launch that was checked.
pub(crate) struct Checked {
    pub sides: [Side; 2],
    pub rotary: Rotary,
    pub quads: bool,
    pub dtype: Dtype,
    extent: [i64; 3],
}

impl Checked {
    /// Checks queries, keys and rotation.
    pub fn of(
        op: &'static str,
        device: &Device,
        tensors: [Option<&Heads>; 2],
        rope: Option<&Rope>,
        shape: &Shape,
    ) -> Result<Self> {
        let mut quads = true;
        let mut sides = [ABSENT; 2];
        let mut first: Option<([i64; 4], Dtype)> = None;
        let mut heads = 1;
        for (i, tensor) in tensors.iter().enumerate() {
            let (Some(tensor), names) = (tensor, &NAMES[i]) else { continue };
            let ([batches, tokens, own, dim], side) = side(op, device, tensor, names, shape, &mut quads)?;
            sides[i] = side;
            let ([b, s, _, d], dtype) = *first.get_or_insert(([batches, tokens, own, dim], tensor.x.dtype()));
            tensor.x.expect_dtype(op, names.x, dtype)?;
            if [b, s, d] != [batches, tokens, dim] {
                let expected = format!("the batches, tokens and columns of q: [{b}, {s}, .., {d}]");
                return Err(Error::Shape { op, arg: names.x, got: tensor.x.shape().to_vec(), expected });
            }
            heads = if i == 0 || heads == own || tensors[0].is_none() { own } else { 1 };
        }
        let Some(([batches, tokens, _, dim], dtype)) = first else {
            return Err(Error::Shape { op, arg: "q", got: vec![], expected: "q, k or both".into() });
        };
        let extent = Extent { batches, tokens, heads, dim, dtype, order: shape.order };
        quads &= dim % 4 == 0;
        let rotary = rope.map_or(Ok(Rotary::NONE), |rope| rope.check(op, device, &extent, &mut quads))?;
        disjoint(op, tensors, rope)?;
        Ok(Self { sides, rotary, quads, dtype, extent: [batches, tokens, dim] })
    }

    /// Launches a kernel of `head_lanes` where one takes these heads.
    pub fn launch(
        &self,
        op: &'static str,
        device: &Device,
        kernels: &Kernels,
        norm: Normed,
        stream: Stream,
    ) -> Result<()> {
        let [batches, tokens, dim] = self.extent;
        let (rows, [q, k], rotary) = (batches * tokens, self.sides, self.rotary);
        let columns = i64::from(q.heads + k.heads) * dim;
        if rows > i64::from(u32::MAX) || columns > i64::from(i32::MAX) {
            let expected = "fewer than 2^32 tokens, and heads of fewer than 2^31 columns together";
            return Err(Error::Value { op, arg: "q", got: rows.max(columns) as f64, expected });
        }
        let apart = [q, k].iter().all(|side| side.heads == 0 || i64::from(side.cols) == dim);
        let mut p =
            Params { rows: rows as u32, tokens: tokens.max(1) as u32, dim: dim as u32, norm, staged: 0 };
        let lanes = kernels.lanes.iter().find(|kernel| dim <= kernel.dim).filter(|_| self.quads && apart);
        let (kernel, block, blocks, shared_bytes) = if let Some(lanes) = lanes {
            let each = heads_of_warp(p.dim, lanes.together);
            let shares = q.heads.div_ceil(each) + k.heads.div_ceil(each);
            let warps = shares.clamp(1, 4);
            (lanes.name, [32, warps, 1], rows as u64 * u64::from(shares.div_ceil(warps)), 0)
        } else {
            let list = |side: &Side| (i64::from(side.heads) * dim / i64::from(side.cols)) as u64;
            let (team, teams) = (kernels.team, if kernels.team == 128 { 2 } else { 4 });
            let tile_bytes = teams * team * 4 * self.dtype.size() as u32;
            let room = SHARED_BYTES - FOLD_BYTES;
            p.staged =
                if kernels.stages { q.cols.max(k.cols).div_ceil(4 * team).min(room / tile_bytes) } else { 0 };
            let blocks = (rows as u64 * (list(&q) + list(&k))).div_ceil(u64::from(teams));
            let kernel = if self.quads { kernels.rows } else { kernels.any };
            (kernel, [team, teams, 1], blocks, p.staged * tile_bytes + FOLD_BYTES)
        };
        let Ok(blocks) = i32::try_from(blocks) else {
            let expected = "at most 2^31 - 1 blocks of heads";
            return Err(Error::Value { op, arg: "q", got: blocks as f64, expected });
        };
        if blocks == 0 {
            return Ok(());
        }
        let shape = Launch { grid: [blocks as u32, 1, 1], block, shared_bytes };
        // SAFETY: the views were checked to be what the kernel's arguments mean.
        unsafe { device.launch(kernel, self.dtype, shape, stream, args![q, k, rotary, p]) }
    }
}

/// The kernels of an op.
pub(crate) struct Kernels {
    /// Those of heads in lanes, the shortest first.
    pub lanes: &'static [LanesKernel],
    pub rows: &'static str,
    pub any: &'static str,
    /// Threads that share a row in `rows`.
    pub team: u32,
    /// Does a row wait in shared memory between two passes?
    pub stages: bool,
}

/// A kernel of heads in lanes.
pub(crate) struct LanesKernel {
    pub name: &'static str,
    /// The most columns of a head.
    pub dim: i64,
    /// Heads that a lane has parts of.
    pub together: u32,
}

/// Shared memory that every GPU grants without being asked for more.
const SHARED_BYTES: u32 = 48 << 10;
/// Of which a block's reductions take this much at most: three numbers for each of four warps, twice.
const FOLD_BYTES: u32 = 2 * 3 * 4 * 4;

/// The side that is not there.
const ABSENT: Side = Side {
    x: HeadsArg::ABSENT,
    y: HeadsArg::ABSENT,
    affine: kernels_gpu::affine::Affine { weight: OperandArg::ABSENT, bias: OperandArg::ABSENT },
    heads: 0,
    cols: 1,
    inv_cols: 1.0,
};

/// One tensor's sizes and kernel argument.
fn side(
    op: &'static str,
    device: &Device,
    tensor: &Heads,
    names: &Names,
    shape: &Shape,
    quads: &mut bool,
) -> Result<([i64; 4], Side)> {
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
        *quads &= split.arg.is_quads(x.dtype().size());
    }
    let mut parameter = |arg, view: Option<&View>| parameter(op, device, arg, view, (cols, x.dtype()), quads);
    let affine = kernels_gpu::affine::Affine {
        weight: parameter(names.weight, affine.weight.as_ref())?,
        bias: parameter(names.bias, affine.bias.as_ref())?,
    };
    let side = Side {
        x: x_split.arg,
        y: y_split.arg,
        affine,
        heads: heads as u32,
        cols: cols.max(1) as u32,
        inv_cols: 1.0 / cols as f32,
    };
    Ok((x_split.sizes, side))
}

/// A tensor as batches, tokens, heads and columns.
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
    // The stride of a single one is any number: 0 does not get in the way of quads.
    let stride = |dim: usize| if sizes[dim] > 1 { strides[dim] } else { 0 };
    let base = view.ptr().cast_mut().cast();
    let arg = HeadsArg { base, batch_stride: stride(0), token_stride: stride(1), head_stride: stride(2) };
    Ok(Split { sizes, arg })
}

/// An optional parameter of the norm.
fn parameter(
    op: &'static str,
    device: &Device,
    arg: &'static str,
    view: Option<&View>,
    (cols, dtype): (i64, Dtype),
    quads: &mut bool,
) -> Result<OperandArg> {
    let Some(view) = view else { return Ok(OperandArg::ABSENT) };
    view.expect_on(op, arg, device)?;
    view.expect_shape(op, arg, &[cols])?;
    if view.strides()[0] != 1 && cols > 1 {
        return Err(view.bad_strides(op, arg, "it must be contiguous"));
    }
    let kind = match view.dtype() {
        own if own == dtype => OperandArg::SAME,
        Dtype::F32 => OperandArg::F32,
        got => return Err(Error::Dtype { op, arg, got, expected: format!("{dtype} (as q) or f32") }),
    };
    let rows = Rows::single(view.ptr().cast());
    *quads &= rows.is_quads(cols as u32, view.dtype().size());
    Ok(OperandArg { rows, kind })
}

/// Refuses outputs that overlap anything.
fn disjoint(op: &'static str, tensors: [Option<&Heads>; 2], rope: Option<&Rope>) -> Result<()> {
    for (i, tensor) in tensors.iter().enumerate() {
        let Some(Heads { y, .. }) = tensor else { continue };
        let out = (NAMES[i].y, y.as_view());
        for (other, names) in tensors.iter().zip(&NAMES) {
            let Some(Heads { x, affine, .. }) = other else { continue };
            let others = [
                Some((names.x, x)),
                affine.weight.as_ref().map(|view| (names.weight, view)),
                affine.bias.as_ref().map(|view| (names.bias, view)),
            ];
            expect_disjoint(op, out, &others)?;
        }
        if let Some(rope) = rope {
            expect_disjoint(op, out, &rope.operands())?;
        }
        if let (1, Some(q)) = (i, tensors[0]) {
            expect_disjoint(op, out, &[Some((NAMES[0].y, q.y.as_view()))])?;
        }
    }
    Ok(())
}
