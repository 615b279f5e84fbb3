//! The gradient of a cross-entropy: `dx = (exp(x - lse) - onehot(target)) * dloss`.
use kernels_gpu::ops::cross_entropy_backward::{Gradients, launch};
use kernels_gpu::softmax::softcap::Softcap;

use super::cross_entropy::{CrossEntropy, check, expect_row_values, pick};
use crate::operands::overlap::expect_disjoint;
use crate::operands::rows::RowLayout;
use crate::plan::row_launch::launch_rows;
use crate::{Device, Result, Stream, View, ViewMut};

const OP: &str = "cross_entropy_backward";

/// Computes the gradient of [`cross_entropy`](crate::cross_entropy) with respect to its logits `x`: `dx =
/// (exp(x - lse) - onehot(target)) * dloss`. `dx` is computed in f32 and rounded once to the dtype of `x`.
///
/// `x`, `target`, `weight` and `params` are the arguments of the forward pass. `lse` is an output of the
/// forward pass. `dloss` is the incoming gradient of the loss, with the shape and dtype of `lse`. `dx` has
/// the shape and dtype of `x`. In `dx`, rows with an ignored target are zero, and rows with an invalid target
/// are NaN.
///
/// # Errors
/// Returns the errors of [`cross_entropy`](crate::cross_entropy).
pub fn cross_entropy_backward(
    device: &Device,
    x: View,
    target: View,
    weight: Option<View>,
    lse: View,
    dloss: View,
    dx: ViewMut,
    params: CrossEntropy,
    stream: Stream,
) -> Result<()> {
    let dx = dx.as_view();
    let mut layout = RowLayout::of(OP, device, [("logits", &x), ("dlogits", dx)])?;
    let weights = layout.column_weight(OP, device, ("logits", &x), weight.as_ref())?;
    let (targets, p) = check(OP, device, &x, &target, params, &layout)?;
    for kept in [("lse", &lse), ("dloss", &dloss)] {
        expect_row_values(OP, device, &x, kept)?;
    }
    let inputs = [("logits", &x), ("target", &target), ("lse", &lse), ("dloss", &dloss)].map(Some);
    expect_disjoint(OP, ("dlogits", dx), &inputs)?;
    expect_disjoint(OP, ("dlogits", dx), &[weight.as_ref().map(|weight| ("weight", weight))])?;
    let from = Gradients { lse: lse.ptr().cast(), dloss: dloss.ptr().cast() };
    let [x, dx] = layout.operands;
    launch_rows(OP, device, pick(device, &layout), None, &layout, stream, |site| {
        // SAFETY: the kernel accesses only the tensors that it receives. This function has checked the shape,
        // dtype, strides and device of each of these tensors.
        unsafe {
            let softcap = Softcap::of(params.softcap);
            match (weight.is_some(), params.softcap != 0.0) {
                (false, false) => launch::cross_entropy_backward_any(site, x, targets, from, dx, p),
                (false, true) => {
                    launch::cross_entropy_backward_softcap_any(site, x, targets, from, dx, p, softcap)
                }
                (true, false) => {
                    launch::cross_entropy_backward_weight_any(site, x, targets, from, dx, p, weights)
                }
                (true, true) => launch::cross_entropy_backward_weight_softcap_any(
                    site, x, targets, from, dx, p, softcap, weights,
                ),
            }
        }
    })
}
