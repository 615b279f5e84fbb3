"""One norm with two modulations: `torch.ops.oxiwarp.ada_norm_pair` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import is_exact, is_rms
from ._function import Function, apply
from ._mixed import plain, widened
from ._modulation_backward import Norm, ada_norm_gradients, modulations
from ._once_differentiable import once
from ._register import OPTIONAL, before_weight, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role
from .ada_norm import check


def _check(
    x: Tensor,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    scale2: Tensor,
    scale2_table: Tensor | None,
    shift2: Tensor | None,
    shift2_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> None:
    first = {"scale": (scale, scale_table), "shift": (shift, shift_table)}
    second = {"scale2": (scale2, scale2_table), "shift2": (shift2, shift2_table)}
    check("ada_norm_pair", x, weight, bias, eps, True, None, **first, **second)


def _fake(
    x: Tensor,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    scale2: Tensor,
    scale2_table: Tensor | None,
    shift2: Tensor | None,
    shift2_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rms: bool,
    eps: float,
    exact: bool,
    round_before_weight: bool,
) -> tuple[Tensor, Tensor]:
    by = (scale, scale_table, shift, shift_table, scale2, scale2_table, shift2, shift2_table)
    _check(x, *by, weight, bias, eps)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    "ada_norm_pair(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor scale2, "
    "Tensor? scale2_table, Tensor? shift2, Tensor? shift2_table, Tensor? weight, Tensor? bias, bool rms, float eps, "
    "bool exact, bool round_before_weight) -> (Tensor, Tensor)",
    _fake,
    x=Role.ROWS,
    scale=Role.MODULATION,
    scale_table=Role.ANY_VECTOR,
    shift=Role.MODULATION,
    shift_table=Role.ANY_VECTOR,
    scale2=Role.MODULATION,
    scale2_table=Role.ANY_VECTOR,
    shift2=Role.MODULATION,
    shift2_table=Role.ANY_VECTOR,
    weight=Role.ANY_VECTOR,
    bias=Role.ANY_VECTOR,
)


class _AdaNormPair(Function):
    """Autograd function that saves the operands.

    The gradient of `x` is the sum of two gradients, one through each of the two results. The backward calls the
    backward kernel of the norm once per result. The second call adds the gradient of the first call to its own.
    """

    @staticmethod
    def forward(
        x: Tensor,
        scale: Tensor,
        shift: Tensor | None,
        scale2: Tensor,
        shift2: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        exact: bool,
        before: bool,
    ) -> tuple[Tensor, Tensor]:
        return op(x, scale, None, shift, None, scale2, None, shift2, None, weight, bias, rms, eps, exact, before)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.rms, ctx.eps, _, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor, dy2: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift, scale2, shift2, weight, bias = ctx.saved_tensors
        of_x, of_scale, of_shift, of_scale2, of_shift2, *of_norm = ctx.needs_input_grad[:7]
        norm = Norm(ctx.rms, ctx.eps, weight, bias)
        first = ada_norm_gradients(
            dy, x, norm, modulations(scale, None, shift, None), None, (of_x, of_scale, False, of_shift, False, *of_norm)
        )
        second = ada_norm_gradients(
            dy2,
            x,
            norm,
            modulations(scale2, None, shift2, None),
            first[0],
            (of_x, of_scale2, False, of_shift2, False, *of_norm),
        )
        both = [None if a is None or b is None else a + b for a, b in zip(first[5:], second[5:], strict=True)]
        return second[0], first[1], first[3], second[1], second[3], *both, None, None, None, None


def ada_norm_pair(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    scale2: Tensor,
    shift2: Tensor | None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    rounding: str = "before_weight",
    mode: str = "exact",
) -> tuple[Tensor, Tensor]:
    """Compute one norm and modulate it twice: `norm(x) * (1 + scale) + shift` and
    `norm(x) * (1 + scale2) + shift2`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA device. If
            the last stride is not 1, a contiguous copy is made first.
        scale (Tensor): scale of the first result, with a shape and dtype that `ada_norm` supports.
        shift (Tensor | None): shift of the first result, with a shape and dtype that `scale` may have.
        scale2 (Tensor): scale of the second result, with a shape and dtype that `scale` may have.
        shift2 (Tensor | None): shift of the second result, with a shape and dtype that `scale` may have.
        norm (str): "layer_norm" or "rms_norm". RMSNorm is `x * rsqrt(mean(x**2) + eps)`.
        weight (Tensor | None): weight of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        bias (Tensor | None): bias of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        eps (float): added to the variance (LayerNorm) or to the mean of squares (RMSNorm); finite, 0 or more.
        rounding (str): "before_weight" or "once", as for `ada_norm`.
        mode (str): "exact" or "fast", as for `ada_norm`.

    Returns:
        The two results: contiguous tensors with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `norm`, `rounding` or `mode` has an unknown value.
        TypeError: An operand is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The results do not fit in GPU memory.

    Note:
        Exactness: Each result is as exact as the result of `ada_norm`. If an operand has another dtype than `x`, both
            results are computed in float32 and rounded once. If an operand has one column, or the 16-bit dtype that
            `x` does not have, two kernels compute the two results.
        Gradients: The gradients are computed as for `ada_norm`. A second derivative and forward-mode AD raise
            RuntimeError.

    Source:
        `SD35AdaLayerNormZeroX` of diffusers, which modulates one norm for two attention layers;
        arXiv:2212.09748.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> for y in oxiwarp.ada_norm_pair(x, torch.zeros(4), None, torch.ones(4), torch.ones(4)):
        ...     print(y)
        tensor([[-1.3416, -0.4472,  0.4472,  1.3416]])
        tensor([[-1.6833,  0.1056,  1.8944,  3.6833]])
    """
    name = "ada_norm_pair"
    tensors = isinstance(x, Tensor) and isinstance(scale, Tensor) and isinstance(scale2, Tensor)
    affine = isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)
    if not (tensors and isinstance(shift, OPTIONAL) and isinstance(shift2, OPTIONAL) and affine):
        others = {"shift": shift, "shift2": shift2, "weight": weight, "bias": bias}
        refuse_types(name, {"x": x, "scale": scale, "scale2": scale2}, others)
    options = (is_rms(name, norm), eps, is_exact(name, mode), before_weight(name, rounding))
    try:
        if needs_grad(x, scale, shift, scale2, shift2, weight, bias):
            refuse_forward_mode(name)
            _check(x, scale, None, shift, None, scale2, None, shift2, None, weight, bias, eps)
            made = [plain(x, value, None, None)[0] for value in (scale, shift, scale2, shift2)]
            return apply(_AdaNormPair, x, *made, widened(x, weight), widened(x, bias), *options)
        return op(x, scale, None, shift, None, scale2, None, shift2, None, weight, bias, *options)
    except RuntimeError as error:
        by = {"scale": scale, "shift": shift, "scale2": scale2, "shift2": shift2}
        explain(error, name, 2, x, **by, weight=weight, bias=bias)
        raise


__all__ = ["ada_norm_pair"]
