"""LayerNorm over the last dimension: `torch.ops.oxiwarp.layer_norm` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_norm
from ._function import Function, apply
from ._once_differentiable import once
from ._register import OPTIONAL, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role
from .layer_norm_backward import op as op_backward


def _fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    check_norm("layer_norm", x, weight, bias, eps)
    return x.new_empty(x.shape)


op = define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.VECTOR,
    bias=Role.VECTOR,
)


class _LayerNorm(Function):
    """Keeps x and the parameters: the gradients are made of them and of what comes back."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return op(x, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.eps = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        try:
            dx, dweight, dbias = op_backward(dy.contiguous(), x, weight, bias, None, ctx.eps, wants_weight, wants_bias)
        except RuntimeError as error:
            explain(error, "layer_norm_backward", 1, x)
            raise
        return dx if wants_x else None, dweight if wants_weight else None, dbias if wants_bias else None, None


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension, in one pass: `(x - mean) / sqrt(variance + eps) * weight + bias`.

    Mean and (biased) variance by Welford's method in float32, in the order of torch's CUDA kernel, and one rounding at
    the end: on a GPU, where N is divisible by 4, the bits are those of `torch.nn.functional.layer_norm` of the same
    dtype.

    Args:
        x: float32, float16 or bfloat16, of shape `[..., N]` with N at least 1, on the CPU or a CUDA device. The last
            dimension must have stride 1; the leading ones may be strided as far as two strides describe them.
        weight, bias: contiguous `[N]` in `x`'s dtype or float32, or None. In float32 beside a 16-bit `x` the result is
            that of diffusers' FP32LayerNorm.
        eps: added to the variance; finite, 0 or more.

    Returns:
        A contiguous tensor of `x`'s shape and dtype. A row's bits depend on that row and the parameters alone. A
        constant row gives the bias if N is not divisible by 4; if it is, rounding can give the mean an error, as in
        torch. If the variance overflows float32, a row gives NaN for N divisible by 4 and the bias otherwise, also as
        in torch.

    Gradients are computed in float32 from `x`, and rounded once; those of weight and bias, sums over rows, have the
    same bits each time. Once, not twice, and not in forward-mode AD.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75.
        TypeError: for an argument that is no tensor.
        torch.OutOfMemoryError: where the output does not fit.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (arXiv:1607.06450).
    """
    if not (isinstance(x, Tensor) and isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)):
        refuse_types("layer_norm", {"x": x}, {"weight": weight, "bias": bias})
    try:
        if needs_grad(x, weight, bias):
            refuse_forward_mode("layer_norm")
            return apply(_LayerNorm, x, weight, bias, eps)
        return op(x, weight, bias, eps)
    except RuntimeError as error:
        explain(error, "layer_norm", 1, x, weight=weight, bias=bias)
        raise


__all__ = ["layer_norm"]
