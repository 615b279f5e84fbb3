//! Gradients of a gated residual with respect to the branch and the gate.
use cuda_std::row::Rows;
use kernels_gpu::elementwise::partition::{Extent, THREADS};
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::norm::operand::Operand as OperandArg;
use kernels_gpu::norm_backward::column_sums::{COLUMNS, ColumnSums, ColumnSumsParams, STRIPES};
use kernels_gpu::ops::gated_residual_backward::{
    BLOCKS_PER_SM, GateGradients, GateParams, ROWS_PER_BLOCK, TEAM, TEAMS, launch,
};

use crate::arguments::arguments;
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::{Operand, RowLayout, columns};
use crate::plan::elementwise::Elementwise;
use crate::plan::norm_backward::multiprocessors;
use crate::{Device, Dtype, Error, Launch, MAX_GRID_YZ, Result, Stream, View, ViewMut};

const OP: &str = "gated_residual_backward";
/// A function that launches a kernel for a gate with one row per group. The rows of a group share a row of
/// the gate.
type GroupKernel = unsafe fn(LaunchSite, GateGradients, *mut u8, GateParams) -> Result<()>;
/// A function that launches a kernel for a gate with the shape of `y`.
type TokenKernel = unsafe fn(LaunchSite, GateGradients, OperandArg, Extent) -> Result<()>;
/// A function that launches a kernel for a gate with one column.
type GradientRowKernel = unsafe fn(LaunchSite, GateGradients, OperandArg, GateParams) -> Result<()>;
// There are two kernels for each form of the gate (which elements of `y` share a value of it). The first
// kernel takes any layout, and the second needs rows that allow 16-byte accesses.
const PER_GROUP: [GroupKernel; 2] =
    [launch::gated_residual_backward_per_group_any, launch::gated_residual_backward_per_group_block1];
const PER_TOKEN: [TokenKernel; 2] =
    [launch::gated_residual_backward_per_token_any, launch::gated_residual_backward_per_token_block1];
const PER_ROW: [GradientRowKernel; 2] =
    [launch::gated_residual_backward_per_row_any, launch::gated_residual_backward_per_row_warp2];

arguments! {
    /// The output for the gradient of a gate. It is optional.
    #[derive(Debug, Default)]
    pub struct GateGradient<'a> {
        /// Gradient of the gate, contiguous, in the shape of the gate, and in the dtype of `y` or in f32.
        pub dgate: Option<ViewMut<'a>>,
        /// Scratch memory in f32 for partial sums. Its initial contents are ignored.
        /// [`gated_residual_backward_workspace`] returns the required number of elements. If the result is 0,
        /// the workspace may be absent.
        pub workspace: Option<ViewMut<'a>>,
    }
}

/// Which elements of `y` share a value of the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The gate has one row for each group of consecutive rows of `y`. The value is the number of groups, at
    /// most [`MAX_GRID_YZ`].
    Groups(u32),
    /// The gate has the shape of `y`.
    Tokens,
    /// The gate has the shape of `y`, but one column.
    Rows,
}

impl Form {
    /// Determines from the shape `gate` which elements of `y` share a value of the gate. Returns `None` if
    /// the op does not support this shape.
    fn of(y: &[i64], gate: &[i64]) -> Option<Self> {
        let (&cols, outer) = y.split_last()?;
        let rows: i64 = outer.iter().product();
        match gate {
            [own] if *own == cols => Some(Self::Groups(1)),
            _ if gate == y => Some(Self::Tokens),
            [outer_of_gate @ .., 1] if outer_of_gate == outer => Some(Self::Rows),
            &[groups, own] if own == cols && (1..=i64::from(MAX_GRID_YZ)).contains(&groups) => {
                (rows % groups == 0).then_some(Self::Groups(groups as u32))
            }
            _ => None,
        }
    }
}

/// The grid of a launch for a gate with one row per group. The rows of a group share a row of the gate.
struct Grid {
    /// Number of blocks that divide the rows of a group among them. Each block writes one row of partial
    /// sums.
    splits: u32,
    groups: u32,
    /// Blocks that share the columns.
    slabs: u32,
}

