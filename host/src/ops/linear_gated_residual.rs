//! A matrix product and a gated residual: `y = residual + gate * (x wᵀ + bias)`.
use kernels_gpu::elementwise::partition::Divisor;
use kernels_gpu::gemm::epilogue::gated_residual::GatedResidualParams;
use kernels_gpu::gemm::mma::params::{LinearParams, T64X64, T128X128};
use kernels_gpu::norm::operand::{Modulation as ModulationArg, Operand as OperandArg};
use kernels_gpu::ops::linear_gated_residual::launch;

use super::activation::Roundings;
use super::linear_gated_residual_hopper::linear_gated_residual_hopper;
use crate::launch::launch_override;
use crate::library::LaunchSite;
use crate::operands::matrix::Matrix;
use crate::operands::modulation::{GATE, Target};
use crate::operands::product::ProductViews;
use crate::operands::rows::RowLayout;
use crate::plan::product::{PortableKernels, expect_product_kernels};
use crate::{Device, Modulation, Result, Stream, View, ViewMut};

const OP: &str = "linear_gated_residual";

/// A function that launches a kernel.
type LinearGatedResidualKernel = unsafe fn(LaunchSite, LinearParams, GatedResidualParams) -> Result<()>;

const KERNELS: PortableKernels<LinearGatedResidualKernel> = PortableKernels {
    large: (launch::linear_gated_residual_128x128_smem, T128X128),
    small: (launch::linear_gated_residual_64x64_smem, T64X64),
    general: launch::linear_gated_residual_64x64_general_smem,
};

/// Computes `y = residual + gate * (x wᵀ + bias)`, or `y = residual + x wᵀ + bias` without a gate.
///
/// `residual` has the shape and dtype of `y`, and the distance between consecutive rows must be the same for
/// all its rows. The gate broadcasts to this shape, in this dtype or in f32, as in
/// [`gated_residual`](crate::gated_residual). The requirements for the other tensors are those of
/// [`linear`](crate::linear). With [`Roundings::Exact`], the result is bitwise equal to the result of
/// [`linear`](crate::linear) followed by [`gated_residual`](crate::gated_residual). With [`Roundings::Once`],
/// only the result is rounded.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn linear_gated_residual(
    device: &Device,
    x: View,
    weight: View,
    bias: Option<View>,
    residual: View,
    gate: Option<View>,
    y: ViewMut,
    roundings: Roundings,
    stream: Stream,
) -> Result<()> {
    let views = ProductViews { x: &x, weight: &weight, bias: bias.as_ref(), y: y.as_view() };
    let mut product = views.check(OP, device, false)?;
    residual.expect_on(OP, "residual", device)?;
    residual.expect_dtype(OP, "residual", product.y.dtype)?;
    residual.expect_shape(OP, "residual", views.y.shape())?;
    let matrix = Matrix::of(OP, "residual", &residual)?;
    views.expect_disjoint(OP, &[Some(("residual", &residual)), gate.as_ref().map(|gate| (GATE[0], gate))])?;
    if product.is_empty() {
        return Ok(());
    }
    expect_product_kernels(OP, device)?;
    let (e, pairs) = epilogue(device, &residual, &matrix, gate, roundings)?;
    product.reads_pairs = pairs;
    let mut skip = launch_override(device).skip;
    // TMA loads the residual in the Hopper kernels.
    if matrix.is_tma() && linear_gated_residual_hopper(device, &product, &matrix, e, &mut skip, stream)? {
        return Ok(());
    }
    KERNELS.launch(device, &product, skip, stream, |kernel, site, params| {
        // SAFETY: the kernel accesses only the tensors that its parameters point to. This function has
        // checked the shape, dtype, strides and device of each of these tensors. The plan launches a kernel
        // only if it supports the alignment of the tensors.
        unsafe { kernel(site, params, e) }
    })
}

/// Checks the gate, and returns the kernel argument of the epilogue. Also returns whether kernels can read
/// two adjacent 16-bit elements with one access, in the residual and in the gate. `matrix` is the residual.
fn epilogue(
    device: &Device,
    residual: &View,
    matrix: &Matrix,
    gate: Option<View>,
    roundings: Roundings,
) -> Result<(GatedResidualParams, bool)> {
    let e = GatedResidualParams {
        residual: matrix.base.cast_const(),
        row_bytes: matrix.row_bytes,
        rows: matrix.rows,
        columns: matrix.columns,
        gate: OperandArg::ABSENT,
        group: Divisor::new(1),
        gate_step: 1,
        exact: u32::from(roundings == Roundings::Exact),
    };
    let pairs = (matrix.base as usize).is_multiple_of(4) && matrix.row_bytes.is_multiple_of(4);
    let Some(gate) = gate.map(Modulation::from) else { return Ok((e, pairs)) };
    let target = Target { op: OP, device, x: residual, mixed: false };
    let (over_rows, per_row) = target.over_rows_or_column(GATE[0], &gate)?;
    let views = [("residual", residual), (GATE[0], &over_rows)];
    let layout = RowLayout::of_columns(OP, device, views, [true, !per_row])?;
    let rows = layout.operands[1];
    let ModulationArg { value, .. } = target.modulation(GATE, &gate, rows, &mut true)?;
    let even =
        (rows.base as usize).is_multiple_of(4) && rows.inner_stride % 2 == 0 && rows.outer_stride % 2 == 0;
    let group = Divisor::new(if layout.inner == 0 { 1 << 31 } else { layout.inner });
    let e = GatedResidualParams { gate: value, gate_step: u32::from(!per_row), group, ..e };
    Ok((e, pairs && (even || per_row)))
}
