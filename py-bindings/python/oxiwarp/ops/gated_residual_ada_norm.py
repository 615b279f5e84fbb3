"""Gated residual connection, followed by a modulated norm: the operator
`torch.ops.oxiwarp.gated_residual_ada_norm`.

The operator computes `sum = x + gate * y` and `normed = norm(sum) * (1 + scale) + shift`.
"""

from typing import Any

from torch import Tensor

from ._checks.rows import check_branch, check_index, check_modulations, check_norm, is_exact, is_rms
from ._frames import frames_of
from ._function import Function, apply
from ._mixed import chosen, plain, widened
from ._modulation_backward import Modulation, Norm, ada_norm_gradients, gated, modulations
from ._once_differentiable import once
from ._register import OPTIONAL, before_weight, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role
from .ada_norm import ada_norm
from .gated_residual import by_torch, unclipped

NAME = "gated_residual_ada_norm"


def _check(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    index: Tensor | None,
    modulations: dict[str, tuple[Tensor | None, Tensor | None]],
) -> None:
    check_norm(NAME, x, weight, bias, eps, mixed=True)
    check_branch(NAME, x, y)
    check_modulations(NAME, x, index, True, modulations)
    check_index(NAME, index, x)


def _fake(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None,
    gate_table: Tensor | None,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    index: Tensor | None,
    rms: bool,
    eps: float,
    exact: bool,
    round_before_weight: bool,
    clip: bool,
) -> tuple[Tensor, Tensor]:
    modulations = {"gate": (gate, gate_table), "scale": (scale, scale_table), "shift": (shift, shift_table)}
    _check(x, y, weight, bias, eps, index, modulations)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    "gated_residual_ada_norm(Tensor x, Tensor y, Tensor? gate, Tensor? gate_table, Tensor scale, Tensor? scale_table, "
    "Tensor? shift, Tensor? shift_table, Tensor? weight, Tensor? bias, Tensor? index, bool rms, float eps, bool exact, "
    "bool round_before_weight, bool clip) -> (Tensor, Tensor)",
    _fake,
    x=Role.ROWS,
    y=Role.BRANCH,
    gate=Role.MODULATION,
    gate_table=Role.ANY_VECTOR,
    scale=Role.MODULATION,
    scale_table=Role.ANY_VECTOR,
    shift=Role.MODULATION,
    shift_table=Role.ANY_VECTOR,
    weight=Role.ANY_VECTOR,
    bias=Role.ANY_VECTOR,
    index=Role.INDEX,
)


class _GatedResidualAdaNorm(Function):
    """Autograd function that saves the sum and all operands except `x`. It saves `x` as well if `clip` is True.

    The operator has two outputs, `normed` and `sum`, and each has an incoming gradient. The backward kernel of the norm
    computes the gradient of the norm's input from the gradient of `normed`, and adds the gradient of `sum`.
    """

    @staticmethod
    def forward(
        x: Tensor,
        y: Tensor,
        gate: Tensor | None,
        gate_table: Tensor | None,
        scale: Tensor,
        scale_table: Tensor | None,
        shift: Tensor | None,
        shift_table: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        exact: bool,
        before: bool,
        clip: bool,
    ) -> tuple[Tensor, Tensor]:
        options = (rms, eps, exact, before, clip)
        return op(x, y, gate, gate_table, scale, scale_table, shift, shift_table, weight, bias, None, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, *rest, ctx.rms, ctx.eps, ctx.exact, _, ctx.clip = inputs
        ctx.save_for_backward(output[1], x if ctx.clip else None, *rest)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor, dsum: Tensor) -> tuple[Tensor | None, ...]:
        total, x, y, gate, gate_table, scale, scale_table, shift, shift_table, weight, bias = ctx.saved_tensors
        norm, by = Norm(ctx.rms, ctx.eps, weight, bias), modulations(scale, scale_table, shift, shift_table)
        wanted = ctx.needs_input_grad
        dtotal, *of_norm = ada_norm_gradients(dy, total, norm, by, dsum.contiguous(), (True, *wanted[4:10]))
        assert dtotal is not None
        if ctx.clip:
            dtotal = unclipped(dtotal, x, y, gate, gate_table, ctx.exact)
        if gate is None:
            of_branch: tuple[Tensor | None, ...] = (dtotal if wanted[1] else None, None, None)
        else:
            of_branch = gated(dtotal, y, Modulation(gate, gate_table), wanted[1:4])
        return dtotal if wanted[0] else None, *of_branch, *of_norm, None, None, None, None, None