impl Grid {
    /// Divides the `rows` rows of each group among the blocks. Unless there are very many groups or columns,
    /// all blocks of the launch run at the same time. The grid is the same for the kernel with and without
    /// 16-byte accesses.
    fn of(device: &Device, rows: u64, groups: u32, cols: u32, dtype: Dtype) -> Self {
        let slabs = cols.div_ceil(TEAM * 16 / dtype.size() as u32).min(MAX_GRID_YZ);
        let per_sm = launch_override(device).parallelism.unwrap_or(BLOCKS_PER_SM);
        let blocks = u64::from(multiprocessors(device) * per_sm);
        let most = blocks / (u64::from(groups) * u64::from(slabs)).max(1);
        Self { splits: rows.div_ceil(u64::from(TEAMS)).min(most.max(1)) as u32, groups, slabs }
    }
}

/// Computes the gradients of [`gated_residual`](crate::gated_residual) with respect to `y` and the gate. The
/// gradient of `y` is `dy = gate * dsum`. The gradient `dgate` of the gate is the sum of `dsum * y` over the
/// elements that share a value of the gate. `dgate` is computed if `gradient` has an output for it. The
/// gradient of `x` is `dsum`.
///
/// `dsum`, `y` and `dy` have the same shape and dtype. The gate has this dtype or is f32, and has one of
/// these shapes:
///
/// - `[columns]`, or `[groups, columns]` if the rows form `groups` groups of consecutive rows that share a
///   row of the gate;
/// - the shape of `y`;
/// - the shape of `y`, but with one column.
///
/// The gradients are computed in f32 and rounded once. The bits of a row of `dy` do not depend on the other
/// rows. If rows share the gate, the order of the sum over rows depends on shape, dtype and architecture.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported. The same applies if
/// the workspace is too small, or if an output overlaps another argument. [`Error`] lists further errors,
/// such as those of the GPU driver.
pub fn gated_residual_backward(
    device: &Device,
    dsum: View,
    y: View,
    gate: View,
    dy: ViewMut,
    gradient: GateGradient,
    stream: Stream,
) -> Result<()> {
    let (dy, dgate) = (dy.as_view(), gradient.dgate.as_ref().map(ViewMut::as_view));
    let cols = columns(OP, "y", &y)?;
    let Some(form) = Form::of(y.shape(), gate.shape()) else {
        let expected = format!(
            "[{cols}], [groups, {cols}] with up to {MAX_GRID_YZ} groups that divide the rows of y, or the shape \
             of y, {:?}, with {cols} columns or one",
            y.shape()
        );
        return Err(Error::Shape { op: OP, arg: "gate", got: gate.shape().to_vec(), expected });
    };
    let tensors = Tensors { device, stream, dsum: &dsum, y: &y, gate: &gate, dy, dgate };
    let kind = tensors.check(&gradient)?;
    match form {
        Form::Groups(groups) => tensors.per_group(groups, kind, gradient.workspace.as_ref()),
        Form::Tokens => tensors.per_token(kind),
        Form::Rows => tensors.per_row(kind),
    }
}

/// The arguments of a call.
struct Tensors<'v, 'a> {
    device: &'v Device,
    stream: Stream<'v>,
    dsum: &'v View<'a>,
    y: &'v View<'a>,
    gate: &'v View<'a>,
    dy: &'v View<'a>,
    dgate: Option<&'v View<'a>>,
}

impl<'v, 'a> Tensors<'v, 'a> {
    /// Checks dtypes, devices and the shape of `dgate`, and that no output overlaps another tensor. Returns
    /// the kind of the gate: whether it has the dtype of `y` or is f32.
    fn check(&self, gradient: &'v GateGradient<'a>) -> Result<OperandKind> {
        let (y, gate, device) = (self.y, self.gate, self.device);
        for (arg, view) in [("dsum", self.dsum), ("dy", self.dy)] {
            view.expect_dtype(OP, arg, y.dtype())?;
        }
        let kind = self.kind("gate", gate)?;
        gate.expect_on(OP, "gate", device)?;
        let mut taken = vec![Some(("dsum", self.dsum)), Some(("y", y)), Some(("gate", gate))];
        let dgate = self.dgate.map(|dgate| ("dgate", dgate));
        if let Some((arg, dgate)) = dgate {
            dgate.expect_on(OP, arg, device)?;
            self.kind(arg, dgate)?;
            dgate.expect_shape(OP, arg, gate.shape())?;
            expect_contiguous(arg, dgate)?;
        }
        let workspace = gradient.workspace.as_ref().map(|workspace| ("workspace", workspace.as_view()));
        for out in [Some(("dy", self.dy)), dgate, workspace].into_iter().flatten() {
            expect_disjoint(OP, out, &taken)?;
            taken.push(Some(out));
        }
        Ok(kind)
    }

