//! The gradients of norms: how their rows are shared out among blocks, what is checked, and the two launches.
use kernels_gpu::norm_backward::column_sums::{COLUMNS, ColumnSums, Params as SumParams, STRIPES};
use kernels_gpu::norm_backward::{Operands, Params, Sums};

use crate::device::launch::{Launch, MOST_BESIDE, args};
use crate::error::finite;
use crate::operands::rows::{RowLayout, expect_disjoint};
use crate::{Device, Dtype, Result, Stream, View, ViewMut};

mod columns;
mod plan;
use columns::Columns;
use plan::{Dims, Form, Plan};

/// The gradients of a norm's parameters, those that are wanted: sums over rows, of the weight's shape.
#[derive(Debug, Default)]
pub struct ParameterGradients<'a> {
    /// Of the weight, in the dtype of `x` or f32.
    pub dweight: Option<ViewMut<'a>>,
    /// Of the bias, in the dtype of `x` or f32; a LayerNorm has one.
    pub dbias: Option<ViewMut<'a>>,
    /// f32 as many as [`norm_backward_workspace`] says, where one of the two is wanted; what is in it does not matter.
    pub workspace: Option<ViewMut<'a>>,
}

/// What the two norms differ in.
pub(crate) struct NormOp {
    pub op: &'static str,
    /// Does the norm subtract the mean?
    pub layer: bool,
    pub any_layout: &'static str,
    pub hold4: &'static str,
    /// Those with two packs a thread and with three, where the norm has them.
    pub beside: Option<[&'static str; 2]>,
    pub sums: &'static str,
}

/// The operands of a gradient.
pub(crate) struct Given<'v, 'a> {
    pub dy: &'v View<'a>,
    pub x: &'v View<'a>,
    pub weight: Option<&'v View<'a>>,
    pub dsum: Option<&'v View<'a>>,
    pub dx: &'v View<'a>,
}

/// The most groups of rows, which are a dimension of the grid.
const GROUPS: u64 = MOST_BESIDE as u64;

/// How many f32 of workspace the gradients of a norm's parameters need, each of `shape`: `[columns]`, or
/// `[groups, columns]` where so many groups of rows of `x` have parameters of their own. It depends on the shape of `x`,
/// its dtype and the architecture of the device.
///
/// `gradients` says how many are wanted: 1 or 2. Shapes that do not fit give a number that is of no use.
pub fn norm_backward_workspace(device: &Device, x: &View, shape: &[i64], gradients: usize) -> usize {
    let (Some(&cols), [groups @ .., _]) = (x.shape().last(), shape) else { return 0 };
    let rows: i64 = x.shape()[..x.shape().len() - 1].iter().product();
    let groups = groups.iter().product::<i64>().clamp(1, GROUPS as i64) as u64;
    let dims = Dims {
        rows: rows as u64 / groups,
        groups: groups as u32,
        cols: cols as u32,
        dtype: x.dtype(),
        vector: true,
    };
    let parts = [false, true]
        .into_iter()
        .flat_map(|layer| [true, false].map(|vector| (layer, vector)))
        .map(|(layer, vector)| Plan::of(device, layer, true, &Dims { vector, ..dims }).parts);
    gradients * (groups * u64::from(parts.max().unwrap_or(0))) as usize * cols as usize
}

impl NormOp {
    /// Checks everything, then launches.
    pub fn run(
        &self,
        device: &Device,
        given: Given,
        gradients: ParameterGradients,
        [eps, weight_offset]: [f32; 2],
        stream: Stream,
    ) -> Result<()> {
        let op = self.op;
        finite(op, "eps", eps, 0.0)?;
        finite(op, "weight_offset", weight_offset, f32::MIN)?;
        let Given { dy, x, weight, dsum, dx } = given;
        let operands = [("x", x), ("dy", dy), ("dsum", dsum.unwrap_or(x)), ("dx", dx)];
        let mut layout = RowLayout::of(op, device, operands)?;
        let columns = Columns::of(op, device, x, weight, &gradients)?;
        let mut taken = vec![Some(("x", x)), Some(("dy", dy))];
        taken.extend([weight.map(|weight| ("weight", weight)), dsum.map(|dsum| ("dsum", dsum))]);
        for out in [("dx", dx)].into_iter().chain(columns.outputs()) {
            expect_disjoint(op, out, &taken)?;
            taken.push(Some(out));
        }
        layout.vector &= columns.aligned();
        let dims = Dims {
            rows: layout.rows / u64::from(columns.groups),
            groups: columns.groups,
            cols: layout.cols,
            dtype: layout.dtype,
            vector: layout.vector,
        };
        let plan = Plan::of(device, self.layer, columns.wanted() > 0, &dims);
        let sums = columns.workspace(op, device, &plan, &dims)?;
        if let Some(workspace) = columns.workspace {
            expect_disjoint(op, ("workspace", workspace), &taken)?;
        }
        let p = Params {
            rows: dims.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: (1.0 / f64::from(layout.cols)) as f32,
            eps,
            weight_offset,
            vector: u32::from(layout.vector),
            held: u32::from(plan.form != Form::Streamed),
        };
        let [x, dy, mut dsum_rows, dx] = layout.operands;
        if dsum.is_none() {
            dsum_rows.base = std::ptr::null_mut();
        }
        let (rows, weight) = (Operands { dy, x, dsum: dsum_rows, dx }, columns.weight);
        let kernel = match (plan.form, self.beside) {
            (Form::Beside2, Some([two, _])) => two,
            (Form::Beside3, Some([_, three])) => three,
            (Form::Held, _) if layout.vector => self.hold4,
            _ => self.any_layout,
        };
        let shape = Launch {
            grid: [plan.parts, dims.groups, 1],
            block: [plan.team, plan.teams, 1],
            shared_bytes: plan.shared_bytes,
            carveout: None,
        };
        if plan.parts > 0 {
            // SAFETY: the views were checked to be what the kernel's arguments mean.
            unsafe { device.launch(kernel, layout.dtype, shape, stream, args![rows, weight, sums, p])? };
        }
        self.add_up(device, &columns, sums, &plan, &dims, stream)
    }

    /// Adds up what the blocks left; zeros where there were none.
    fn add_up(
        &self,
        device: &Device,
        columns: &Columns,
        sums: Sums,
        plan: &Plan,
        dims: &Dims,
        stream: Stream,
    ) -> Result<()> {
        if columns.wanted() == 0 {
            return Ok(());
        }
        let of = |from: *mut u8, to: Option<&View>| ColumnSums {
            from,
            to: to.map_or(std::ptr::null_mut(), |to| to.ptr().cast_mut().cast()),
            single: u32::from(to.is_some_and(|to| to.dtype() == Dtype::F32)),
        };
        let (dweight, dbias) = (of(sums.dweight, columns.dweight), of(sums.dbias, columns.dbias));
        let p = SumParams { parts: plan.parts, cols: dims.cols };
        let shape = Launch {
            grid: [dims.cols.div_ceil(COLUMNS), dims.groups, 2],
            block: [COLUMNS, STRIPES, 1],
            shared_bytes: COLUMNS * STRIPES * 4,
            carveout: None,
        };
        // SAFETY: as in `run`; a gradient that is not wanted is null.
        unsafe { device.launch(self.sums, dims.dtype, shape, stream, args![dweight, dbias, p]) }
    }
}
