"""A gated residual connection: `torch.ops.oxiwarp.gated_residual` and its public function."""

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
    check_modulation("gated_residual", "gate", gate, gate_table, x)


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
    """`dtotal` where the sum was not clamped, which the sum without the clamp tells; 0 elsewhere."""
    total = x + y if gate is None else op(x, y, gate, gate_table, exact, False)
    return torch.where(total.abs() <= CLIP, dtotal, 0)


class _GatedResidual(Function):
    """Keeps y and the gate, and x where the sum may be clamped."""

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
    """`x + gate * y`, in one pass.

    Args:
        x, y: float32, float16 or bfloat16, both of shape `[..., N]` with N at least 1, on one device, with last
            dimension of stride 1.
        gate: broadcasts against `x` and has its last dimension (`[B, 1, N]`, `[B, S, N]`, `[N]`, strided slices), in
            `x`'s dtype or float32. `x`, `y` and gate must be reachable by two strides of rows: a gate
            repeats in the first or in the last leading dimensions, as for `ada_norm`.
        gate_table: `[N]`, added to the gate in the kernel.
        clip: clamp the sum to ±65504, as Flux and Qwen-Image do in float16.
        mode: "exact" rounds the product and the sum, as torch's operators do in one dtype; with a float32 gate (Wan)
            the sum alone. "fast" rounds only the result. In both modes the sum of the gate and its table is
            rounded first if both have `x`'s dtype.

    Returns:
        A contiguous tensor of `x`'s shape and dtype.

    Gradients, of the table too, are products and sums of torch's in float32, rounded once. Once, not twice, and not in
    forward-mode AD.

    Raises:
        RuntimeError, TypeError, ValueError, torch.OutOfMemoryError: as `ada_norm`.

    Source: the gates of adaLN-Zero, arXiv:2212.09748.
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
