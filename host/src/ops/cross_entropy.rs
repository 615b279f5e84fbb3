//! `loss = ln(sum(exp(x))) - x[target]` per row, over the last dimension.
use crate::launch::launch_override;
use kernels_gpu::ops::cross_entropy::{Losses, launch};
use kernels_gpu::softmax::softcap::Softcap;
use kernels_gpu::softmax::target::CrossEntropyParams;
use kernels_gpu::softmax::target::Targets;

use crate::arguments::arguments;
use crate::launch::{Rung, rung};
use crate::operands::numbers::finite;
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::{Operand, RowLayout};
use crate::plan::row_launch::launch_rows;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

arguments! {
    /// The parameters of a cross-entropy, and of its gradient.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct CrossEntropy {
        /// Rows with this target are ignored. Their loss and gradient are 0.
        pub ignore_index: i64,
        /// Amount of label smoothing, from 0 to 1, as torch defines it. The target distribution gives the
        /// target class only `1 - label_smoothing`, and divides `label_smoothing` evenly among all classes,
        /// including the target class.
        pub label_smoothing: f32,
        /// Weight of the term `lse^2` in the loss (`lse` is the log-sum-exp of the logits). The weight must
        /// be finite and at least 0.
        pub z_loss: f32,
        /// If not 0, each logit `x` is replaced by `softcap * tanh(x / softcap)`, in f32. The softcap must be
        /// finite and at least 0.
        pub softcap: f32,
    }
}

impl Default for CrossEntropy {
    /// The defaults of `torch.nn.functional.cross_entropy`.
    fn default() -> Self {
        Self { ignore_index: -100, label_smoothing: 0.0, z_loss: 0.0, softcap: 0.0 }
    }
}

const OP: &str = "cross_entropy";

/// Launch configurations by row length in packs (16-byte vectors). A thread loads four packs at a time. In
/// rows of up to 1024 packs, a thread reads at most 16 packs in total.
///
/// The more packs each thread reads, the smaller is the part of the time that the reduction across threads
/// takes. Several short rows share a block, so some threads load one row while others reduce another row.
/// Rows of more than 16 packs have at least 8 threads, because 8 threads together read whole cache lines of
/// 128 bytes. The longest rows have 512 threads. If there are few rows, 512 threads have more bytes in flight
/// than a smaller number of threads (benches/results/decisions/cross_entropy_threads.csv).
const LADDER: &[Rung] = &[
    rung(4, 0, 1, 128),
    rung(8, 0, 2, 128),
    rung(16, 0, 4, 128),
    rung(128, 0, 8, 64),
    rung(256, 0, 16, 64),
    rung(512, 0, 32, 64),
    rung(1_024, 0, 64, 64),
    rung(4_096, 0, 128, 128),
    rung(8_192, 0, 256, 256),
    rung(20_480, 0, 320, 320),
    rung(u32::MAX, 0, 512, 512),
];

/// Returns the launch configuration for the rows of `layout`. If the device has a launch override (a
/// configuration set by the caller) that is valid for this kernel, returns the override. Otherwise returns
/// the first entry of `LADDER` whose maximum row length is large enough.
pub(super) fn pick<const N: usize>(device: &Device, layout: &RowLayout<N>) -> Rung {
    if let Some(rung) =
        launch_override(device).rung.filter(|rung| rung.packs_per_thread == 0 && rung.is_block())
    {
        return rung;
    }
    let last = LADDER[LADDER.len() - 1];
    LADDER.iter().find(|rung| layout.packs() <= u64::from(rung.max_packs)).copied().unwrap_or(last)
}

