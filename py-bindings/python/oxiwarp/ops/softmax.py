"""Softmax over the last dimension and its gradient. The file defines two operators and the public function
`softmax`.
"""

from typing import Any

from torch import Tensor

from ._function import Function, apply
from ._once_differentiable import once
from ._register import check_rows, define, explain, needs_grad, refuse_types
from ._roles import Role


def _fake(x: Tensor, log: bool) -> Tensor:
    check_rows("softmax", x, None)
    return x.new_empty(x.shape)


def _fake_backward(y: Tensor, dy: Tensor, log: bool) -> Tensor:
    check_rows("softmax_backward", y, None, dy=dy)
    return y.new_empty(y.shape)


op = define("softmax(Tensor x, bool log) -> Tensor", _fake, x=Role.ROWS)
op_backward = define(
    "softmax_backward(Tensor y, Tensor dy, bool log) -> Tensor", _fake_backward, y=Role.ROWS, dy=Role.ROWS
)


class _Softmax(Function):
    """Autograd function of softmax. It saves only the result, because the backward needs no input."""

    @staticmethod
    def forward(x: Tensor, log: bool) -> Tensor:
        return op(x, log)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.log = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        try:
            return op_backward(y, dy.contiguous(), ctx.log), None
        except RuntimeError as error:
            explain(error, "softmax_backward", 1, y)
            raise


def softmax(x: Tensor, *, log: bool = False) -> Tensor:
    """Compute softmax over the last dimension: `exp(x - max(x)) / sum(exp(x - max(x)))`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1 (tested up to 262,144), on the CPU
            or a CUDA device. If the last stride is not 1, a contiguous copy is made first. Otherwise, `Tensor.view`
            must be able to merge all dimensions except the last into at most two, as in slices and chunks of a
            contiguous tensor. The number of rows may be 0.
        log (bool): if True, return the logarithm of softmax: `x - max(x) - ln(sum(exp(x - max(x))))`.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`. A row's result does not depend on the number of rows.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing.
        TypeError: `x` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The result is computed in float32 and rounded once, to the dtype of `x`. The last bits can
            differ from torch's result.
        Gradients: Let `dy` be the incoming gradient, and `y` the rounded result. The gradient is
            `y * (dy - sum(dy * y))`, or `dy - exp(y) * sum(dy)` with `log`. It is computed in float32, as in torch. In
            16-bit dtypes, `y` has a rounding error. With `log` and a large sum of `dy`, this error changes the gradient
            visibly. A second derivative and forward-mode AD raise RuntimeError.
        Special values: If a row contains NaN or +inf, or only -inf, its result is NaN, as in torch. Results
            that are below 2^-126 in float32 (before the rounding to the dtype of `x`) are replaced by 0.

    Source:
        `torch.softmax` and `torch.log_softmax`; Milakov and Gimelshein, "Online normalizer calculation for softmax"
        (arXiv:1805.02867).

    Example:
        >>> oxiwarp.softmax(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[0.0900, 0.2447, 0.6652]])
    """
    if not isinstance(x, Tensor):
        refuse_types("softmax", {"x": x}, {})
    try:
        return apply(_Softmax, x, log) if needs_grad(x) else op(x, log)
    except RuntimeError as error:
        explain(error, "softmax", 1, x)
        raise


__all__ = ["softmax"]
