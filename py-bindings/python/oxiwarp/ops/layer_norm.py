"""LayerNorm over the last dimension: `torch.ops.oxiwarp.layer_norm` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_norm
from ._function import Function, apply
from ._mixed import widened
from ._once_differentiable import once
from ._register import OPTIONAL, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role
from .layer_norm_backward import op as op_backward


def _fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    check_norm("layer_norm", x, weight, bias, eps, mixed=True)
    return x.new_empty(x.shape)


op = define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.ANY_VECTOR,
    bias=Role.ANY_VECTOR,
)


class _LayerNorm(Function):
    """Autograd function that saves `x`, the weight and the bias. The backward recomputes the norm from these
    tensors.
    """

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
    """Compute LayerNorm over the last dimension: `(x - mean) / sqrt(variance + eps) * weight + bias`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. If the last stride is not 1, a contiguous copy is made first. Otherwise, `Tensor.view` must be able
            to merge all dimensions before the last into at most two. This is the case for slices and chunks of a
            contiguous tensor.
        weight (Tensor | None): float32, float16 or bfloat16, contiguous, shape `[N]`.
        bias (Tensor | None): float32, float16 or bfloat16, contiguous, shape `[N]`.
        eps (float): added to the variance; finite, 0 or more.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        TypeError: `x`, `weight` or `bias` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Mean and biased variance are computed in float32 by Welford's method, in the same order of operations
            as in torch's CUDA kernel. The result is rounded once. On a GPU, if N is divisible by 4, the result is
            bitwise equal to the result of `torch.nn.functional.layer_norm` in the same dtype. With a 16-bit `x` and
            float32 parameters, the function computes the same as diffusers' `FP32LayerNorm`. A row of the result
            depends, in every bit, only on the same row of `x` and on the parameters.
        Gradients: The gradients are computed in float32 from `x` and rounded once. The gradients of `weight`
            and `bias` are sums over all rows. These sums are deterministic. A second derivative and
            forward-mode AD raise RuntimeError.
        Special values: Like torch, the kernels have one algorithm for N divisible by 4, and another one for other N.
            If all elements of a row are equal, the result of this row is the bias. With the first algorithm, the
            rounding of the mean can change this result. If the variance of a row overflows float32, the first algorithm
            returns NaN for this row, and the second one returns the bias.

    Source:
        `torch.nn.functional.layer_norm`; Ba, Kiros and Hinton, "Layer Normalization" (arXiv:1607.06450).

    Example:
        >>> oxiwarp.layer_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])
    """
    if not (isinstance(x, Tensor) and isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)):
        refuse_types("layer_norm", {"x": x}, {"weight": weight, "bias": bias})
    try:
        if needs_grad(x, weight, bias):
            refuse_forward_mode("layer_norm")
            return apply(_LayerNorm, x, widened(x, weight), widened(x, bias), eps)
        return op(x, weight, bias, eps)
    except RuntimeError as error:
        explain(error, "layer_norm", 1, x, weight=weight, bias=bias)
        raise


__all__ = ["layer_norm"]
