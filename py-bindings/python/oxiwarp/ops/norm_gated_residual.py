"""Gated residual of a normalized branch, `x + gate * norm(y)`: `torch.ops.oxiwarp.norm_gated_residual` and its public
function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_branch, check_eps, check_modulation, check_vector, is_exact, is_rms
from ._frames import frames_of
from ._function import Function, apply
from ._mixed import plain, widened
from ._modulation_backward import Norm, normed_branch
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

NAME = "norm_gated_residual"


def _check(x: Tensor, y: Tensor, gate: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    check_rows(NAME, x, None)
    check_branch(NAME, x, y)
    check_modulation(NAME, "gate", gate, None, x, per_row=True, mixed=True)
    check_vector(NAME, "weight", weight, x, True)
    check_vector(NAME, "bias", bias, x, True)
    check_eps(NAME, eps)


def _fake(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rms: bool,
    eps: float,
    exact: bool,
    round_before_weight: bool,
) -> Tensor:
    _check(x, y, gate, weight, bias, eps)
    return x.new_empty(x.shape)


op = define(
    f"{NAME}(Tensor x, Tensor y, Tensor? gate, Tensor? weight, Tensor? bias, bool rms, float eps, bool exact, "
    "bool round_before_weight) -> Tensor",
    _fake,
    x=Role.ROWS,
    y=Role.BRANCH,
    gate=Role.MODULATION,
    weight=Role.ANY_VECTOR,
    bias=Role.ANY_VECTOR,
)


class _NormGatedResidual(Function):
    """Autograd function that saves all operands except `x`. The backward recomputes the norm from `y`."""

    @staticmethod
    def forward(
        x: Tensor,
        y: Tensor,
        gate: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        exact: bool,
        before: bool,
    ) -> Tensor:
        return op(x, y, gate, weight, bias, rms, eps, exact, before)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, y, gate, weight, bias, ctx.rms, ctx.eps, _, _ = inputs
        ctx.save_for_backward(y, gate, weight, bias)

    @staticmethod
    @once
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        y, gate, weight, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_branch = normed_branch(dout, y, Norm(ctx.rms, ctx.eps, weight, bias), gate, wanted[1:5])
        return dout if wanted[0] else None, *of_branch, None, None, None, None


def norm_gated_residual(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    rounding: str = "before_weight",
    mode: str = "exact",
) -> Tensor:
    """Normalize the output of a branch, and add it to a residual with a gate: `x + gate * norm(y)`.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. If the last stride is not 1, a contiguous copy is made first.
        y (Tensor): output of the branch (attention or MLP), with the shape and device of `x`: float32, float16
            or bfloat16.
        gate (Tensor | None): factor of the normalized branch, with a shape and dtype that `gated_residual` supports.
            In Z-Image, Lumina 2 and Ideogram 4, it is `tanh` of a modulation. If it is None, the result is
            `x + norm(y)`.
        norm (str): "layer_norm" or "rms_norm". RMSNorm is `y * rsqrt(mean(y**2) + eps)`.
        weight (Tensor | None): weight of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        bias (Tensor | None): bias of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        eps (float): added to the variance (LayerNorm) or to the mean of squares (RMSNorm); finite, 0 or more.
        rounding (str): "before_weight" or "once", as for `ada_norm`.
        mode (str): "exact" or "fast". The section "Exactness" describes both.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`. A row of the result depends, in every bit, only on the same
        row of `x` and `y`, on this row's gate, and on the norm's parameters.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `norm`, `rounding` or `mode` has an unknown value.
        TypeError: An operand is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: "exact" rounds where the separate modules and operators of torch round. It rounds the norm to the
            dtype of `y`, at the same points as `ada_norm`, then the product with the gate, and then the sum to the
            dtype of `x`. If `weight` or `bias` has another dtype than `y`, the norm and the product are computed in
            float32 and not rounded. If only `gate` has another dtype, the product is not rounded. "fast" always rounds
            only the sum.
        Gradients: All operands have gradients. The gradients are computed in float32, as if the forward pass had no
            intermediate roundings. Gradients that are sums over rows are deterministic. If a gradient is needed,
            torch's operators first convert a gate, weight or bias of the 16-bit dtype that `y` does not have. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        The residual connections of diffusers' `ZImageTransformerBlock`, `Lumina2TransformerBlock` and
        `Ideogram4TransformerBlock`.

    Example:
        >>> x, y, gate = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([1.0, 1.0, 2.0, 2.0])
        >>> oxiwarp.norm_gated_residual(x, y, gate)
        tensor([[-1.3416, -0.4472,  0.8944,  2.6833]])
    """
    affine = isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(gate, OPTIONAL) and affine):
        refuse_types(NAME, {"x": x, "y": y}, {"gate": gate, "weight": weight, "bias": bias})
    if frames := frames_of(x, gate):
        named: Any = dict(norm=norm, weight=weight, bias=bias, eps=eps, rounding=rounding, mode=mode)
        rows = frames.split(x), frames.split(y), frames.split(gate)
        return norm_gated_residual(*rows, **named).flatten(-3, -2)
    options = (is_rms(NAME, norm), eps, is_exact(NAME, mode), before_weight(NAME, rounding))
    try:
        if needs_grad(x, y, gate, weight, bias):
            refuse_forward_mode(NAME)
            _check(x, y, gate, weight, bias, eps)
            gate, _ = plain(y, gate, None, None)
            return apply(_NormGatedResidual, x, y, gate, widened(y, weight), widened(y, bias), *options)
        return op(x, y, gate, weight, bias, *options)
    except RuntimeError as error:
        explain(error, NAME, 1, x, y=y, gate=gate, weight=weight, bias=bias)
        raise


__all__ = ["norm_gated_residual"]