def gated_residual_ada_norm(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    rounding: str = "before_weight",
    gate_table: Tensor | None = None,
    scale_table: Tensor | None = None,
    shift_table: Tensor | None = None,
    index: Tensor | None = None,
    clip: bool = False,
    mode: str = "exact",
) -> tuple[Tensor, Tensor]:
    """Add a gated branch to a residual, then compute a modulated norm: `sum = x + gate * y`,
    `normed = norm(sum) * (1 + scale) + shift`.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. If the last stride is not 1, a contiguous copy is made first.
        y (Tensor): output of the branch (attention or MLP), with the shape and device of `x`: float32, float16
            or bfloat16.
        gate (Tensor | None): gate of the branch, with a shape and dtype that `gated_residual` supports. If it
            is None, `sum` is `x + y`.
        scale (Tensor): broadcasts to `x`, with a shape and dtype that `ada_norm` supports.
        shift (Tensor | None): tensor that is added last. It may have the shapes and dtypes that `scale` may
            have.
        norm (str): "layer_norm" or "rms_norm". RMSNorm is `x * rsqrt(mean(x**2) + eps)`. The input of the
            norm is `sum`, rounded to the dtype of `x`.
        weight (Tensor | None): weight of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        bias (Tensor | None): bias of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        eps (float): added to the variance (LayerNorm) or to the mean of squares (RMSNorm); finite, 0 or more.
        rounding (str): "before_weight" or "once", as for `ada_norm`.
        gate_table (Tensor | None): vector of shape `[N]` that the kernel adds to `gate`.
        scale_table (Tensor | None): vector of shape `[N]` that the kernel adds to `scale`.
        shift_table (Tensor | None): vector of shape `[N]` that the kernel adds to `shift`.
        index (Tensor | None): int64 or int32, contiguous, shape `x.shape[:-1]`. If it is given,
            `gate`, `scale` and `shift` have the shape `[R, N]`. A row of `x` then uses the row of each that its integer
            names. A negative integer, or R or more, names row R - 1.
        clip (bool): if True, clamp the sum to ±65504 (the maximum of float16), as Flux and Qwen-Image do in
            float16.
        mode (str): "exact" or "fast", as for `gated_residual` and `ada_norm`.

    Returns:
        `(normed, sum)`: two contiguous tensors with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `norm`, `rounding` or `mode` has an unknown value.
        TypeError: An operand is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The results do not fit in GPU memory.

    Note:
        Exactness: The results are bitwise equal to those of `gated_residual` followed by `ada_norm`.
        Gradients: The gradients are computed as for `gated_residual` and `ada_norm`. The backward kernel of the norm
            adds the incoming gradient of `sum` before it rounds the gradient. A second derivative and forward-mode AD
            raise RuntimeError.

    Source:
        adaLN-Zero (arXiv:2212.09748): the residual connection after one branch of a block, and the norm
        before the next branch.

    Example:
        >>> x, y, gate = torch.zeros(1, 4), torch.ones(1, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> oxiwarp.gated_residual_ada_norm(x, y, gate, torch.zeros(4))
        (tensor([[-1.3416, -0.4472,  0.4472,  1.3416]]), tensor([[1., 2., 3., 4.]]))
    """
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(scale, Tensor)
    tables = (
        isinstance(gate_table, OPTIONAL) and isinstance(scale_table, OPTIONAL) and isinstance(shift_table, OPTIONAL)
    )
    affine = isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL) and isinstance(index, OPTIONAL)
    if not (tensors and tables and affine and isinstance(gate, OPTIONAL) and isinstance(shift, OPTIONAL)):
        others = {"gate": gate, "gate_table": gate_table, "shift": shift, "scale_table": scale_table}
        refuse_types(
            NAME,
            {"x": x, "y": y, "scale": scale},
            {**others, "shift_table": shift_table, "weight": weight, "bias": bias, "index": index},
        )
    if index is None and (frames := frames_of(x, gate, scale, shift)):
        named: Any = dict(norm=norm, weight=weight, bias=bias, eps=eps, rounding=rounding, clip=clip, mode=mode)
        tables_of: Any = dict(gate_table=gate_table, scale_table=scale_table, shift_table=shift_table)
        split = frames.split
        normed, total = gated_residual_ada_norm(
            split(x), split(y), split(gate), split(scale), split(shift), **named, **tables_of
        )
        return normed.flatten(-3, -2), total.flatten(-3, -2)
    options = (is_rms(NAME, norm), eps, is_exact(NAME, mode), before_weight(NAME, rounding), clip)
    operands = (x, y, gate, gate_table, scale, scale_table, shift, shift_table, weight, bias)
    try:
        if not needs_grad(*operands):
            return op(*operands, index, *options)
        refuse_forward_mode(NAME)
        by_name = {"gate": (gate, gate_table), "scale": (scale, scale_table), "shift": (shift, shift_table)}
        _check(x, y, weight, bias, eps, index, by_name)
        if y.dtype != x.dtype:
            total = by_torch(x, y, None if gate is None else chosen(gate, index), gate_table, options[2], clip)
            of_norm: Any = dict(norm=norm, weight=weight, bias=bias, eps=eps, rounding=rounding, mode=mode)
            by_table: Any = dict(scale_table=scale_table, shift_table=shift_table, index=index)
            return ada_norm(total, scale, shift, **of_norm, **by_table), total
        gate, gate_table = plain(x, gate, gate_table, index)
        scale, scale_table = plain(x, scale, scale_table, index)
        shift, shift_table = plain(x, shift, shift_table, index)
        by = (scale, scale_table, shift, shift_table, widened(x, weight), widened(x, bias))
        return apply(_GatedResidualAdaNorm, x, y, gate, gate_table, *by, *options)
    except RuntimeError as error:
        modulations = {"gate": gate, "gate_table": gate_table, "shift": shift, "shift_table": shift_table}
        affine_of = {"weight": weight, "bias": bias}
        explain(error, NAME, 2, x, y=y, scale=scale, scale_table=scale_table, **modulations, **affine_of, index=index)
        raise


__all__ = ["gated_residual_ada_norm"]
