"""The modulated norm of a diffusion transformer: `torch.ops.oxiwarp.ada_norm`, `ada_norm_pair` and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._modulation_backward import Norm, ada_norm_gradients, modulations
from .._operands import check_modulation, check_norm, check_types, is_exact, is_rms
from .._register import define, explain, needs_grad, refuse_forward_mode


def _check(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    **modulations: tuple[Tensor | None, Tensor | None],
) -> None:
    """Raise RuntimeError for what the host refuses: `modulations` are values and tables by name."""
    check_norm(op, x, weight, bias, eps)
    for name, (value, table) in modulations.items():
        check_modulation(op, name, value, table, x)


def _fake(
    x: Tensor,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rms: bool,
    eps: float,
    exact: bool,
) -> Tensor:
    _check("ada_norm", x, weight, bias, eps, scale=(scale, scale_table), shift=(shift, shift_table))
    return x.new_empty(x.shape)


def _fake_pair(
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
) -> tuple[Tensor, Tensor]:
    first = {"scale": (scale, scale_table), "shift": (shift, shift_table)}
    second = {"scale2": (scale2, scale2_table), "shift2": (shift2, shift2_table)}
    _check("ada_norm_pair", x, weight, bias, eps, **first, **second)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    "ada_norm(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor? weight, "
    "Tensor? bias, bool rms, float eps, bool exact) -> Tensor",
    _fake,
)
op_pair = define(
    "ada_norm_pair(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor scale2, "
    "Tensor? scale2_table, Tensor? shift2, Tensor? shift2_table, Tensor? weight, Tensor? bias, bool rms, float eps, "
    "bool exact) -> (Tensor, Tensor)",
    _fake_pair,
)


class _AdaNorm(torch.autograd.Function):
    """Keeps its operands; the norm is made again from x."""

    @staticmethod
    def forward(
        x: Tensor,
        scale: Tensor,
        scale_table: Tensor | None,
        shift: Tensor | None,
        shift_table: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        exact: bool,
    ) -> Tensor:
        y: Tensor = op(x, scale, scale_table, shift, shift_table, weight, bias, rms, eps, exact)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.rms, ctx.eps, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, scale_table, shift, shift_table, weight, bias = ctx.saved_tensors
        norm, by = Norm(ctx.rms, ctx.eps, weight, bias), modulations(scale, scale_table, shift, shift_table)
        return *ada_norm_gradients(dy, x, norm, by, None, ctx.needs_input_grad[:7]), None, None, None


class _AdaNormPair(torch.autograd.Function):
    """Keeps its operands; the gradient of x for one modulation is added to the other's as that is made."""

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
    ) -> tuple[Tensor, Tensor]:
        return op_pair(  # type: ignore[no-any-return]
            x, scale, None, shift, None, scale2, None, shift2, None, weight, bias, rms, eps, exact
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.rms, ctx.eps, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
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
        return second[0], first[1], first[3], second[1], second[3], *both, None, None, None


def ada_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    scale_table: Tensor | None = None,
    shift_table: Tensor | None = None,
    mode: str = "exact",
) -> Tensor:
    """`norm(x) * (1 + scale) + shift` over the last dimension, in one pass.

    Args:
        x: float32, float16 or bfloat16, of shape `[..., N]` with N at least 1, on the CPU or a CUDA device, with last
            dimension of stride 1.
        scale, shift: tensors that broadcast against `x` and have its last dimension: `[B, 1, N]` for a batch,
            `[B, S, N]` for a token, `[N]`, or strided slices such as those of `[B, S, 6, N]`; in `x`'s dtype or in
            float32. No shift: none is added. `x` and all of them must be reachable by two strides of rows.
        norm: "layer_norm", or "rms_norm": `x * rsqrt(mean(x**2) + eps)`.
        weight, bias: the norm's own parameters, `[N]` in `x`'s dtype or float32, or None.
        eps: added to the variance or the mean of squares; 0 or more.
        scale_table, shift_table: `[N]`, added to scale and shift in the kernel: diffusers' `scale_shift_table + temb`.
        mode: "exact" rounds where the modules of diffusers round: where everything is in `x`'s dtype after the norm,
            after `1 + scale`, after the product and after the sum; where an operand is float32 (Wan) the chain is
            computed in float32 and rounded once. "fast" rounds once in any case.

    Returns:
        A contiguous tensor of `x`'s shape and dtype. A row's bits depend on that row and its operands alone.

    Gradients, of tables too, are computed in float32 and take roundings of the forward for what they approximate; sums
    have the same bits each time. Where rows of `x` share scale and shift (`[B, 1, N]`, `[N]`) one pass makes all of
    them. Once, not twice, and not in forward-mode AD.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as `layer_norm`.
        ValueError: for another `norm` or `mode`.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748), adaLN.
    """
    name = "ada_norm"
    others = {"shift": shift, "weight": weight, "bias": bias, "scale_table": scale_table, "shift_table": shift_table}
    check_types(name, {"x": x, "scale": scale}, others)
    rms, exact = is_rms(name, norm), is_exact(name, mode)
    arguments = (x, scale, scale_table, shift, shift_table, weight, bias, rms, eps, exact)
    try:
        if needs_grad(x, scale, *others.values()):
            refuse_forward_mode(name)
            return _AdaNorm.apply(*arguments)  # type: ignore[no-any-return,no-untyped-call]
        return op(*arguments)  # type: ignore[no-any-return]
    except RuntimeError as error:
        explain(error, name, 1, x, scale=scale, **others)
        raise


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
    mode: str = "exact",
) -> tuple[Tensor, Tensor]:
    """Two modulations of one norm, in one pass: `norm(x) * (1 + scale) + shift`, and that with `scale2` and `shift2`.

    Arguments, gradients, errors and source as for `ada_norm`; it is what SD3.5's AdaLayerNormZeroX computes for its two
    attentions.

    Returns:
        Two contiguous tensors of `x`'s shape and dtype.
    """
    name = "ada_norm_pair"
    others = {"shift": shift, "shift2": shift2, "weight": weight, "bias": bias}
    check_types(name, {"x": x, "scale": scale, "scale2": scale2}, others)
    rms, exact = is_rms(name, norm), is_exact(name, mode)
    try:
        if needs_grad(x, scale, scale2, *others.values()):
            refuse_forward_mode(name)
            return _AdaNormPair.apply(  # type: ignore[no-any-return,no-untyped-call]
                x, scale, shift, scale2, shift2, weight, bias, rms, eps, exact
            )
        return op_pair(  # type: ignore[no-any-return]
            x, scale, None, shift, None, scale2, None, shift2, None, weight, bias, rms, eps, exact
        )
    except RuntimeError as error:
        explain(error, name, 2, x, scale=scale, scale2=scale2, **others)
        raise


__all__ = ["ada_norm", "ada_norm_pair", "op", "op_pair"]
