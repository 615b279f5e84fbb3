//! The two launches of a norm's backward pass. In the first launch, each block processes some of the rows.
//! Over these rows, it computes and stores partial sums of the gradients of weight and bias. The second
//! launch adds the partial sums of all blocks.
use kernels_gpu::norm_backward::column_sums::{COLUMNS, ColumnSums, ColumnSumsParams, STRIPES};
use kernels_gpu::norm_backward::params::{NormBackwardParams, Operands, PartialSums};
use kernels_gpu::rms::weight::Weight;

use super::columns::{Columns, ParameterGradients};
use super::plan::{Dims, RowKernel, RowSplit};
use crate::Launch;
use crate::library::LaunchSite;
use crate::operands::numbers::finite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::{Device, Dtype, Result, Stream, View};

/// A function that launches the kernel of the first launch.
type RowsKernel = unsafe fn(LaunchSite, Operands, Weight, PartialSums, NormBackwardParams) -> Result<()>;
/// A function that launches the kernel of the second launch.
type SumsKernel = unsafe fn(LaunchSite, ColumnSums, ColumnSums, ColumnSumsParams) -> Result<()>;

/// The kernels of one norm's backward pass.
pub(crate) struct NormOp {
    pub op: &'static str,
    /// Whether the norm subtracts the mean (LayerNorm).
    pub layer: bool,
    pub any_layout: RowsKernel,
    pub block4: RowsKernel,
    /// Two kernels. The first kernel keeps two packs (16-byte vectors) of a row per thread in registers, and
    /// the second kernel keeps three. Only LayerNorm has these kernels.
    pub multi_row: Option<[RowsKernel; 2]>,
    pub sums: SumsKernel,
}

/// The operands of the backward pass of a norm, except the outputs for the gradients of weight and bias.
pub(crate) struct Given<'v, 'a> {
    pub dy: &'v View<'a>,
    pub x: &'v View<'a>,
    pub weight: Option<&'v View<'a>>,
    pub dsum: Option<&'v View<'a>>,
    pub dx: &'v View<'a>,
}

impl NormOp {
    /// Checks all operands, then launches both kernels.
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
        let plan = RowSplit::of(device, self.layer, columns.wanted() > 0, &dims);
        let sums = columns.workspace(op, device, &plan, &dims)?;
        if let Some(workspace) = columns.workspace {
            expect_disjoint(op, ("workspace", workspace), &taken)?;
        }
        let p = NormBackwardParams {
            rows: dims.rows,
            inner: layout.inner,
            cols: layout.cols,
            inv_cols: (1.0 / f64::from(layout.cols)) as f32,
            eps,
            weight_offset,
            vector: u32::from(layout.vector),
            in_registers: u32::from(plan.form != RowKernel::Streamed),
        };
        let [x, dy, mut dsum_rows, dx] = layout.operands;
        if dsum.is_none() {
            dsum_rows.base = std::ptr::null_mut();
        }
        let (rows, weight) = (Operands { dy, x, dsum: dsum_rows, dx }, columns.weight);
        let kernel = match (plan.form, self.multi_row) {
            (RowKernel::Rows2, Some([two, _])) => two,
            (RowKernel::Registers3, Some([_, three])) => three,
            (RowKernel::Registers, _) if layout.vector => self.block4,
            _ => self.any_layout,
        };
        let shape = Launch::of([plan.splits, dims.groups, 1], [plan.team, plan.teams, 1]);
        if plan.splits > 0 {
            // SAFETY: the kernel accesses only the tensors that it receives. `RowLayout::of`, `Columns::of`
            // and `Columns::workspace` have checked each of these tensors.
            unsafe { kernel(LaunchSite::new(device, layout.dtype, shape, stream)?, rows, weight, sums, p)? };
        }
        self.add_up(device, &columns, sums, &plan, &dims, stream)
    }

    /// Launches the kernel that adds the partial sums of all blocks and writes the gradients of weight and
    /// bias. If there are no rows, these gradients are 0.
    fn add_up(
        &self,
        device: &Device,
        columns: &Columns,
        sums: PartialSums,
        plan: &RowSplit,
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
        let p = ColumnSumsParams { splits: plan.splits, cols: dims.cols };
        let shape = Launch::of([dims.cols.div_ceil(COLUMNS), dims.groups, 2], [COLUMNS, STRIPES, 1]);
        let site = LaunchSite::new(device, dims.dtype, shape, stream)?;
        // SAFETY: the kernel accesses only the tensors that it receives, and `run` has checked these tensors.
        // If a gradient is not requested, its pointer is null, and the kernel does not access this pointer.
        unsafe { (self.sums)(site, dweight, dbias, p) }
    }
}
