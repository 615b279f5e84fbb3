"""RMSNorm with a gate, in either order: `torch.ops.oxiwarp.rms_norm_gated` and its public function."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_eps
from ._function import Function, apply
from ._once_differentiable import once
from ._register import (
    OPTIONAL,
    before_weight,
    check_rows,
    define,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
)
from ._roles import Role
from .activation import SILU
from .gated_activation import op as op_gated
from .gated_activation import op_backward as op_gated_backward
from .rms_norm import op as op_norm
from .rms_norm_backward import op as op_backward

NAME = "rms_norm_gated"
ACTIVATIONS = {"silu": False, "sigmoid": True}


def _fake(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    eps: float,
    round_before_weight: bool,
    sigmoid: bool,
    gate_first: bool,
) -> Tensor:
    check_rows(NAME, x, weight, gate=gate)
    check_eps(NAME, eps)
    return x.new_empty(x.shape)


op = define(
    f"{NAME}(Tensor x, Tensor gate, Tensor? weight, float eps, bool round_before_weight, bool sigmoid, "
    "bool gate_first) -> Tensor",
    _fake,
    x=Role.ROWS,
    gate=Role.ROWS,
    weight=Role.VECTOR,
)


def _gated(x: Tensor, gate: Tensor, sigmoid: bool) -> Tensor:
    """`x * f(gate)`, rounded once."""
    if sigmoid:
        return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
    return op_gated(x, gate, None, SILU, False, 0.0, False)


def _gated_gradients(dy: Tensor, x: Tensor, gate: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """Those of `_gated` for x and the gate."""
    if sigmoid:
        wide, f = dy.float(), torch.sigmoid(gate.float())
        return (wide * f).to(x.dtype), (wide * x.float() * f * (1 - f)).to(x.dtype)
    dx, dgate = op_gated_backward(dy, x, gate, None, SILU, False, 0.0, False).chunk(2, -1)
    return dx, dgate


class _RmsNormGated(Function):
    """Keeps its operands, and makes what lies between norm and gate again."""

    @staticmethod
    def forward(
        x: Tensor, gate: Tensor, weight: Tensor | None, eps: float, before: bool, sigmoid: bool, gate_first: bool
    ) -> Tensor:
        return op(x, gate, weight, eps, before, sigmoid, gate_first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, gate, weight, *ctx.how = inputs
        ctx.save_for_backward(x, gate, weight)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight = ctx.saved_tensors
        eps, before, sigmoid, gate_first = ctx.how
        wants_x, wants_gate, wants_weight, *_ = ctx.needs_input_grad
        dy, wide_x, wide_gate, scale = dy.contiguous(), x, gate, weight
        if x.dtype == torch.float16:
            # It holds numbers up to 65504. What lies between norm and gate may be larger: the forward computes it in
            # float32.
            dy, wide_x, wide_gate = dy.float(), x.float(), gate.float()
            scale = weight if weight is None else weight.float()
        if gate_first:
            product = _gated(wide_x, wide_gate, sigmoid)
            dproduct, dweight = op_backward(dy, product, scale, None, eps, 0.0, wants_weight)
            dx, dgate = _gated_gradients(dproduct, wide_x, wide_gate, sigmoid)
        else:
            normed = op_norm(wide_x, scale, eps, 0.0, before)
            dnormed, dgate = _gated_gradients(dy, normed, wide_gate, sigmoid)
            dx, dweight = op_backward(dnormed, wide_x, scale, None, eps, 0.0, wants_weight)
        dx, dgate = dx.to(x.dtype), dgate.to(x.dtype)
        dweight = dweight if weight is None else dweight.to(weight.dtype)
        gradients = (dx if wants_x else None, dgate if wants_gate else None, dweight if wants_weight else None)
        return *gradients, None, None, None, None


def rms_norm_gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    rounding: str = "before_weight",
    activation: str = "silu",
    gate_first: bool = False,
) -> Tensor:
    """`rms_norm(x, weight, eps) * activation(gate)` over the last dimension, in one pass.

    The norm is `rms_norm`'s; the activation is computed in float32 and not rounded. In float16 and bfloat16 it is
    that of `silu` in mode "fast", but 0 for gates below -87.3.

    Args:
        x, gate: float32, float16 or bfloat16, both of shape `[..., N]` with N at least 1, on one device, with last
            dimension of stride 1 and leading dimensions as for `rms_norm`. If both have gaps, these must be between
            the same groups of rows.
        weight: contiguous `[N]` in `x`'s dtype or float32, or None.
        eps: added to the mean of squares; finite, 0 or more.
        rounding: where else than at the end a cast to `x`'s dtype is made. "before_weight": of the normalised value,
            and of its product with a weight of that dtype, as transformers' Qwen3-Next, Qwen3.5 and OLMo hybrid (and,
            with `gate_first`, Mamba2, Bamba, Zamba2 and Nemotron-H, of one group) do. "once": nowhere, as Kimi Linear,
            Bailing hybrid and Falcon-H1 do. The same for float32.
        activation: "silu", or "sigmoid" (Kimi Linear, Bailing hybrid).
        gate_first: normalise `x * activation(gate)`, a product in float32, instead.

    Returns:
        A contiguous tensor of `x`'s shape and dtype. A row's result does not depend on how many rows there are.

    Gradients are computed by the kernels of norm and gate one after the other. The values between them are rounded to
    `x`'s dtype, but in float16 they are float32. The gradient of a sigmoid is computed by torch's
    operators. There is no second derivative and no forward-mode AD.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as `rms_norm`.
        ValueError: for another `rounding` or `activation`.

    Source: Dao and Gu, "Transformers are SSMs" (arXiv:2405.21060), for the gate first; Yang, Kautz and Hatamizadeh,
    "Gated Delta Networks" (arXiv:2412.06464), for the norm first.
    """
    if not (isinstance(x, Tensor) and isinstance(gate, Tensor) and isinstance(weight, OPTIONAL)):
        refuse_types(NAME, {"x": x, "gate": gate}, {"weight": weight})
    before = before_weight(NAME, rounding)
    try:
        sigmoid = ACTIVATIONS[activation]
    except (KeyError, TypeError):
        raise ValueError(f"{NAME}: activation is {activation!r}, expected 'silu' or 'sigmoid'") from None
    try:
        if needs_grad(x, gate, weight):
            refuse_forward_mode(NAME)
            return apply(_RmsNormGated, x, gate, weight, eps, before, sigmoid, gate_first)
        return op(x, gate, weight, eps, before, sigmoid, gate_first)
    except RuntimeError as error:
        explain(error, NAME, 1, x, gate=gate, weight=weight)
        raise


__all__ = ["rms_norm_gated"]
