"""Softmax over the last dimension and its gradient: two operators and their public function."""

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
    """Keeps its result alone: the gradient is made of that and of what comes back for it."""

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
    """Softmax over the last dimension, as `torch.softmax(x, -1)`: `exp(x - max) / sum(exp(x - max))`.

    Computed in float32 and rounded once, to `x`'s dtype.

    Args:
        x: float32, float16 or bfloat16, of shape `[..., N]` with N at least 1 (tested to 262,144), on the CPU or a CUDA
            device. The last dimension must have stride 1; the leading ones may be strided as far as two strides
            describe them (slices and chunks of a contiguous tensor). No rows is fine.
        log: its logarithm instead, as `torch.log_softmax(x, -1)`: `x - max - ln(sum(exp(x - max)))`.

    Returns:
        A contiguous tensor of `x`'s shape and dtype. A row of -inf alone, or with a NaN or +inf in it, is NaN, as in
        torch; float32 results below 2^-126 are 0.

    Has a gradient: `y * (dy - sum(dy * y))`, of the logarithm `dy - exp(y) * sum(dy)`; once, not twice. It is computed
    from the rounded result `y`, as torch's is, so a large sum of `dy` shows this rounding in 16 bits. A CUDA tensor
    runs on torch's current stream and can be captured in a CUDA graph; a CPU tensor runs the same kernel on the CPU
    executor, which is meant for tests: it is slow. A row's result does not depend on how many rows there are.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75.
        torch.OutOfMemoryError: where the output does not fit.
        TypeError: for an `x` that is no tensor.

    Source: online maximum and sum, Milakov and Gimelshein, "Online normalizer calculation for softmax"
    (arXiv:1805.02867).
    """
    if not isinstance(x, Tensor):
        refuse_types("softmax", {"x": x}, {})
    try:
        return apply(_Softmax, x, log) if needs_grad(x) else op(x, log)
    except RuntimeError as error:
        explain(error, "softmax", 1, x)
        raise


__all__ = ["softmax"]
