"""Gated activations such as GEGLU and SwiGLU: `torch.ops.oxiwarp.gated_activation` and its public functions.

`first` and `second` are the two halves of the input, and `f` is an activation function. The operator computes
`first * f(second)`, or `f(first) * second` if `gate_first` is True.
"""

from typing import Any

from torch import Tensor

from ._checks.rows import is_exact
from ._function import Function, apply
from ._once_differentiable import once
from ._register import OPTIONAL, define, explain, needs_grad, refuse_types, write
from ._roles import Role
from .activation import FATRELU, GELU, GELU_TANH, RELU2, SIGMOID, SILU, check, sum_rows

_ARGUMENTS = "Tensor x, Tensor? second, Tensor? bias, int kind, bool gate_first, float threshold, bool exact"
_ROLES = {"x": Role.ROWS, "second": Role.ROWS, "bias": Role.BIAS}
ROLES = {"gate": Role.ROWS, "up": Role.ROWS}


def _check(
    name: str, x: Tensor, second: Tensor | None, bias: Tensor | None, gate_first: bool, kind: int, threshold: float
) -> int:
    """Return how many columns each half of a gated activation's input has.

    Raise RuntimeError if the kernels do not support one of the inputs.
    """
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
    """Autograd function of the gated activation.

    The backward kernel writes the gradients of both halves into one tensor, next to each other.
    """

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
    """Check the types of the arguments that the public function `name` received, and call the operator."""
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
    """Compute GEGLU of the two halves of the last dimension: `first * gelu(second)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. Without `gate`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `gate`, the shape is `[..., H]`. If the last stride is
            not 1, a contiguous copy is made first. Otherwise, `Tensor.view` must be able to merge all dimensions except
            the last into at most two, as in slices and chunks of a contiguous tensor. `Tensor.view` must be able to
            merge the same dimensions of `gate` and `out`.
        gate (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        approximate (str): "none" or "tanh", as for `torch.nn.functional.gelu`.
        mode (str): "exact" rounds after each torch operator, as eager torch does: after adding the bias,
            after the activation, and after the product. "fast" rounds once, at the end.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written. It may
            be a slice of a wider buffer. It must not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            `out` is given and an input requires grad.
        ValueError: `mode` or `approximate` has an unknown value.
        TypeError: `x`, `gate`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. If
            `gate` is given, the gradients of `x` and `gate` are the two halves of one tensor. The gradient of
            `bias` is the sum of these rounded gradients over the rows. oxiwarp computes this sum with
            `Tensor.sum`, after the kernel. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The operation after the linear layer in diffusers' `GEGLU`; Shazeer, "GLU Variants Improve
        Transformer" (arXiv:2002.05202).

    Example:
        >>> oxiwarp.geglu(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.1587,  3.9090]])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    kind = GELU if approximate == "none" else GELU_TANH
    return _call("geglu", kind, x, gate, bias, mode, out, gate_first=False)


def swiglu(
    x: Tensor, gate: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute SwiGLU of the two halves of the last dimension: `first * silu(second)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `gate`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `gate`, the shape is `[..., H]`.
        gate (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `gate`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The operation after the linear layer in diffusers' `SwiGLU`; arXiv:2002.05202.

    Example:
        >>> oxiwarp.swiglu(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.2689,  3.5232]])
    """
    return _call("swiglu", SILU, x, gate, bias, mode, out, gate_first=False)


def mul_and_silu(
    x: Tensor, gate: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `first * silu(second)`, where `first` and `second` are the two halves of the last dimension.
    `swiglu` has the same formula.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `gate`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `gate`, the shape is `[..., H]`.
        gate (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `gate`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        `MulAndSilu` of vLLM and of kernels-community.

    Example:
        >>> oxiwarp.mul_and_silu(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.2689,  3.5232]])
    """
    return _call("mul_and_silu", SILU, x, gate, bias, mode, out, gate_first=False)


def silu_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `silu(first) * second`, where `first` and `second` are the two halves of the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The operation between the linear layers of LLaMA's MLP; `SiluAndMul` of vLLM; arXiv:2002.05202.

    Example:
        >>> oxiwarp.silu_and_mul(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.7311,  3.5232]])
    """
    return _call("silu_and_mul", SILU, x, up, bias, mode, out, gate_first=True)


