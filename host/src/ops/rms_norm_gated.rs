//! Gated RMSNorm: `y = rms_norm(x) * f(gate)` or `y = rms_norm(x * f(gate))` over the last dimension.
use cuda_std::l2::L2Policy;
use cuda_std::row::Rows;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::ops::rms_norm_gated::GateArg;
use kernels_gpu::rms::row::RmsParams;
use kernels_gpu::rms::weight::Weight;

use super::rms_norm::{RmsNorm, Rounding, check, kernel_params};
use crate::arguments::{arguments, choices};
use crate::launch::{RowKernels, in_registers, rung};
use crate::library::LaunchSite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::ladder::{Ladder, RegisterRungs, SHORT_ROWS};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};
use kernels_gpu::ops::rms_norm_gated::launch;

/// The function that is applied to the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateFunction {
    /// SiLU, `g / (1 + e^-g)`. These models use it: Qwen3-Next and Qwen3.5, OLMo hybrid, Mamba2.
    #[default]
    Silu,
    /// Sigmoid, `1 / (1 + e^-g)`. These models use it: Kimi Linear, Bailing hybrid, GLM-5 Next.
    Sigmoid,
}

choices! { GateFunction: Sigmoid, Silu; }

/// The order of norm and gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateOrder {
    /// The result of the norm is multiplied by `f(gate)`. Models with linear attention use this order.
    #[default]
    NormFirst,
    /// The input of the norm is multiplied by `f(gate)`. The models Mamba2, Bamba, Zamba2 and Nemotron-H use
    /// this order.
    GateFirst,
}

choices! { GateOrder: GateFirst, NormFirst; }

arguments! {
    /// The parameters of a gated RMSNorm.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct RmsNormGated {
        /// The parameters of the norm.
        pub norm: RmsNorm,
        /// The function that is applied to the gate.
        pub function: GateFunction,
        /// The order of norm and gate.
        pub order: GateOrder,
    }
}

const OP: &str = "rms_norm_gated";

/// Launch configurations by row length. A block has at most 768 threads. With more threads per block, too few
/// registers per thread would be left to compute the gate function `f`.
const LADDER: Ladder = Ladder {
    short: SHORT_ROWS,
    in_registers: RegisterRungs { sm75: &[], sm80: &[rung(3_072, 4, 768, 768)], sm90: &[] },
    blocks_up_to: u32::MAX,
    reread: 256,
};
/// A function that launches a kernel of this op.
type RmsNormGatedKernel = unsafe fn(LaunchSite, Rows, GateArg, Weight, Rows, RmsParams) -> Result<()>;
const KERNELS: RowKernels<RmsNormGatedKernel> = RowKernels {
    any: launch::rms_norm_gated_any,
    in_registers: &[
        in_registers(2, launch::rms_norm_gated_block2),
        in_registers(4, launch::rms_norm_gated_block4),
    ],
};

/// Computes `y = rms_norm(x) * f(gate)`, or `y = rms_norm(x * f(gate))`, over the last dimension. The norm
/// takes the same parameters as [`rms_norm`](crate::rms_norm).
///
/// `f(gate)` is computed in f32 and not rounded to the dtype of `x`. With [`GateOrder::GateFirst`],
/// `x * f(gate)` is not rounded either. With [`Rounding::BeforeWeight`] and a weight in the dtype of `x`,
/// three values are rounded: the normalized value, its product with the weight, and `y`.
///
/// `x`, `gate` and `y` have the same shape and dtype. `weight` has the shape `[columns]`, in this dtype or in
/// f32. The bits of a result row depend on the row length, and on whether all operands and their strides are
/// aligned to 16 bytes. The bits of a result row do not depend on the other rows.
///
/// # Errors
/// Returns the errors of [`rms_norm`](crate::rms_norm).
pub fn rms_norm_gated(
    device: &Device,
    x: View,
    gate: View,
    weight: Option<View>,
    y: ViewMut,
    params: RmsNormGated,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let mut layout = RowLayout::of(OP, device, [("x", &x), ("gate", &gate), ("out", y)])?;
    let weight_arg = check(OP, device, &x, weight.as_ref(), params.norm, &mut layout)?;
    let inputs = [Some(("x", &x)), Some(("gate", &gate)), weight.as_ref().map(|weight| ("weight", weight))];
    expect_disjoint(OP, ("out", y), &inputs)?;
    let rung = LADDER.pick(OP, device, &KERNELS, &layout)?;
    let (p, [x, gate, y]) = (kernel_params(&layout, params.norm, L2Policy::PLAIN), layout.operands);
    let before_weight = params.norm.rounding == Rounding::BeforeWeight;
    let gate = GateArg {
        rows: gate,
        first: u32::from(params.order == GateOrder::GateFirst),
        sigmoid: u32::from(params.function == GateFunction::Sigmoid),
        // A product with an f32 weight stays in f32.
        round: u32::from(before_weight && weight_arg.kind != OperandKind::F32),
    };
    let kernel = rung.kernel(&KERNELS);
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe { kernel(site, x, gate, weight_arg, y, p) }
    })
}
