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
    """Return the incoming gradient `dtotal`, but 0 at the elements that the forward clamped.

    To find these elements, the sum is recomputed without the clamp.
    """
    total = x + y if gate is None else op(x, y, gate, gate_table, exact, False)
    return torch.where(total.abs() <= CLIP, dtotal, 0)


class _GatedResidual(Function):
    """Autograd function that saves y and the gate. If `clip` is True, it also saves x, to find the clamped elements."""

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
        gate (Tensor): broadcasts to `x` and has its last dimension (`[B, 1, N]`, `[B, S, N]`, `[N]`, slices), in the
            dtype of `x` or in float32. Its last dimension may also be 1: one number per row (`[B, S, 1]`), per head
            (`[H, 1]` for `x` of shape `[B, S, H, N]`), or one number (`[1]`). It may be broadcast in the first or in
            the last leading dimensions, as `scale` of `ada_norm`. It must be possible to merge the leading dimensions
            into at most two by `view`. Two dimensions count as merged only if they merge in `x`, `y` and `gate`.
        gate_table (Tensor | None): shape `[N]`, added to `gate` in the kernel. A gate with one column has no table.
        clip (bool): clamp the sum to ±65504, as Flux and Qwen-Image do in float16.
        mode (str): "exact" or "fast", see Exactness.

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
        Exactness: "exact" rounds the product and the sum, as torch's operators do in one dtype. With a float32 gate, as
            in Wan, it rounds only the sum. "fast" rounds only the result. In both modes, `gate + gate_table` is rounded
            first if both have the dtype of `x`.
        Gradients: torch's operators compute them in float32 and round once, also for the table. A second derivative and
            forward-mode AD raise RuntimeError.

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