def gelu_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `gelu(first) * second`, where `first` and `second` are the two halves of the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        `GeluAndMul` of vLLM and of kernels-community; arXiv:2002.05202.

    Example:
        >>> oxiwarp.gelu_and_mul(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.8413,  3.9090]])
    """
    return _call("gelu_and_mul", GELU, x, up, bias, mode, out, gate_first=True)


def gelu_tanh_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `gelu(first, approximate="tanh") * second`, where `first` and `second` are the two halves of
    the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The operation between the linear layers of Gemma's MLP; `GeluTanhAndMul` of kernels-community;
        arXiv:2002.05202.

    Example:
        >>> oxiwarp.gelu_tanh_and_mul(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.8412,  3.9092]])
    """
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
    """Compute `torch.nn.functional.threshold(first, threshold, 0) * second`.

    If `up` is given, `first` is `x` and `second` is `up`. Otherwise, they are the two halves of the last
    dimension of `x`.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        threshold (float): an element of `first` is replaced by 0 if it is not greater than `threshold`. With
            a threshold of 0, the function computes ReGLU.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad, or if `threshold` is NaN.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to that of eager torch. For the error bounds
            of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.
        Special values: `threshold` is rounded to the dtype of `x`, as in torch's CUDA kernel. It may be
            infinite, but not NaN.

    Source:
        `FatreluAndMul` of vLLM and of kernels-community; `torch.nn.functional.threshold`.

    Example:
        >>> oxiwarp.fatrelu_and_mul(torch.tensor([[0.5, 2.0, 3.0, 4.0]]), threshold=1.0)
        tensor([[0., 8.]])
    """
    return _call("fatrelu_and_mul", FATRELU, x, up, bias, mode, out, gate_first=True, threshold=threshold)


def relu2_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `relu(first)**2 * second`, where `first` and `second` are the two halves of the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to
            `torch.square(torch.relu(first)) * second`. For the error bounds of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The operation between the linear layers of BitNet's MLP; `ReLUSquaredActivation` of transformers;
        arXiv:2109.08668.

    Example:
        >>> oxiwarp.relu2_and_mul(torch.tensor([[3.0, -2.0, -1.0, 2.0]]))
        tensor([[-9.,  0.]])
    """
    return _call("relu2_and_mul", RELU2, x, up, bias, mode, out, gate_first=True)


def sigmoid_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `sigmoid(first) * second`, where `first` and `second` are the two halves of the last dimension.

    Args:
        x (Tensor): float32, float16 or bfloat16, with the strides that `geglu` supports. Without `up`, the shape is
            `[..., 2 * H]`, and `x` contains both halves. With `up`, the shape is `[..., H]`.
        up (Tensor | None): second half, with the shape and dtype of `x`. If it is given, `x` is the first
            half.
        bias (Tensor | None): shape `[2 * H]`, contiguous, in the dtype of `x`. `bias[:H]` is added to `first` and
            `bias[H:]` to `second`, before the activation.
        mode (str): "exact" rounds after each torch operator, as eager torch does. "fast" rounds only the
            result.
        out (Tensor | None): tensor `[..., H]` with the dtype and device of `x`, to which the result is written.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor of shape `[..., H]` with the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported. Also raised if `out` is given and an input
            requires grad.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `up`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: On a GPU, the result of `mode="exact"` is bitwise equal to `torch.sigmoid(first) * second`. The
            function `torch.nn.functional.glu` differs: it applies sigmoid to the second half, and rounds only the
            result. For the error bounds of `mode="fast"`, see `gelu`.
        Gradients: The gradients of both factors are computed in float32 from the inputs and rounded once. The gradient
            of `bias` is the sum of these rounded gradients over the rows, computed with `Tensor.sum` after the kernel.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The gate that Krea 2, Qwen3-Next and other models apply to the attention output; the gated linear unit
        of Dauphin et al. (arXiv:1612.08083).

    Example:
        >>> oxiwarp.sigmoid_and_mul(torch.tensor([[1.0, 2.0, -1.0, 2.0]]))
        tensor([[-0.7311,  1.7616]])
    """
    return _call("sigmoid_and_mul", SIGMOID, x, up, bias, mode, out, gate_first=True)


__all__ = [
    "fatrelu_and_mul",
    "geglu",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "mul_and_silu",
    "relu2_and_mul",
    "sigmoid_and_mul",
    "silu_and_mul",
    "swiglu",
]