/// Computes `lse = ln(sum(exp(x)))` and `loss = lse - x[target]` over the last dimension of the logits `x`,
/// in f32.
///
/// `loss` is the result of `torch.nn.functional.cross_entropy` with reduction="none". The fields of
/// [`CrossEntropy`] can add label smoothing, a softcap of the logits (`cap * tanh(x / cap)`), or a term
/// `z_loss * lse^2`.
///
/// `x` has the shape `[..., classes]` and the dtype f32, f16 or bf16. `x` must be viewable as
/// `[n, m, classes]` without a copy. `target`, `loss` and `lse` have the shape `[...]` and are contiguous.
/// `target` is i64 or i32. `loss` and `lse` are f32.
///
/// `weight` has one weight per class, in the dtype of `x` or in f32. The loss of a row is multiplied by the
/// weight of its target. Label smoothing multiplies the term of each class by the weight of this class, as in
/// torch.
///
/// If a target is neither a class nor `ignore_index`, its loss is NaN. The call returns no error, because the
/// host does not read the targets. The bits of a result row do not depend on the other rows.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported. The same applies if a
/// parameter is outside its range, or if an output overlaps another argument. [`Error`] lists further errors,
/// such as those of the GPU driver.
pub fn cross_entropy(
    device: &Device,
    x: View,
    target: View,
    weight: Option<View>,
    loss: ViewMut,
    lse: ViewMut,
    params: CrossEntropy,
    stream: Stream,
) -> Result<()> {
    let (loss, lse) = (loss.as_view(), lse.as_view());
    let mut layout = RowLayout::of(OP, device, [("logits", &x)])?;
    let weights = layout.column_weight(OP, device, ("logits", &x), weight.as_ref())?;
    let (targets, p) = check(OP, device, &x, &target, params, &layout)?;
    for result in [("loss", loss), ("lse", lse)] {
        expect_row_values(OP, device, &x, result)?;
        let weight = weight.as_ref().map(|weight| ("weight", weight));
        expect_disjoint(OP, result, &[Some(("logits", &x)), Some(("target", &target)), weight])?;
    }
    expect_disjoint(OP, ("loss", loss), &[Some(("lse", lse))])?;
    let rung = pick(device, &layout);
    let losses = Losses { loss: loss.ptr().cast_mut().cast(), lse: lse.ptr().cast_mut().cast() };
    let [x] = layout.operands;
    launch_rows(OP, device, rung, None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe {
            let softcap = Softcap::of(params.softcap);
            match (weight.is_some(), params.softcap != 0.0) {
                (false, false) => launch::cross_entropy_any(site, x, targets, losses, p),
                (false, true) => launch::cross_entropy_softcap_any(site, x, targets, losses, p, softcap),
                (true, false) => launch::cross_entropy_weight_any(site, x, targets, losses, p, weights),
                (true, true) => {
                    launch::cross_entropy_weight_softcap_any(site, x, targets, losses, p, softcap, weights)
                }
            }
        }
    })
}

/// Checks the targets and the parameters of a cross-entropy with the logits `x`. Returns the targets and the
/// parameters as kernel arguments.
pub(super) fn check<const N: usize>(
    op: &'static str,
    device: &Device,
    x: &View,
    target: &View,
    params: CrossEntropy,
    layout: &RowLayout<N>,
) -> Result<(Targets, CrossEntropyParams)> {
    let CrossEntropy { ignore_index, label_smoothing, z_loss, softcap } = params;
    if !(0.0..=1.0).contains(&label_smoothing) {
        let got = label_smoothing.into();
        return Err(Error::Value { op, arg: "label_smoothing", got, expected: "0 to 1" });
    }
    finite(op, "z_loss", z_loss, 0.0)?;
    finite(op, "softcap", softcap, 0.0)?;
    if !Dtype::INDICES.contains(&target.dtype()) {
        return Err(Error::Dtype { op, arg: "target", got: target.dtype(), expected: "i64 or i32".into() });
    }
    expect_contiguous(op, device, x, ("target", target))?;
    let targets = Targets { base: target.ptr().cast(), ignore_index, bytes: target.dtype().size() as u32 };
    let p = CrossEntropyParams {
        rows: layout.rows,
        inner: layout.inner,
        cols: layout.cols,
        vector: u32::from(layout.vector),
        label_smoothing,
        z_loss,
    };
    Ok((targets, p))
}

/// Checks that `view` is contiguous and has one f32 element per row of `x`.
pub(super) fn expect_row_values(
    op: &'static str,
    device: &Device,
    x: &View,
    (arg, view): Operand,
) -> Result<()> {
    view.expect_dtype(op, arg, Dtype::F32)?;
    expect_contiguous(op, device, x, (arg, view))
}

/// Checks that `view` is contiguous and has one element per row of `x`.
fn expect_contiguous(op: &'static str, device: &Device, x: &View, (arg, view): Operand) -> Result<()> {
    view.expect_on(op, arg, device)?;
    view.expect_shape(op, arg, &x.shape()[..x.shape().len() - 1])?;
    let mut next = 1;
    for (&size, &stride) in view.shape().iter().zip(view.strides()).rev() {
        if size > 1 && stride != next {
            return Err(view.bad_strides(op, arg, "it must be contiguous"));
        }
        next *= size.max(1);
    }
    Ok(())
}
