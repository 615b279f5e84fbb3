"""Gated residual connection, `x + gate * y`: `torch.ops.oxiwarp.gated_residual` and its public function."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_branch, check_index, check_modulation, is_exact, rows_of
from ._frames import frames_of
from ._function import Function, apply
from ._mixed import chosen, plain
from ._modulation_backward import Modulation, gated
from ._once_differentiable import once
from ._register import OPTIONAL, check_rows, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role

CLIP = 65504.0


def _check(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, index: Tensor | None) -> None:
    name = "gated_residual"
    check_rows(name, x, None)
    check_branch(name, x, y)
    check_modulation(name, "gate", gate, gate_table, x, per_row=True, mixed=True, rows=rows_of(index, gate))
    check_index(name, index, x)


def _fake(
    x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, index: Tensor | None, exact: bool, clip: bool
) -> Tensor:
    _check(x, y, gate, gate_table, index)
    return x.new_empty(x.shape)


op = define(
    "gated_residual(Tensor x, Tensor y, Tensor gate, Tensor? gate_table, Tensor? index, bool exact, bool clip) "
    "-> Tensor",
    _fake,
    x=Role.ROWS,
    y=Role.BRANCH,
    gate=Role.MODULATION,
    gate_table=Role.ANY_VECTOR,
    index=Role.INDEX,
)


def unclipped(
    dtotal: Tensor, x: Tensor, y: Tensor, gate: Tensor | None, gate_table: Tensor | None, exact: bool
) -> Tensor:
    """Return the incoming gradient `dtotal`, with 0 for the elements that the forward pass clamped.

    To find these elements, the function recomputes the sum `x + gate * y` without the clamp.
    """
    total = x + y if gate is None else op(x, y, gate, gate_table, None, exact, False)
    return torch.where(total.abs() <= CLIP, dtotal, 0)


def by_torch(x: Tensor, y: Tensor, gate: Tensor | None, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
    """Compute `x + gate * y` with torch's operators, for a `y` of another dtype than `x`."""
    if gate is not None:
        gate = gate if gate_table is None else gate_table + gate
        y = gate * y if exact else gate.float() * y.float()
    total = (x.float() + y.float()).to(x.dtype)
    return total.clip(-CLIP, CLIP) if clip else total


class _GatedResidual(Function):
    """Autograd function that saves `y` and the gate.

    If `clip` is True, it also saves `x`, because the backward recomputes the sum to find the clamped
    elements.
    """

    @staticmethod
    def forward(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
        return op(x, y, gate, gate_table, None, exact, clip)

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
    index: Tensor | None = None,
    clip: bool = False,
    mode: str = "exact",
) -> Tensor:
    """Add a gated branch to a residual: `x + gate * y`.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. If the last stride is not 1, a contiguous copy is made first.
        y (Tensor): output of the branch (attention or MLP), with the shape and device of `x`: float32, float16
            or bfloat16.
        gate (Tensor): float32, float16 or bfloat16; broadcasts to `x`. Its last dimension is N or 1, or it has no
            dimension.
            Examples with a last dimension of N are `[B, 1, N]`, `[B, S, N]`, `[N]` and slices. With a last
            dimension of 1, the gate may have one number per row (`[B, S, 1]`), or one number in total
            (`[1]`). For `x` of shape `[B, S, H, N]`, it may have one number per head (`[H, 1]`). For `x` of
            shape `[B, S, N]`, it may have one row per frame (`[B, F, 1, N]`), as in `ada_norm`. The gate may be
            broadcast along the first dimensions, or along the last dimensions before N, but not along
            both. `Tensor.view` must be able to merge all dimensions before the last into at most two. The
            same dimensions must be mergeable in `x`, `y` and `gate`.
        gate_table (Tensor | None): vector of shape `[N]` that the kernel adds to `gate`. It must be None if
            the last dimension of `gate` is 1 and N is not 1.
        index (Tensor | None): int64 or int32, contiguous, shape `x.shape[:-1]`. If it is given,
            `gate` has the shape `[R, N]`. A row of `x` then uses the row of `gate` that its integer
            names. A negative integer, or R or more, names row R - 1.
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
        Exactness: If `gate` and `y` have the same dtype, "exact" rounds the product to this dtype, and the sum to
            the dtype of `x`, as torch's operators do. If they have different dtypes, as in Wan, "exact" rounds only
            the sum. "fast" always rounds only the sum. In both modes, `gate + gate_table` is rounded if `gate` and
            `gate_table` have one 16-bit dtype.
        Gradients: All operands have gradients, also the table. If `y` has another dtype than `x` and a gradient
            is needed, torch's operators compute the sum and the gradients. The gradients are computed in float32
            and rounded once. The gradient of `y` is bitwise equal to that of torch's operators if there is no
            `gate_table`. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The gates of adaLN-Zero (arXiv:2212.09748).

    Example:
        >>> oxiwarp.gated_residual(torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([0.0, 1.0, 2.0]))
        tensor([[0., 1., 2.]])
    """
    name = "gated_residual"
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
    optional = isinstance(gate_table, OPTIONAL) and isinstance(index, OPTIONAL)
    if not (tensors and isinstance(gate, Tensor) and optional):
        refuse_types(name, {"x": x, "y": y, "gate": gate}, {"gate_table": gate_table, "index": index})
    if index is None and (frames := frames_of(x, gate)):
        rows = frames.split(x), frames.split(y), frames.split(gate)
        return gated_residual(*rows, gate_table=gate_table, clip=clip, mode=mode).flatten(-3, -2)
    exact = is_exact(name, mode)
    try:
        if needs_grad(x, y, gate, gate_table):
            refuse_forward_mode(name)
            _check(x, y, gate, gate_table, index)
            if y.dtype != x.dtype:
                return by_torch(x, y, chosen(gate, index), gate_table, exact, clip)
            gate, gate_table = plain(x, gate, gate_table, index)
            return apply(_GatedResidual, x, y, gate, gate_table, exact, clip)
        return op(x, y, gate, gate_table, index, exact, clip)
    except RuntimeError as error:
        explain(error, name, 1, x, y=y, gate=gate, gate_table=gate_table, index=index)
        raise


__all__ = ["gated_residual"]
