//! `sum = x + gate * y`.
use kernels_gpu::elementwise::partition::Extent;
use kernels_gpu::norm::gated_residual::GatedResidualArg;
use kernels_gpu::norm::mixed::Mixed;
use kernels_gpu::norm::operand::{Modulation as ModulationArg, Operand};
use kernels_gpu::norm::params::NormParams;
use kernels_gpu::ops::gated_residual::THREADS;
use kernels_gpu::ops::gated_residual::launch;

use crate::arguments::arguments;
use crate::library::LaunchSite;
use crate::operands::mixed::{expect_float, needs_mixed};
use crate::operands::modulation::{GATE, Target, is_other};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::elementwise::Elementwise;
use crate::plan::vec4_norm::{NormKernels, NormLaunch, Vec4Launch};
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "gated_residual";
/// A function that launches a kernel of this op.
type GatedResidualKernel = unsafe fn(LaunchSite, GatedResidualArg, Extent) -> Result<()>;
/// Two kernels: one for any layout, and one for rows that can be read in 16-byte vectors.
const KERNELS: [GatedResidualKernel; 2] = [launch::gated_residual_any, launch::gated_residual_block1];
/// The kernels for a gate with one column.
const PER_ROW: [GatedResidualKernel; 2] =
    [launch::gated_residual_per_row_any, launch::gated_residual_per_row_block1];
/// A function that launches a kernel with `mixed` in its name.
type GatedResidualMixedKernel = unsafe fn(LaunchSite, GatedResidualArg, Mixed, NormParams) -> Result<()>;
/// The kernel for operands of any dtypes, or with a gate that is chosen by an index.
const MIXED: NormKernels<GatedResidualMixedKernel> = NormKernels::one(launch::gated_residual_mixed_any);

arguments! {
    /// The parameters of a gated residual.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GatedResidual {
        /// Whether to round `gate * y` to the dtype of `x` before the addition, as torch's separate operators
        /// do. If `y`, the gate and its table (an additional vector that is added to the gate) differ in
        /// dtype, this field has no effect, and only the sum is rounded.
        pub exact: bool,
        /// Whether to clamp the sum to ±65504, the range of f16. diffusers clamps this sum in the models Flux
        /// and Qwen-Image if they run in f16.
        pub clip: bool,
    }
}

impl Default for GatedResidual {
    fn default() -> Self {
        Self { exact: true, clip: false }
    }
}

impl GatedResidual {
    /// Returns the argument of the kernel: the tensors and the flags. For a call without a gate, `gate` is
    /// marked as absent.
    pub(super) fn arg(self, [x, y, sum]: [cuda_std::row::Rows; 3], gate: ModulationArg) -> GatedResidualArg {
        let other = is_other(gate.value.kind) || is_other(gate.table.kind);
        let round_each = u32::from(self.exact && !other);
        GatedResidualArg { x, y, gate, sum, round_each, clip: u32::from(self.clip) }
    }
}

/// Computes `sum = x + gate * y` in f32 and rounds the sum to the dtype of `x`.
///
/// `x`, `y` and `sum` have the same shape, and `sum` has the dtype of `x`. `y` and the gate have any float
/// dtype. The gate broadcasts to this shape. Or an `index` chooses its rows, as in
/// [`ada_norm`](crate::ada_norm). The last dimension of the gate may have the size 1: one number per row
/// (`[B, S, 1]`), one number per head (`[H, 1]`), or a single number (`[1]`). Such a gate must not have a
/// table (an additional vector that is added to the gate). After the broadcast, `x`, `y`, `sum` and the gate
/// must be viewable as `[n, m, columns]` without a copy, with the same `n` and `m`. If there are no rows, the
/// call does nothing.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `sum` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn gated_residual(
    device: &Device,
    x: View,
    y: View,
    gate: Modulation,
    index: Option<View>,
    sum: ViewMut,
    params: GatedResidual,
    stream: Stream,
) -> Result<()> {
    let (sum, target) = (sum.as_view(), Target { op: OP, device, x: &x, mixed: true });
    let index_of = target.index(index, &gate.value)?;
    let placed = target.placed(GATE[0], Some(&gate), index_of)?;
    expect_float(OP, "y", &y)?;
    sum.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("y", &y), ("out", sum), (GATE[0], &placed.view)];
    let mut layout = RowLayout::of_columns(OP, device, views, [true, true, true, placed.has_columns])?;
    let [x_rows, y_rows, sum_rows, gate_rows] = layout.operands;
    let gate_arg = target.argument(GATE, Some(&gate), placed, gate_rows, &mut layout.vec4s)?;
    layout.vector &= target.table_is_vector(&gate);
    let index_named = index.as_ref().map(|index| ("index", index));
    expect_disjoint(OP, ("out", sum), &[Some(("x", &x)), Some(("y", &y)), index_named])?;
    expect_disjoint(OP, ("out", sum), &gate.named(GATE))?;
    let gated = params.arg([x_rows, y_rows, sum_rows], gate_arg);
    // The kernels in `PER_ROW` support a gate with one column, and expect its dtype only.
    let value = Operand { kind: gate_arg.value.kind.element(), ..gate_arg.value };
    if index.is_some() || y.dtype() != x.dtype() || needs_mixed([&value, &gate_arg.table]) {
        let operands = target.mixed(index_of, &y, &gate_arg, params.exact);
        let gated = GatedResidualArg { gate: target.mixed_modulation(gate_arg), ..gated };
        let launch = Vec4Launch::of(OP, device, &layout, NormLaunch::ELEMENTWISE, MIXED)?;
        let p = launch.params;
        return launch.launch(OP, device, &layout, stream, |kernel, site| {
            // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the
            // shape, dtype, strides and device of each of these tensors.
            unsafe { kernel(site, gated, operands, p) }
        });
    }
    let gated = GatedResidualArg { gate: ModulationArg { value, ..gate_arg }, ..gated };
    let launch = Elementwise::of_rows(OP, layout)?;
    let kernels = if placed.has_columns { KERNELS } else { PER_ROW };
    launch.launch(device, kernels, THREADS, stream, |kernel, site, extent| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, gated, extent) }
    })
}