    fn arg(&self, [dsum, y, dy]: [Rows; 3], rows: Rows, kind: OperandKind) -> GateGradients {
        GateGradients { dsum, y, dy, gate: OperandArg { rows, kind } }
    }

    /// Returns the tensors, with their names, from which the row layout is computed. If there is no `dgate`,
    /// the caller passes `dy` in its place.
    fn views(&self, gate: &'v View<'a>, dgate: &'v View<'a>) -> [Operand<'v, 'a>; 5] {
        [("y", self.y), ("dsum", self.dsum), ("dy", self.dy), ("gate", gate), ("dgate", dgate)]
    }

    /// Returns the kind of a gate or of its gradient: whether it has the dtype of `y` or is f32. Returns an
    /// error for all other dtypes.
    fn kind(&self, arg: &'static str, view: &View) -> Result<OperandKind> {
        match view.dtype() {
            dtype if dtype == self.y.dtype() => Ok(OperandKind::SAME),
            Dtype::F32 => Ok(OperandKind::F32),
            got => Err(Error::Dtype { op: OP, arg, got, expected: self.y.dtype().or_f32("y") }),
        }
    }

    /// Returns `dgate` as a kernel argument. `rows` are its rows.
    fn dgate_arg(&self, rows: Rows) -> Result<OperandArg> {
        let Some(dgate) = self.dgate else { return Ok(OperandArg::ABSENT) };
        Ok(OperandArg { rows, kind: self.kind("dgate", dgate)? })
    }

    fn per_token(&self, kind: OperandKind) -> Result<()> {
        let layout =
            RowLayout::of_mixed(OP, self.device, self.views(self.gate, self.dgate.unwrap_or(self.dy)))?;
        let [y, dsum, dy, gate, dgate] = layout.operands;
        let (operands, dgate) = (self.arg([dsum, y, dy], gate, kind), self.dgate_arg(dgate)?);
        let launch = Elementwise::of_rows(OP, layout)?;
        launch.launch(self.device, PER_TOKEN, THREADS, self.stream, |kernel, site, extent| {
            // SAFETY: the kernel accesses only the tensors that it receives. `check` and the layout have
            // checked the shape, dtype, strides and device of each of these tensors.
            unsafe { kernel(site, operands, dgate, extent) }
        })
    }

    fn per_row(&self, kind: OperandKind) -> Result<()> {
        let gate = self.gate.broadcast_to(OP, "gate", self.y.shape())?;
        let dgate = self.dgate.map(|dgate| dgate.broadcast_to(OP, "dgate", self.y.shape())).transpose()?;
        let views = self.views(&gate, dgate.as_ref().unwrap_or(self.dy));
        let has_columns = [true, true, true, false, false];
        let layout = RowLayout::of_columns(OP, self.device, views, has_columns)?;
        let [y, dsum, dy, gate, dgate] = layout.operands;
        let (operands, dgate) = (self.arg([dsum, y, dy], gate, kind), self.dgate_arg(dgate)?);
        let p = GateParams { rows: layout.rows, inner: layout.inner, cols: layout.cols };
        let blocks = layout.rows.div_ceil(u64::from(ROWS_PER_BLOCK));
        if blocks == 0 {
            return Ok(());
        }
        if blocks > i32::MAX as u64 {
            return Err(Error::Value {
                op: OP,
                arg: "rows",
                got: layout.rows as f64,
                expected: "at most 2^33 - 4",
            });
        }
        let shape = Launch::of([blocks as u32, 1, 1], [TEAM, ROWS_PER_BLOCK, 1]);
        let site = LaunchSite::new(self.device, layout.dtype, shape, self.stream)?;
        // SAFETY: the kernel accesses only the tensors that it receives. `check` and the constructor of the
        // row layout have checked the shape, dtype, strides and device of each of these tensors.
        unsafe { PER_ROW[usize::from(layout.vector)](site, operands, dgate, p) }
    }

