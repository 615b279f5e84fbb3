"""Gated activations, GEGLU and SwiGLU among them: `torch.ops.oxiwarp.gated_activation` and its public functions."""

from typing import Any

from torch import Tensor

from ._checks.rows import is_exact
from ._function import Function, apply
from ._once_differentiable import once
from ._register import OPTIONAL, define, explain, needs_grad, refuse_types, write
from ._roles import Role
from .activation import FATRELU, GELU, GELU_TANH, SILU, check, sum_rows

_ARGUMENTS = "Tensor x, Tensor? second, Tensor? bias, int kind, bool gate_first, float threshold, bool exact"
_ROLES = {"x": Role.ROWS, "second": Role.ROWS, "bias": Role.BIAS}
ROLES = {"gate": Role.ROWS, "up": Role.ROWS}


def _check(
    name: str, x: Tensor, second: Tensor | None, bias: Tensor | None, gate_first: bool, kind: int, threshold: float
) -> int:
    """Raise for inputs that the kernels refuse; otherwise return the columns of a half."""
    if second is not None:
        check(name, x, bias, 2, **{"up" if gate_first else "gate": second})
    else:
        check(name, x, bias, 1)
    if x.dim() == 0:
        raise RuntimeError(f"{name}: x has shape [], expected at least one dimension")
    if second is None and x.shape[-1] % 2:
        raise RuntimeError(
            f"{name}: x has shape {list(x.shape)}, expected an even last dimension: two halves, or a second tensor"
        )
    if kind == FATRELU and threshold != threshold:
        raise RuntimeError(f"{name}: threshold is NaN, expected a number or an infinity")
    return x.shape[-1] if second is not None else x.shape[-1] // 2


def _fake(
    x: Tensor, second: Tensor | None, bias: Tensor | None, kind: int, gate_first: bool, threshold: float, exact: bool
) -> Tensor:
    cols = _check("gated_activation", x, second, bias, gate_first, kind, threshold)
    return x.new_empty(*x.shape[:-1], cols)


def _fake_out(
    x: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    kind: int,
    gate_first: bool,
    threshold: float,
    exact: bool,
    out: Tensor,
) -> None:
    cols = _check("gated_activation", x, second, bias, gate_first, kind, threshold)
    check("gated_activation", x[..., :cols], None, 1, out=out)


def _fake_backward(dy: Tensor, x: Tensor, second: Tensor | None, bias: Tensor | None, *how: Any) -> Tensor:
    kind, gate_first, threshold, _ = how
    cols = _check("gated_activation_backward", x, second, bias, gate_first, kind, threshold)
    return x.new_empty(*x.shape[:-1], 2 * cols)


op = define(f"gated_activation({_ARGUMENTS}) -> Tensor", _fake, **_ROLES)
op_out = define(f"gated_activation_out({_ARGUMENTS}, Tensor(a!) out) -> ()", _fake_out, **_ROLES, out=Role.OUTPUT)
op_backward = define(
    f"gated_activation_backward(Tensor dy, {_ARGUMENTS}) -> Tensor", _fake_backward, dy=Role.ROWS, **_ROLES
)


