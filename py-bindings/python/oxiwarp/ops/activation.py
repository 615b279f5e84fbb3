"""Activation functions of `x + bias`: `torch.ops.oxiwarp.activation` and its public functions."""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import is_exact
from ._function import Function, apply
from ._once_differentiable import once
from ._register import FLOATS, OPTIONAL, define, dtype_name, explain, needs_grad, refuse_types, write
from ._roles import Role

# The constants below are the values of the operators' argument `kind`, which selects the activation function.
# The values 0 and 1 both select GELU, with different implementations of `erf`, whose results differ in the
# last bits. The value 1 selects the `erf` of torch builds for CUDA 13.2 and newer. The value 0 selects the
# `erf` of builds for older CUDA versions.
CUDA = tuple(int(part) for part in (torch.version.cuda or "0.0").split(".")[:2])
GELU = 1 if CUDA >= (13, 2) else 0
GELU_TANH, GELU_NEW, GELU_FAST, GELU_QUICK, SILU, FATRELU, SIGMOID, RELU2 = range(2, 10)


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
    """Raise RuntimeError if the kernels do not support one of the inputs.

    `bias` must have shape `[halves * x.shape[-1]]`. For a gated activation whose input is two tensors, `x` is
    the first of them and `halves` is 2. Otherwise, `halves` is 1. `others` maps names to further tensors,
    which must have the shape, dtype and device of `x`.
    """
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
    """Return the gradient of a bias: the sum of `gradient` over all dimensions except the last, accumulated
    in float32.
    """
    return gradient.reshape(-1, gradient.shape[-1]).sum(0)


class Activation(Function):
    """Autograd function of the activation operator. It saves `x` and the bias for the backward."""

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
    """Compute GELU of `v = x + bias`: `v * (1 + erf(v / sqrt(2))) / 2`.

    If there is a bias, one kernel adds it and applies GELU.

    Args:
        x (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. If `x` is contiguous and there is no
            bias, `x` may have any shape, and may be empty. Otherwise the shape is `[..., N]`. If the last stride is not
            1, a contiguous copy is made first. If it is 1, `Tensor.view` must be able to merge all dimensions except
            the last into at most two, as in slices and chunks of a contiguous tensor. If `out` is given, `Tensor.view`
            must be able to merge the same dimensions of `out`.
        bias (Tensor | None): shape `[N]`, contiguous, in the dtype of `x`. GELU is applied to `x + bias`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written. It may be a
            slice of a wider buffer. It must not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            `out` is given and an input requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input.
            `mode="fast"` computes in float32 with an approximate division, and rounds only the result. For inputs of
            -20 or more, the error before this rounding is a few units in the last place (ulp) of float32. Activation
            functions that compute an exponential, such as `silu`, have errors of up to 90 ulp for inputs below -20. For
            inputs below -88.7, `silu` returns 0, as in torch.
        Gradients: The gradient of `x` is computed in float32 and rounded once. Torch's autograd rounds after each
            operator instead. The gradient of `bias` is the sum of the rounded gradient of `x` over the rows, computed
            with `Tensor.sum` after the kernel. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.gelu`; Hendrycks and Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415).

    Example:
        >>> oxiwarp.gelu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1587,  0.0000,  1.9545])
    """
    return _call("gelu", GELU, x, bias, mode, out)


def gelu_tanh(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute tanh-approximated GELU of `v = x + bias`: `v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * v**3))) / 2`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input. For
            the error bounds of `mode="fast"`, see `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.gelu(x + bias, approximate="tanh")`; arXiv:1606.08415.

    Example:
        >>> oxiwarp.gelu_tanh(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1588,  0.0000,  1.9546])
    """
    return _call("gelu_tanh", GELU_TANH, x, bias, mode, out)


def gelu_new(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute GELU of `v = x + bias`: `0.5 * v * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 * pow(v, 3))))`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input.
            "exact" rounds after each of the eight operators of `NewGELUActivation`. For the error bounds of
            `mode="fast"`, see `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        transformers' `NewGELUActivation`. Its formula is mathematically equal to the formula of `gelu_tanh`.

    Example:
        >>> oxiwarp.gelu_new(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1588,  0.0000,  1.9546])
    """
    return _call("gelu_new", GELU_NEW, x, bias, mode, out)


def gelu_fast(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute GELU of `v = x + bias`: `0.5 * v * (1 + tanh(v * 0.7978845608 * (1 + 0.044715 * v * v)))`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input.
            "exact" rounds after each operator of `FastGELUActivation`. For the error bounds of `mode="fast"`, see
            `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        transformers' `FastGELUActivation`. Its formula is mathematically equal to the formula of `gelu_tanh`,
        but the order of the operations differs.

    Example:
        >>> oxiwarp.gelu_fast(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1588,  0.0000,  1.9546])
    """
    return _call("gelu_fast", GELU_FAST, x, bias, mode, out)


def gelu_quick(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute sigmoid-approximated GELU of `v = x + bias`: `v * sigmoid(1.702 * v)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input.
            "exact" rounds after each of the three operators of `QuickGELUActivation`. For the error bounds of
            `mode="fast"`, see `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        transformers' `QuickGELUActivation` and diffusers' `ApproximateGELU`.

    Example:
        >>> oxiwarp.gelu_quick(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.1542,  0.0000,  1.9357])
    """
    return _call("gelu_quick", GELU_QUICK, x, bias, mode, out)


def silu(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute SiLU of `v = x + bias`: `v / (1 + exp(-v))`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch, for every input. For
            the error bounds of `mode="fast"`, see `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.silu`.

    Example:
        >>> oxiwarp.silu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([-0.2689,  0.0000,  1.7616])
    """
    return _call("silu", SILU, x, bias, mode, out)


def relu2(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None) -> Tensor:
    """Compute the squared ReLU of `v = x + bias`: `relu(v) * relu(v)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the shapes and strides that `gelu` supports.
        bias (Tensor | None): shape `[N]` for `x` of shape `[..., N]`, contiguous, in the dtype of `x`.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result. Without a bias, the results of both modes are bitwise equal.
        out (Tensor | None): tensor with the shape, dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to `torch.square(torch.relu(x + bias))` for
            every input. For the error bounds of `mode="fast"`, see `gelu`.
        Gradients: The gradient of `x` is computed in float32 and rounded once. The gradient of `bias` is the sum of the
            rounded gradient of `x` over the rows, computed with `Tensor.sum` after the kernel. A second derivative and
            forward-mode AD raise RuntimeError.

    Source:
        transformers' `ReLUSquaredActivation`; So et al., "Primer" (arXiv:2109.08668).

    Example:
        >>> oxiwarp.relu2(torch.tensor([-1.0, 0.0, 3.0]))
        tensor([0., 0., 9.])
    """
    return _call("relu2", RELU2, x, bias, mode, out)


__all__ = ["gelu", "gelu_fast", "gelu_new", "gelu_quick", "gelu_tanh", "relu2", "silu"]