    fn per_group(&self, groups: u32, kind: OperandKind, workspace: Option<&ViewMut>) -> Result<()> {
        let [y, dsum, dy, ..] = self.views(self.gate, self.dy);
        let layout = RowLayout::of(OP, self.device, [y, dsum, dy])?;
        let (cols, strides) = (layout.cols, self.gate.strides());
        if strides[strides.len() - 1] != 1 && cols > 1 {
            return Err(self.gate.bad_strides(OP, "gate", "its last dimension must be contiguous"));
        }
        let inner_stride = if groups > 1 { strides[0] } else { 0 };
        let gate = Rows { base: self.gate.ptr().cast_mut().cast(), inner_stride, outer_stride: 0 };
        let grid = Grid::of(self.device, layout.rows / u64::from(groups), groups, cols, layout.dtype);
        let sums = self.workspace(&grid, cols, workspace)?;
        let aligned = gate.is_vector(cols, self.gate.dtype().size()) && (sums as usize).is_multiple_of(16);
        let [y, dsum, dy] = layout.operands;
        let operands = self.arg([dsum, y, dy], gate, kind);
        let p = GateParams { rows: layout.rows / u64::from(groups), inner: layout.inner, cols };
        if grid.splits > 0 {
            let shape = Launch::of([grid.splits, groups, grid.slabs], [TEAM, TEAMS, 1]);
            let site = LaunchSite::new(self.device, layout.dtype, shape, self.stream)?;
            // SAFETY: the kernel accesses only the tensors that it receives. `check`, `workspace` and the
            // layout have checked the shape, dtype, strides and device of each of these tensors.
            unsafe { PER_GROUP[usize::from(layout.vector && aligned)](site, operands, sums, p)? };
        }
        let Some(dgate) = self.dgate else { return Ok(()) };
        let single = u32::from(dgate.dtype() == Dtype::F32);
        let to = ColumnSums { from: sums, to: dgate.ptr().cast_mut().cast(), single };
        let p = ColumnSumsParams { splits: grid.splits, cols };
        let shape = Launch::of([cols.div_ceil(COLUMNS), groups, 1], [COLUMNS, STRIPES, 1]);
        let site = LaunchSite::new(self.device, layout.dtype, shape, self.stream)?;
        // SAFETY: `check` has checked `dgate`, and `workspace` the partial sums.
        unsafe { launch::gated_residual_backward_sums_any(site, to, p) }
    }

    /// Checks the workspace for partial sums, and returns its address. Returns null if the caller does not
    /// want `dgate`, or if there are no rows.
    fn workspace(&self, grid: &Grid, cols: u32, workspace: Option<&ViewMut>) -> Result<*mut u8> {
        let needed = u64::from(grid.groups) * u64::from(grid.splits) * u64::from(cols);
        if self.dgate.is_none() || needed == 0 {
            return Ok(std::ptr::null_mut());
        }
        let expected = || format!("[{needed}] or more, as gated_residual_backward_workspace says");
        let arg = "workspace";
        let Some(workspace) = workspace.map(ViewMut::as_view) else {
            return Err(Error::Shape { op: OP, arg, got: vec![], expected: expected() });
        };
        workspace.expect_on(OP, arg, self.device)?;
        workspace.expect_dtype(OP, arg, Dtype::F32)?;
        let shape = workspace.shape();
        if shape.len() != 1 || (shape[0] as u64) < needed {
            return Err(Error::Shape { op: OP, arg, got: shape.to_vec(), expected: expected() });
        }
        expect_contiguous(arg, workspace)?;
        Ok(workspace.ptr().cast_mut().cast())
    }
}

fn expect_contiguous(arg: &'static str, view: &View) -> Result<()> {
    if view.is_contiguous() { Ok(()) } else { Err(view.bad_strides(OP, arg, "it must be contiguous")) }
}

/// Returns how many f32 elements of workspace the gradient of a gate needs. `gate` is the shape of the gate.
/// The result is 0 if the op does not support this shape, or needs no workspace for this shape.
pub fn gated_residual_backward_workspace(device: &Device, y: &View, gate: &[i64]) -> usize {
    let (Some(Form::Groups(groups)), Some(&cols)) = (Form::of(y.shape(), gate), y.shape().last()) else {
        return 0;
    };
    let rows: i64 = y.shape()[..y.shape().len() - 1].iter().product();
    let splits = Grid::of(device, rows as u64 / u64::from(groups), groups, cols as u32, y.dtype()).splits;
    u64::from(splits) as usize * groups as usize * cols as usize
}
