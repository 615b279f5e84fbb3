"""Activation functions, a bias added first: `torch.ops.oxiwarp.activation` and its public functions."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import is_exact
from ._function import Function, apply
from ._once_differentiable import once
from ._register import FLOATS, OPTIONAL, define, dtype_name, explain, needs_grad, refuse_types, write
from ._roles import Role

# The operators' `kind`. GELU's erf has other last bits in torch's builds with CUDA 13.2 and newer.
CUDA = tuple(int(part) for part in (torch.version.cuda or "0.0").split(".")[:2])
GELU = 1 if CUDA >= (13, 2) else 0
GELU_TANH, GELU_NEW, GELU_FAST, GELU_QUICK, SILU, FATRELU = range(2, 8)


def _fake(x: Tensor, bias: Tensor | None, kind: int, exact: bool) -> Tensor:
    check("activation", x, bias, 1)
    return x.new_empty(x.shape)


def _fake_out(x: Tensor, bias: Tensor | None, kind: int, exact: bool, out: Tensor) -> None:
    check("activation", x, bias, 1, out=out)


def _fake_backward(dy: Tensor, x: Tensor, bias: Tensor | None, kind: int, exact: bool) -> Tensor:
    check("activation_backward", x, bias, 1, dy=dy)
    return x.new_empty(x.shape)


op = define("activation(Tensor x, Tensor? bias, int kind, bool exact) -> Tensor", _fake, x=Role.ROWS, bias=Role.BIAS)
op_out = define(
    "activation_out(Tensor x, Tensor? bias, int kind, bool exact, Tensor(a!) out) -> ()",
    _fake_out,
    x=Role.ROWS,
    bias=Role.BIAS,
    out=Role.OUTPUT,
)
op_backward = define(
    "activation_backward(Tensor dy, Tensor x, Tensor? bias, int kind, bool exact) -> Tensor",
    _fake_backward,
    dy=Role.ROWS,
    x=Role.ROWS,
    bias=Role.BIAS,
)


def check(name: str, x: Tensor, bias: Tensor | None, halves: int, **others: Tensor) -> None:
    """Raise RuntimeError for inputs that the kernels refuse; the bias has `halves` times `x`'s columns."""
    if x.dtype not in FLOATS:
        raise RuntimeError(f"{name}: x is {dtype_name(x.dtype)}, expected f32, f16 or bf16")
    for other, tensor in (*others.items(), *([("bias", bias)] if bias is not None else [])):
        if tensor.device != x.device:
            raise RuntimeError(f"{name}: {other} is on {tensor.device}, expected {x.device}, the device of x")
        if tensor.dtype != x.dtype:
            raise RuntimeError(f"{name}: {other} is {dtype_name(tensor.dtype)}, expected {FLOATS[x.dtype]}")
    for other, tensor in others.items():
        if tensor.shape != x.shape:
            raise RuntimeError(f"{name}: {other} has shape {list(tensor.shape)}, expected {list(x.shape)}")
    if bias is None:
        return
    if x.dim() == 0:
        raise RuntimeError(f"{name}: x has shape [], expected at least one dimension where there is a bias")
    if bias.dim() != 1 or bias.shape[0] != halves * x.shape[-1]:
        raise RuntimeError(f"{name}: bias has shape {list(bias.shape)}, expected [{halves * x.shape[-1]}]")


def sum_rows(gradient: Tensor) -> Tensor:
    """The gradient of a bias: `gradient`, summed in float32 over all dimensions but the last, by torch."""
    return gradient.reshape(-1, gradient.shape[-1]).sum(0)


