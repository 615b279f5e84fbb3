"""Gated residual connection, `x + gate * y`: `torch.ops.oxiwarp.gated_residual` and its public function."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_modulation, is_exact
from ._function import Function, apply
from ._modulation_backward import Modulation, gated
from ._once_differentiable import once
from ._register import OPTIONAL, check_rows, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role

CLIP = 65504.0


def _check(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None) -> None:
    check_rows("gated_residual", x, None, y=y)
    check_modulation("gated_residual", "gate", gate, gate_table, x, per_row=True)


def _fake(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
    _check(x, y, gate, gate_table)
    return x.new_empty(x.shape)


op = define(
    "gated_residual(Tensor x, Tensor y, Tensor gate, Tensor? gate_table, bool exact, bool clip) -> Tensor",
    _fake,
    x=Role.ROWS,
    y=Role.ROWS,
    gate=Role.BROADCAST,
    gate_table=Role.VECTOR,
)


def unclipped(
    dtotal: Tensor, x: Tensor, y: Tensor, gate: Tensor | None, gate_table: Tensor | None, exact: bool
) -> Tensor:
    """Return the incoming gradient `dtotal`, with 0 for the elements that the forward pass clamped.

    To find these elements, the function recomputes the sum `x + gate * y` without the clamp.
    """
    total = x + y if gate is None else op(x, y, gate, gate_table, exact, False)
    return torch.where(total.abs() <= CLIP, dtotal, 0)


class _GatedResidual(Function):
    """Autograd function that saves `y` and the gate.

    If `clip` is True, it also saves `x`, because the backward recomputes the sum to find the clamped
    elements.
    """

    @staticmethod
    def forward(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
        return op(x, y, gate, gate_table, exact, clip)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, y, gate, gate_table, ctx.exact, ctx.clip = inputs
        ctx.save_for_backward(x if ctx.clip else None, y, gate, gate_table)

    @staticmethod
    @once
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        x, y, gate, gate_table = ctx.saved_tensors
        if ctx.clip:
            dtotal = unclipped(dtotal, x, y, gate, gate_table, ctx.exact)
        of_rest = gated(dtotal, y, Modulation(gate, gate_table), ctx.needs_input_grad[1:4])
        return dtotal if ctx.needs_input_grad[0] else None, *of_rest, None, None


def gated_residual(
    x: Tensor,
    y: Tensor,
    gate: Tensor,
    *,
    gate_table: Tensor | None = None,
    clip: bool = False,
    mode: str = "exact",
) -> Tensor:
    """Add a gated branch to a residual: `x + gate * y`.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]` with N at least 1, last stride 1, on the
            CPU or a CUDA device.
        y (Tensor): output of the branch (attention or MLP), with the shape, dtype and device of `x`.
        gate (Tensor): broadcasts to `x`, in the dtype of `x` or in float32. Its last dimension is N or 1. Examples with
            a last dimension of N are `[B, 1, N]`, `[B, S, N]`, `[N]` and slices. With a last dimension of 1, the gate
            may have one number per row (`[B, S, 1]`), or one number in total (`[1]`). For `x` of shape `[B, S, H, N]`,
            it may have one number per head (`[H, 1]`). The gate may be broadcast along the first dimensions, or along
            the last dimensions before N, but not along both. `Tensor.view` must be able to merge all dimensions except
            the last into at most two, and to merge the same dimensions of `x`, `y` and `gate`.
        gate_table (Tensor | None): vector of shape `[N]` that the kernel adds to `gate`. It must be None if
            the last dimension of `gate` is 1 and N is not 1.
        clip (bool): if True, clamp the sum to ±65504 (the maximum of float16), as Flux and Qwen-Image do in
            float16.
        mode (str): "exact" or "fast". The section "Exactness" describes both.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `y`, `gate` or `gate_table` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: If `gate` has the dtype of `x`, `mode="exact"` rounds the product and the sum, as torch's operators
            do. If the gate is float32 and `x` is not, as in Wan, `mode="exact"` rounds only the sum. `mode="fast"`
            always rounds only the sum. Both modes round `gate + gate_table` if both terms have the dtype of `x`.
        Gradients: All operands have gradients, including the table. The gradients are computed in float32 and rounded
            once. Without a `gate_table`, the gradient of `y` is bitwise equal to that of torch's operators. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        The gates of adaLN-Zero (arXiv:2212.09748).

    Example:
        >>> oxiwarp.gated_residual(torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([0.0, 1.0, 2.0]))
        tensor([[0., 1., 2.]])
    """
    name = "gated_residual"
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
    if not (tensors and isinstance(gate, Tensor) and isinstance(gate_table, OPTIONAL)):
        refuse_types(name, {"x": x, "y": y, "gate": gate}, {"gate_table": gate_table})
    exact = is_exact(name, mode)
    try:
        if needs_grad(x, y, gate, gate_table):
            refuse_forward_mode(name)
            return apply(_GatedResidual, x, y, gate, gate_table, exact, clip)
        return op(x, y, gate, gate_table, exact, clip)
    except RuntimeError as error:
        explain(error, name, 1, x, y=y, gate=gate, gate_table=gate_table)
        raise


__all__ = ["gated_residual"]
