//! `y = norm(x) * (1 + scale) + shift`: the modulated norm of a diffusion transformer; and two of one norm.
use kernels_gpu::norm::affine::Modulated;
use kernels_gpu::norm::params::OperandForm;

use crate::arguments::arguments;
use crate::device::launch::args;
use crate::operands::modulation::{Names, SCALE, SHIFT, Target, any_single, modulated_form};
use crate::operands::rows::{RowLayout, expect_disjoint};
use crate::plan::vec4_norm::{Access, Kernels, Norm, NormLaunch, QuadLaunch, TileKernel};
use crate::{Affine, Device, Dtype, Result, ScaleShift, Stream, View, ViewMut};

arguments! {
    /// The parameters of a modulated norm.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct AdaNorm {
        /// Which norm.
        pub norm: Norm,
        /// Added to the variance or the mean of squares; 0 or more.
        pub eps: f32,
        /// Round after every step, as a chain of operators in the dtype of `x` does, where every operand has that dtype; not
        /// once at the end.
        pub exact: bool,
    }
}

impl Default for AdaNorm {
    fn default() -> Self {
        Self { norm: Norm::Layer, eps: 1e-6, exact: true }
    }
}

const OP: &str = "ada_norm";
const PAIR: &str = "ada_norm_pair";
const LAYER: Kernels = Kernels {
    special: &[
        TileKernel {
            name: "ada_norm_layer_held12_same",
            access: Access::WarpRegisters(12),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            name: "ada_norm_layer_held12_single",
            access: Access::WarpRegisters(12),
            form: Some(OperandForm::SINGLE),
        },
        TileKernel {
            name: "ada_norm_layer_block6_same",
            access: Access::BlockRegisters(6),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            name: "ada_norm_layer_block6_affine",
            access: Access::BlockRegisters(6),
            form: Some(OperandForm::AFFINE),
        },
        TileKernel {
            name: "ada_norm_layer_block10_single",
            access: Access::BlockRegisters(10),
            form: Some(OperandForm::SINGLE),
        },
    ],
    ..Kernels::of(["ada_norm_layer", "ada_norm_layer_whole"])
};
/// The same for rows in f32: there is no kernel that holds these and reads weight and bias, and none with operands of another type.
const LAYER_F32: Kernels = Kernels {
    special: &[
        TileKernel {
            name: "ada_norm_layer_held12_same",
            access: Access::WarpRegisters(12),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            name: "ada_norm_layer_block6_same",
            access: Access::BlockRegisters(6),
            form: Some(OperandForm::SAME),
        },
    ],
    ..LAYER
};
const RMS: Kernels = Kernels {
    special: &[
        TileKernel {
            name: "ada_norm_rms_team4_same",
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::SAME),
        },
        TileKernel {
            name: "ada_norm_rms_team4_tabled",
            access: Access::BlockRegistersStaged(4),
            form: Some(OperandForm::TABLED),
        },
    ],
    ..Kernels::of(["ada_norm_rms", "ada_norm_rms_whole"])
};
const SCALE2: Names = ["scale2", "scale2_table"];
const SHIFT2: Names = ["shift2", "shift2_table"];

/// `y = norm(x) * weight + bias, * (1 + scale) + shift`, over the last dimension.
///
/// `x` and `y` have one shape and dtype, any strides whose last is 1; scale and shift broadcast against them. All operands
/// together must have rows that two strides reach. LayerNorm gives torch's bits for columns divisible by 4; RMSNorm those
/// of `x * rsqrt(x.float().pow(2).mean(-1) + eps)` for columns divisible by 4 and below 8192. A row's bits do not depend on the
/// other rows.
///
/// # Errors
/// As [`layer_norm`](crate::layer_norm), for every operand.
pub fn ada_norm(
    device: &Device,
    x: View,
    by: ScaleShift,
    affine: Affine,
    y: ViewMut,
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    let (y, target) = (y.as_view(), Target { op: OP, device, x: &x });
    let (scale, shift) = target.both_over_rows([SCALE, SHIFT], &by)?;
    y.expect_dtype(OP, "out", x.dtype())?;
    let views = [("x", &x), ("out", y), (SCALE[0], &scale), (SHIFT[0], &shift)];
    let mut layout = RowLayout::of_mixed(OP, device, views)?;
    let [x_rows, y_rows, scale_rows, shift_rows] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.quads)?;
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, [scale_rows, shift_rows], &mut layout.quads)?;
    expect_disjoint(OP, ("out", y), &[Some(("x", &x))])?;
    expect_disjoint(OP, ("out", y), &affine.named())?;
    expect_disjoint(OP, ("out", y), &by.named([SCALE, SHIFT]))?;
    let round_each = params.exact && !any_single(&parameters, &[&by_arg]);
    let form = modulated_form(&parameters, &[&by_arg.scale, &by_arg.shift]);
    let norm = NormLaunch { eps: params.eps, form, round_each, waiting: 1 };
    let kernels = match params.norm {
        Norm::Layer if x.dtype() == Dtype::F32 => LAYER_F32,
        Norm::Layer => LAYER,
        Norm::Rms => RMS,
    };
    let launch = QuadLaunch::of(OP, device, &layout, norm, kernels)?;
    let (p, out) = (launch.params, Modulated { by: by_arg, y: y_rows });
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { launch.launch(OP, device, &layout, stream, args![x_rows, parameters, out, p]) }
}