class Activation(Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(x: Tensor, bias: Tensor | None, kind: int, exact: bool) -> Tensor:
        return op(x, bias, kind, exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, bias, ctx.kind, ctx.exact = inputs
        ctx.save_for_backward(x, bias)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx = op_backward(dy.contiguous(), x, bias, ctx.kind, ctx.exact)
        return (dx if ctx.needs_input_grad[0] else None, sum_rows(dx) if ctx.needs_input_grad[1] else None, None, None)


def _call(name: str, kind: int, x: Tensor, bias: Tensor | None, mode: str, out: Tensor | None) -> Tensor:
    if not (isinstance(x, Tensor) and isinstance(bias, OPTIONAL) and isinstance(out, OPTIONAL)):
        refuse_types(name, {"x": x}, {"bias": bias, "out": out})
    exact = is_exact(name, mode)
    try:
        if out is not None:
            write(name, op_out, (x, bias, kind, exact), (out,), needs_grad(x, bias))
            return out
        if needs_grad(x, bias):
            return apply(Activation, x, bias, kind, exact)
        return op(x, bias, kind, exact)
    except RuntimeError as error:
        explain(error, name, 1, x, bias=bias)
        raise


def gelu(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.gelu(x + bias)`: `v * (1 + erf(v / sqrt(2))) / 2`, in one pass.

    The other functions of this file take the same arguments, return and raise the same.

    Args:
        x: float32, float16 or bfloat16, on the CPU or a CUDA device. A contiguous tensor may have any shape; with a
            bias or gaps the last dimension must have stride 1, and the leading ones may be strided as far as two
            strides describe them (slices and chunks of a contiguous tensor). If `x` and `out` both have gaps, these
            must be between the same groups of rows. No elements is fine.
        bias: contiguous `[N]` for `x` of shape `[..., N]`, in `x`'s dtype, or None. It is added first.
        mode: "exact", roundings where torch's operators make them: on a GPU the same bits as torch's eager chain, for
            every input. "fast", one rounding at the end, and no IEEE division: within a few units in the last place
            of float32 before it for inputs from -20 on. Below, the relative error of functions with an exponential
            grows to 90 units; `silu` is 0 below -88.7, as torch's.
        out: a tensor of `x`'s shape, dtype and device to write to, such as a slice of a wider buffer; it must not
            overlap an input. Without gradients.

    Returns:
        A contiguous tensor of `x`'s shape and dtype, or `out`.

    Gradients are computed in float32 from `x`, and rounded once; the bias's is the sum of `x`'s over the rows, by
    torch. (Eager autograd of a chain rounds after each operator.) There is no second derivative. A CUDA tensor runs on
    torch's current stream and can be captured in a CUDA graph; a CPU tensor runs the same kernel on the CPU executor,
    whose exponentials are correctly rounded, so that its last bits are its own.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75.
        ValueError: for another `mode`.
        torch.OutOfMemoryError: where the output does not fit.
        TypeError: for an `x`, `bias` or `out` that is no tensor.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415).
    """
    return _call("gelu", GELU, x, bias, mode, out)


def gelu_tanh(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.gelu(x + bias, approximate="tanh")`.

    That is `v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2`; arguments, result and errors as `gelu`.
    """
    return _call("gelu_tanh", GELU_TANH, x, bias, mode, out)


def gelu_new(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """transformers' `NewGELUActivation`: `gelu_tanh`'s formula in eight operators of torch.

    That is `0.5 * v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * pow(v, 3))))`, each rounded in mode "exact"; arguments,
    result and errors as `gelu`.
    """
    return _call("gelu_new", GELU_NEW, x, bias, mode, out)


def gelu_fast(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """transformers' `FastGELUActivation`: `gelu_tanh`'s formula in another order of operators.

    That is `0.5 * v * (1 + tanh(v * 0.7978845608 * (1 + 0.044715 * v * v)))`, each rounded in mode "exact"; arguments,
    result and errors as `gelu`.
    """
    return _call("gelu_fast", GELU_FAST, x, bias, mode, out)


def gelu_quick(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """transformers' `QuickGELUActivation`, diffusers' `ApproximateGELU`: `v * sigmoid(1.702 * v)`.

    Each of the three operators is rounded in mode "exact"; arguments, result and errors as `gelu`.
    """
    return _call("gelu_quick", GELU_QUICK, x, bias, mode, out)


def silu(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.silu(x + bias)`: `v / (1 + exp(-v))`; arguments, result and errors as `gelu`."""
    return _call("silu", SILU, x, bias, mode, out)


__all__ = ["gelu", "gelu_fast", "gelu_new", "gelu_quick", "gelu_tanh", "silu"]
