"""The modulated norm of a diffusion transformer: `torch.ops.oxiwarp.ada_norm` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_modulation, check_norm, is_exact, is_rms
from ._function import Function, apply
from ._modulation_backward import Norm, ada_norm_gradients, modulations
from ._once_differentiable import once
from ._register import OPTIONAL, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role


def check(
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
    check("ada_norm", x, weight, bias, eps, scale=(scale, scale_table), shift=(shift, shift_table))
    return x.new_empty(x.shape)


op = define(
    "ada_norm(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor? weight, "
    "Tensor? bias, bool rms, float eps, bool exact) -> Tensor",
    _fake,
    x=Role.ROWS,
    scale=Role.BROADCAST,
    scale_table=Role.VECTOR,
    shift=Role.BROADCAST,
    shift_table=Role.VECTOR,
    weight=Role.VECTOR,
    bias=Role.VECTOR,
)


class _AdaNorm(Function):
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
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, scale_table, shift, shift_table, weight, bias = ctx.saved_tensors
        norm, by = Norm(ctx.rms, ctx.eps, weight, bias), modulations(scale, scale_table, shift, shift_table)
        return *ada_norm_gradients(dy, x, norm, by, None, ctx.needs_input_grad[:7]), None, None, None


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
            float32. No shift: none is added. `x` and all of them must be reachable by two strides of rows: for `x` of
            `[A, B, C, N]`, one of them may repeat in the first leading dimensions (`[B, C, N]`, `[C, N]`) or in the
            last ones (`[A, 1, 1, N]`, `[A, B, 1, N]`), but not between two others (`[A, 1, C, N]`) nor at both ends
            (`[1, B, 1, N]`). Those that repeat in some of the dimensions must do so in the same ones.
        norm: "layer_norm", or "rms_norm": `x * rsqrt(mean(x**2) + eps)`.
        weight, bias: the norm's own parameters, contiguous `[N]` in `x`'s dtype or float32, or None.
        eps: added to the variance or the mean of squares; finite, 0 or more.
        scale_table, shift_table: `[N]`, added to scale and shift in the kernel: diffusers' `scale_shift_table + temb`.
        mode: "exact" rounds where the modules of diffusers round: where everything is in `x`'s dtype after the norm,
            after `1 + scale`, after the product and after the sum; where an operand is float32 (Wan) the chain is
            computed in float32 and rounded once. "fast" rounds once, at the end.
            In both modes the sum of a scale or shift and its table is rounded first if both have `x`'s dtype.

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
    affine = isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)
    tables = isinstance(scale_table, OPTIONAL) and isinstance(shift_table, OPTIONAL)
    if not (isinstance(x, Tensor) and isinstance(scale, Tensor) and isinstance(shift, OPTIONAL) and affine and tables):
        others = {"shift": shift, "weight": weight, "bias": bias}
        refuse_types(name, {"x": x, "scale": scale}, {**others, "scale_table": scale_table, "shift_table": shift_table})
    rms, exact = is_rms(name, norm), is_exact(name, mode)
    try:
        if needs_grad(x, scale, scale_table, shift, shift_table, weight, bias):
            refuse_forward_mode(name)
            return apply(_AdaNorm, x, scale, scale_table, shift, shift_table, weight, bias, rms, eps, exact)
        return op(x, scale, scale_table, shift, shift_table, weight, bias, rms, eps, exact)
    except RuntimeError as error:
        by = {"scale": scale, "shift": shift, "scale_table": scale_table, "shift_table": shift_table}
        explain(error, name, 1, x, **by, weight=weight, bias=bias)
        raise


__all__ = ["ada_norm"]
