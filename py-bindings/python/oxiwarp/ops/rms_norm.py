"""RMSNorm over the last dimension: `torch.ops.oxiwarp.rms_norm` and its public function."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_eps, check_head_vectors
from ._function import Function, apply
from ._once_differentiable import once
from ._register import (
    OPTIONAL,
    before_weight,
    check_number,
    check_rows,
    define,
    define_lazy,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
    write,
)
from ._roles import Role
from .rms_norm_backward import op as op_backward
from .rms_norm_backward import op_affine as op_affine_backward


def _fake(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool) -> Tensor:
    check_rows("rms_norm", x, weight)
    check_eps("rms_norm", eps)
    check_number("rms_norm", "weight_offset", weight_offset)
    return x.new_empty(x.shape)


def _fake_out(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool, out: Tensor
) -> None:
    check_rows("rms_norm", x, weight, out=out)
    check_eps("rms_norm", eps)
    check_number("rms_norm", "weight_offset", weight_offset)


op = define(
    "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.VECTOR,
)
# The operator `rms_norm_out` does not increment autograd's version counter of `out`. An operator can do so
# only if torch's dispatcher calls a Python function, which takes more time than the rest of the call. The
# public function `rms_norm` increments the counter instead.
op_out = define(
    "rms_norm_out(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight, "
    "Tensor(a!) out) -> ()",
    _fake_out,
    x=Role.ROWS,
    weight=Role.VECTOR,
    out=Role.OUTPUT,
)


def _fake_affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool
) -> Tensor:
    _check_affine(x, weight, bias, eps, weight_offset)
    return x.new_empty(x.shape)


def _fake_affine_out(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    weight_offset: float,
    round_before_weight: bool,
    out: Tensor,
) -> None:
    _check_affine(x, weight, bias, eps, weight_offset, out=out)


def _check_affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, weight_offset: float, **outs: Tensor
) -> None:
    check_rows("rms_norm_affine", x, None, **outs)
    check_head_vectors("rms_norm_affine", "weight", weight, x)
    check_head_vectors("rms_norm_affine", "bias", bias, x)
    check_eps("rms_norm_affine", eps)
    check_number("rms_norm_affine", "weight_offset", weight_offset)


# The operators for a bias, and for a weight or bias per head.
op_affine = define(
    "rms_norm_affine(Tensor x, Tensor? weight, Tensor? bias, float eps, float weight_offset, "
    "bool round_before_weight) -> Tensor",
    _fake_affine,
    x=Role.ROWS,
    weight=Role.VECTOR,
    bias=Role.VECTOR,
)
op_affine_out = define(
    "rms_norm_affine_out(Tensor x, Tensor? weight, Tensor? bias, float eps, float weight_offset, "
    "bool round_before_weight, Tensor(a!) out) -> ()",
    _fake_affine_out,
    x=Role.ROWS,
    weight=Role.VECTOR,
    bias=Role.VECTOR,
    out=Role.OUTPUT,
)


def _resolve_out(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool, out: Tensor
) -> None:
    if out.is_neg() or out.is_conj():
        raise RuntimeError(
            "rms_norm: out is a lazily negated (or conjugated) view, expected a plain tensor; call .resolve_neg() first"
        )
    plain = weight if weight is None else weight.resolve_conj().resolve_neg()
    op_out(x.resolve_conj().resolve_neg(), plain, eps, weight_offset, round_before_weight, out)


define_lazy("rms_norm_out", _resolve_out)


def call(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool) -> Tensor:
    """Call the operator `rms_norm` without recording for autograd. If it raises an error, raise a clearer
    error instead.
    """
    try:
        return op(x, weight, eps, weight_offset, round_before_weight)
    except RuntimeError as error:
        explain(error, "rms_norm", 1, x, weight=weight)
        raise


class _RmsNorm(Function):
    """Autograd function that saves `x` and the weight. The backward recomputes the norm from these tensors."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool
    ) -> Tensor:
        return op(x, weight, eps, weight_offset, round_before_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.eps, ctx.weight_offset, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, *_ = ctx.needs_input_grad
        try:
            dx, dweight = op_backward(dy.contiguous(), x, weight, None, ctx.eps, ctx.weight_offset, wants_weight)
        except RuntimeError as error:
            explain(error, "rms_norm_backward", 1, x)
            raise
        return dx if wants_x else None, dweight if wants_weight else None, None, None, None


class _RmsNormAffine(Function):
    """Autograd function of a norm with a bias, or with a weight or bias per head."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        weight_offset: float,
        round_before_weight: bool,
    ) -> Tensor:
        return op_affine(x, weight, bias, eps, weight_offset, round_before_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.eps, ctx.weight_offset, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else (bias.dim(), bias.dtype)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        dy, how = dy.contiguous(), (None, ctx.eps, ctx.weight_offset, wants_weight)
        dx = dweight = dbias = None
        try:
            if weight is None or weight.dim() == 1:
                dx, dweight = op_backward(dy, x, weight, *how)
            elif wants_x or wants_weight:
                # `reshape` copies `x` only if its rows have more than one stride.
                dy_rows, rows = (of.reshape(-1, *weight.shape) for of in (dy, x))
                dx, dweight = op_affine_backward(dy_rows, rows, weight, *how[1:])
                dx = dx.reshape(x.shape)
        except RuntimeError as error:
            explain(error, "rms_norm_backward", 1, x)
            raise
        if wants_bias:
            rank, dtype = ctx.bias
            rows = tuple(range(dy.dim() - rank))  # `sum` over no dimension would be a sum over all
            dbias = (dy.sum(rows, dtype=torch.float32) if rows else dy).to(dtype)
        return dx if wants_x else None, dweight if wants_weight else None, dbias, None, None, None


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    bias: Tensor | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    out: Tensor | None = None,
) -> Tensor:
    """Compute RMSNorm over the last dimension: `x / sqrt(mean(x**2) + eps) * (weight_offset + weight) + bias`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1 (tested up to 262,144),
            on the CPU or a CUDA device. If the last stride is not 1, a contiguous copy is made first. Otherwise,
            `Tensor.view` must be able to merge all dimensions before the last into at most two. This is the case for
            slices and chunks of a contiguous tensor. If `out` is given, `Tensor.view` must be able to merge the same
            dimensions of `out`. The number of rows may be 0.
        weight (Tensor | None): contiguous, in the dtype of `x` or in float32. The shape is `[N]`, or `[H, N]` for an
            `x` of shape `[..., H, N]`: one weight per head. None means a weight of ones.
        eps (float): added to the mean of squares; finite, 0 or more.
        bias (Tensor | None): added to the product. It may have the shapes and dtypes that `weight` may have.
        weight_offset (float): number that is added to `weight` in float32, for example 1.0 for Gemma's
            zero-centered weights.
        rounding (str): "once" rounds to the dtype of `x` only at the end, as torch.nn.RMSNorm, Gemma and Olmo
            do. "before_weight" rounds before and after the multiplication by the weight, as LLaMA, Qwen, T5
            and diffusers' `RMSNorm` do, and again after the addition of a bias. For a float32 `x`, both values give
            the same result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written. It must not
            overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its
            value and the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is
            missing. Also raised in forward-mode AD. Also raised if `out` is given and an input requires grad.
        ValueError: `rounding` is not "once" or "before_weight".
        TypeError: `x`, `weight`, `bias` or `out` is not a tensor, or `eps` or `weight_offset` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The mean of squares, its root and the product are computed in float32. The kernel rounds at the
            points that `rounding` selects, but it sums the squares of a row in a different order than torch. A row's
            result does not depend on the number of rows. However, the order of the sum is different if the address or
            the stride of the rows is not a multiple of 16 bytes.
        Gradients: For both values of `rounding`, the gradients are computed in float32 from `x` and rounded
            once. The gradient of `weight` is a sum over all rows. This sum is deterministic. torch's operators
            compute the gradient of `bias`. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.rms_norm`; Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467).

    Example:
        >>> oxiwarp.rms_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[0.3651, 0.7303, 1.0954, 1.4606]])
    """
    if not (isinstance(x, Tensor) and isinstance(weight, OPTIONAL) and isinstance(out, OPTIONAL)):
        refuse_types("rms_norm", {"x": x}, {"weight": weight, "out": out})
    if bias is not None or (weight is not None and weight.dim() == 2):
        return _affine(x, weight, bias, (eps, weight_offset, before_weight("rms_norm", rounding)), out)
    before, grad = before_weight("rms_norm", rounding), needs_grad(x, weight, out)
    if grad:
        refuse_forward_mode("rms_norm")
    if out is None and not grad:
        return call(x, weight, eps, weight_offset, before)
    if out is None:
        try:
            return apply(_RmsNorm, x, weight, eps, weight_offset, before)
        except RuntimeError as error:
            explain(error, "rms_norm", 1, x, weight=weight)
            raise
    try:
        write("rms_norm", op_out, (x, weight, eps, weight_offset, before), (out,), grad)
    except RuntimeError as error:
        explain(error, "rms_norm", 0, x, weight=weight, out=out)
        raise
    return out


def _affine(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, how: tuple[float, float, bool], out: Tensor | None
) -> Tensor:
    """Compute the norm with a bias, or with a weight or bias per head. `how` has eps, the offset of the weight,
    and whether to round before the weight.
    """
    if not isinstance(bias, OPTIONAL):
        refuse_types("rms_norm", {}, {"bias": bias})
    grad = needs_grad(x, weight, bias, out)
    if grad:
        refuse_forward_mode("rms_norm")
    try:
        if out is not None:
            write("rms_norm", op_affine_out, (x, weight, bias, *how), (out,), grad)
            return out
        return apply(_RmsNormAffine, x, weight, bias, *how) if grad else op_affine(x, weight, bias, *how)
    except RuntimeError as error:
        explain(error, "rms_norm", int(out is None), x, weight=weight, bias=bias, out=out)
        raise


__all__ = ["rms_norm"]
