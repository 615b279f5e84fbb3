"""RMSNorm before or after a gate: `torch.ops.oxiwarp.rms_norm_gated` and its public function."""

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
    """Return `x * f(gate)`, computed in float32 and rounded once.

    If `sigmoid` is True, `f` is the sigmoid function. Otherwise, `f` is SiLU.
    """
    if sigmoid:
        return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
    return op_gated(x, gate, None, SILU, False, 0.0, False)


def _gated_gradients(dy: Tensor, x: Tensor, gate: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """Return the two gradients of `_gated(x, gate, sigmoid)`: of `x` and of `gate`. `dy` is the incoming
    gradient.
    """
    if sigmoid:
        wide, f = dy.float(), torch.sigmoid(gate.float())
        return (wide * f).to(x.dtype), (wide * x.float() * f * (1 - f)).to(x.dtype)
    dx, dgate = op_gated_backward(dy, x, gate, None, SILU, False, 0.0, False).chunk(2, -1)
    return dx, dgate


class _RmsNormGated(Function):
    """Autograd function that saves the operands.

    The forward consists of two operations: the norm, and the multiplication by the activated gate. The backward
    recomputes the result of the first one. If `gate_first` is True, the multiplication comes first, otherwise the norm.
    """

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
            # The intermediate result of the forward is the norm or, with `gate_first`, the product of `x` and
            # the activated gate. It can exceed 65504, the maximum of float16. The backward therefore
            # recomputes it in float32, as the forward kernel does.
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
    """Compute RMSNorm with a gate over the last dimension: `rms_norm(x, weight, eps) * activation(gate)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. It may have the strides that `rms_norm` supports.
        gate (Tensor): shape, dtype and device of `x`. `Tensor.view` must be able to merge all dimensions except the
            last into at most two, and to merge the same dimensions of `x`.
        weight (Tensor | None): contiguous, shape `[N]`, in the dtype of `x` or in float32.
        eps (float): added to the mean of squares; finite, 0 or more.
        rounding (str): "before_weight" rounds the normalized value to the dtype of `x`. If `weight` has the
            dtype of `x`, the product with `weight` is also rounded. Qwen3-Next, Qwen3.5 and OLMo hybrid round
            like this. So do Mamba2, Bamba, Zamba2 and Nemotron-H (with one group), which also need
            `gate_first=True`. "once" rounds only the result, as Kimi Linear, Bailing hybrid and Falcon-H1 do.
            If `x` is float32, "before_weight" and "once" give the same result.
        activation (str): function that is applied to `gate`: "silu", or "sigmoid" (used by Kimi Linear and
            Bailing hybrid).
        gate_first (bool): if True, compute `rms_norm(x * activation(gate), weight, eps)` instead. The product
            `x * activation(gate)` is then not rounded to the dtype of `x`.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`. A row's result does not depend on the number of rows.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `rounding` or `activation` has an unknown value.
        TypeError: `x`, `gate` or `weight` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The norm is as exact as `rms_norm`. The activation is computed in float32 and is not rounded. If
            the inputs are float16 or bfloat16, it has the accuracy of `silu` with `mode="fast"`. For gates below
            -87.3, the activation is 0.
        Gradients: The backward runs two kernels one after the other, one for the norm and one for the gate. The
            gradient between them is rounded to the dtype of `x`, or stays float32 if `x` is float16. With
            `activation="sigmoid"`, torch's operators compute the backward of the gate instead of a kernel. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        Norm first: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464). Gate first: Dao and Gu,
        "Transformers are SSMs" (arXiv:2405.21060).

    Example:
        >>> oxiwarp.rms_norm_gated(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
        tensor([[0.0000, 0.5339, 1.9297, 4.1740]])
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