class GatedActivation(Function):
    """The operator with its gradients: those of two tensors are two halves of one."""

    @staticmethod
    def forward(
        x: Tensor,
        second: Tensor | None,
        bias: Tensor | None,
        kind: int,
        gate_first: bool,
        threshold: float,
        exact: bool,
    ) -> Tensor:
        return op(x, second, bias, kind, gate_first, threshold, exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, second, bias, *ctx.how = inputs
        ctx.save_for_backward(x, second, bias)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, second, bias = ctx.saved_tensors
        dx = op_backward(dy.contiguous(), x, second, bias, *ctx.how)
        dfirst, dsecond = (dx, None) if second is None else dx.chunk(2, -1)
        wants_first, wants_second, wants_bias, *_ = ctx.needs_input_grad
        return (
            dfirst if wants_first else None,
            dsecond if wants_second else None,
            sum_rows(dx) if wants_bias else None,
            *[None] * len(ctx.how),
        )


def _call(
    name: str,
    kind: int,
    x: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    mode: str,
    out: Tensor | None,
    *,
    gate_first: bool,
    threshold: float = 0.0,
) -> Tensor:
    plain = isinstance(second, OPTIONAL) and isinstance(bias, OPTIONAL) and isinstance(out, OPTIONAL)
    if not (isinstance(x, Tensor) and plain):
        refuse_types(name, {"x": x}, {"up" if gate_first else "gate": second, "bias": bias, "out": out})
    exact = is_exact(name, mode)
    try:
        if out is not None:
            write(
                name,
                op_out,
                (x, second, bias, kind, gate_first, threshold, exact),
                (out,),
                needs_grad(x, second, bias),
            )
            return out
        if needs_grad(x, second, bias):
            return apply(GatedActivation, x, second, bias, kind, gate_first, threshold, exact)
        return op(x, second, bias, kind, gate_first, threshold, exact)
    except RuntimeError as error:
        explain(error, name, 1, x, **{"up" if gate_first else "gate": second, "bias": bias})
        raise


def geglu(
    x: Tensor,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    mode: str = "exact",
    out: Tensor | None = None,
) -> Tensor:
    """`first * gelu(second)` over the halves of the last dimension, in one pass: diffusers' `GEGLU` after its linear.

    The other functions of this file take the same arguments but `approximate`, return and raise the same; the names say
    which half the activation is applied to.

    Args:
        x: float32, float16 or bfloat16, `[..., 2 * H]`, both halves; or `[..., H]`, the first of two tensors. The last
            dimension must have stride 1; the leading ones may be strided as far as two strides describe them (slices
            and chunks of a contiguous tensor). If two of `x`, `gate` and `out` have gaps, these must be between the
            same groups of rows. No rows is fine.
        gate: the second half, where it is a tensor of its own: `x`'s shape and dtype. (Where the first half is the
            gate, as in `silu_and_mul`, this argument is called `up`.)
        bias: `[2 * H]` in `x`'s dtype, or None: added to the halves first, in their order.
        approximate: "none" for erf, or "tanh", as `torch.nn.functional.gelu`'s.
        mode: "exact", roundings where torch's operators make them (the sums with the bias, the activation, the
            product): on a GPU the same bits as the eager chain. "fast", one rounding at the end.
        out: a tensor `[..., H]` of `x`'s dtype and device to write to, such as a slice of a wider buffer; it must not
            overlap an input. Without gradients.

    Returns:
        A contiguous tensor `[..., H]` of `x`'s dtype, or `out`.

    Gradients are computed in float32 from the inputs, and rounded once; those of two tensors are the halves of one
    buffer, and the bias's is their sum over the rows, by torch. There is no second derivative. Streams, CUDA graphs and
    the CPU executor as for `gelu`.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75.
        ValueError: for another `mode` or `approximate`.
        torch.OutOfMemoryError: where the output does not fit.
        TypeError: for an `x`, `gate`, `bias` or `out` that is no tensor.

    Source: Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202).
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    kind = GELU if approximate == "none" else GELU_TANH
    return _call("geglu", kind, x, gate, bias, mode, out, gate_first=False)


def swiglu(
    x: Tensor, gate: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """`first * silu(second)`: diffusers' `SwiGLU` after its linear. Arguments, result and errors as `geglu`."""
    return _call("swiglu", SILU, x, gate, bias, mode, out, gate_first=False)


def mul_and_silu(
    x: Tensor, gate: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """`first * silu(second)`: another name of `swiglu`, that of vLLM's kernels and of kernels-community."""
    return _call("mul_and_silu", SILU, x, gate, bias, mode, out, gate_first=False)


def silu_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """`silu(first) * second`: LLaMA's MLP between its linears. Arguments, result and errors as `geglu`."""
    return _call("silu_and_mul", SILU, x, up, bias, mode, out, gate_first=True)


def gelu_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """`gelu(first) * second`. Arguments, result and errors as `geglu`."""
    return _call("gelu_and_mul", GELU, x, up, bias, mode, out, gate_first=True)


def gelu_tanh_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """`gelu(first, approximate="tanh") * second`: Gemma's MLP. Arguments, result and errors as `geglu`."""
    return _call("gelu_tanh_and_mul", GELU_TANH, x, up, bias, mode, out, gate_first=True)


def fatrelu_and_mul(
    x: Tensor,
    up: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    threshold: float = 0.0,
    mode: str = "exact",
    out: Tensor | None = None,
) -> Tensor:
    """`threshold(first, threshold, 0) * second`: 0 where the first half is not greater than `threshold`.

    The threshold is rounded to `x`'s dtype, as torch's CUDA kernel of threshold does; 0 gives ReGLU, infinities are
    taken as torch takes them, and NaN is refused. Arguments, result
    and errors as `geglu`.
    """
    return _call("fatrelu_and_mul", FATRELU, x, up, bias, mode, out, gate_first=True, threshold=threshold)


__all__ = ["fatrelu_and_mul", "geglu", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu", "silu_and_mul", "swiglu"]