/// [`ada_norm`] with a second modulation of the same norm: `y2 = norm(x) * (1 + scale2) + shift2`.
///
/// # Errors
/// As [`ada_norm`]; also when the outputs overlap.
pub fn ada_norm_pair(
    device: &Device,
    x: View,
    [by, by2]: [ScaleShift; 2],
    affine: Affine,
    [y, y2]: [ViewMut; 2],
    params: AdaNorm,
    stream: Stream,
) -> Result<()> {
    let (y, y2, target) = (y.as_view(), y2.as_view(), Target { op: PAIR, device, x: &x });
    let (scale, shift) = target.both_over_rows([SCALE, SHIFT], &by)?;
    let (scale2, shift2) = target.both_over_rows([SCALE2, SHIFT2], &by2)?;
    y.expect_dtype(PAIR, "out", x.dtype())?;
    y2.expect_dtype(PAIR, "out2", x.dtype())?;
    let views = [
        ("x", &x),
        ("out", y),
        ("out2", y2),
        (SCALE[0], &scale),
        (SHIFT[0], &shift),
        (SCALE2[0], &scale2),
        (SHIFT2[0], &shift2),
    ];
    let mut layout = RowLayout::of_mixed(PAIR, device, views)?;
    let [x_rows, y_rows, y2_rows, rows @ ..] = layout.operands;
    let parameters = target.affine(&affine, &mut layout.quads)?;
    let by_arg = target.scale_shift([SCALE, SHIFT], &by, [rows[0], rows[1]], &mut layout.quads)?;
    let by2_arg = target.scale_shift([SCALE2, SHIFT2], &by2, [rows[2], rows[3]], &mut layout.quads)?;
    for out in [("out", y), ("out2", y2)] {
        expect_disjoint(PAIR, out, &[Some(("x", &x))])?;
        expect_disjoint(PAIR, out, &affine.named())?;
        expect_disjoint(PAIR, out, &by.named([SCALE, SHIFT]))?;
        expect_disjoint(PAIR, out, &by2.named([SCALE2, SHIFT2]))?;
    }
    expect_disjoint(PAIR, ("out", y), &[Some(("out2", y2))])?;
    let round_each = params.exact && !any_single(&parameters, &[&by_arg, &by2_arg]);
    let modulations = [&by_arg.scale, &by_arg.shift, &by2_arg.scale, &by2_arg.shift];
    // Of two modulations only the simplest form has a kernel of its own.
    let form = match modulated_form(&parameters, &modulations) {
        OperandForm::SAME => OperandForm::SAME,
        _ => OperandForm::ANY,
    };
    let norm = NormLaunch { eps: params.eps, form, round_each, waiting: 1 };
    let names = match params.norm {
        Norm::Layer => ["ada_norm_pair_layer", "ada_norm_pair_layer_whole"],
        Norm::Rms => ["ada_norm_pair_rms", "ada_norm_pair_rms_whole"],
    };
    // With the driver's share 2432 columns took 40 us, with one of its own 47, and 1536 the same.
    let kernels = Kernels { carveout: None, ..Kernels::of(names) };
    let launch = QuadLaunch::of(PAIR, device, &layout, norm, kernels)?;
    let (p, outs) =
        (launch.params, [Modulated { by: by_arg, y: y_rows }, Modulated { by: by2_arg, y: y2_rows }]);
    let [out, out2] = outs;
    // SAFETY: the views were checked to be what the kernel's arguments mean.
    unsafe { launch.launch(PAIR, device, &layout, stream, args![x_rows, parameters, out, out2, p]) }
}
