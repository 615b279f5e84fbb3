"""The matrix product `x @ weight.T + bias` and its epilogues: `torch.ops.oxiwarp.linear`, `linear_activation`,
`linear_gated_activation` and `linear_gated_residual`, and their public function.
"""

from typing import Any, NamedTuple

from torch import Tensor

from ._checks.rows import check_modulation, is_exact
from ._function import Function, apply
from ._mixed import chosen
from ._modulation_backward import Modulation, gated
from ._once_differentiable import once
from ._product import check_product, matrix, product_gradients, transposed
from ._register import (
    OPTIONAL,
    define,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
    write,
)
from ._roles import Role
from .activation import GELU, GELU_FAST, GELU_NEW, GELU_QUICK, GELU_TANH, SILU
from .activation import op_backward as activation_backward
from .gated_activation import op_backward as gated_activation_backward

ACTIVATIONS = {
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "gelu_new": GELU_NEW,
    "gelu_fast": GELU_FAST,
    "gelu_quick": GELU_QUICK,
    "silu": SILU,
}
"""The activation functions, by the name of their public function. The value is the operators' argument `kind`."""
GATED_ACTIVATIONS = {
    "geglu": (GELU, False),
    "swiglu": (SILU, False),
    "mul_and_silu": (SILU, False),
    "silu_and_mul": (SILU, True),
    "gelu_and_mul": (GELU, True),
    "gelu_tanh_and_mul": (GELU_TANH, True),
}
"""The gated activations, by the name of their public function. The values are the operators' arguments `kind` and
`gate_first`."""


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(check_product(x, weight, bias))


def _fake_out(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    check_product(x, weight, bias, out=out)


def _fake_activation(x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, exact: bool) -> Tensor:
    return x.new_empty(check_product(x, weight, bias))


def _fake_activation_out(x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, exact: bool, out: Tensor) -> None:
    check_product(x, weight, bias, out=out)


def _fake_gated_activation(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, gate_first: bool, exact: bool
) -> Tensor:
    return x.new_empty(check_product(x, weight, bias, 2))


def _fake_gated_activation_out(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, gate_first: bool, exact: bool, out: Tensor
) -> None:
    check_product(x, weight, bias, 2, out=out)


def _fake_gated_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, gate: Tensor | None, exact: bool
) -> Tensor:
    shape = check_product(x, weight, bias, residual=residual)
    check_modulation("linear", "gate", gate, None, residual, per_row=True)
    return x.new_empty(shape)


def _fake_gated_residual_out(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, gate: Tensor | None, exact: bool, out: Tensor
) -> None:
    check_product(x, weight, bias, residual=residual, out=out)
    check_modulation("linear", "gate", gate, None, residual, per_row=True)


_ARGUMENTS = "Tensor x, Tensor weight, Tensor? bias"
_ROLES = {"x": Role.ROWS, "weight": Role.MATRIX, "bias": Role.BIAS}
_RESIDUAL = {"residual": Role.PRODUCT, "gate": Role.PRODUCT_GATE}
_OUT = "Tensor(a!) out) -> ()"

op = define(f"linear({_ARGUMENTS}) -> Tensor", _fake, **_ROLES)
op_out = define(f"linear_out({_ARGUMENTS}, {_OUT}", _fake_out, **_ROLES, out=Role.OUTPUT)
op_activation = define(f"linear_activation({_ARGUMENTS}, int kind, bool exact) -> Tensor", _fake_activation, **_ROLES)
op_activation_out = define(
    f"linear_activation_out({_ARGUMENTS}, int kind, bool exact, {_OUT}",
    _fake_activation_out,
    **_ROLES,
    out=Role.OUTPUT,
)
op_gated_activation = define(
    f"linear_gated_activation({_ARGUMENTS}, int kind, bool gate_first, bool exact) -> Tensor",
    _fake_gated_activation,
    **_ROLES,
)
op_gated_activation_out = define(
    f"linear_gated_activation_out({_ARGUMENTS}, int kind, bool gate_first, bool exact, {_OUT}",
    _fake_gated_activation_out,
    **_ROLES,
    out=Role.OUTPUT,
)
op_gated_residual = define(
    f"linear_gated_residual({_ARGUMENTS}, Tensor residual, Tensor? gate, bool exact) -> Tensor",
    _fake_gated_residual,
    **_ROLES,
    **_RESIDUAL,
)
op_gated_residual_out = define(
    f"linear_gated_residual_out({_ARGUMENTS}, Tensor residual, Tensor? gate, bool exact, {_OUT}",
    _fake_gated_residual_out,
    **_ROLES,
    **_RESIDUAL,
    out=Role.OUTPUT,
)


class _Linear(Function):
    """Autograd function that saves `x` for the gradient of the weight, and the weight for the gradient of
    `x`.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return op(matrix(x), matrix(weight), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.transposed = transposed(x, weight)
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return product_gradients(dy, x, weight, ctx.transposed, ctx.needs_input_grad)


class _RecomputedProduct(Function):
    """Base class of autograd functions whose backward computes the matrix product again. It saves the operands of the
    product, and stores the other arguments in `ctx.how`.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, *ctx.how = inputs
        ctx.transposed = transposed(x, weight)
        ctx.save_for_backward(x, weight, bias)


class _LinearActivation(_RecomputedProduct):
    """Autograd function of a matrix product followed by an activation. The backward computes the product again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, exact: bool) -> Tensor:
        return op_activation(matrix(x), matrix(weight), bias, kind, exact)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        product = op(matrix(x), matrix(weight), bias)
        dproduct = activation_backward(dy.contiguous(), product, None, *ctx.how)
        return *product_gradients(dproduct, x, weight, ctx.transposed, ctx.needs_input_grad[:3]), None, None


class _LinearGatedActivation(_RecomputedProduct):
    """Autograd function of a matrix product followed by a gated activation. The backward computes the product again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, kind: int, gate_first: bool, exact: bool) -> Tensor:
        return op_gated_activation(matrix(x), matrix(weight), bias, kind, gate_first, exact)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        kind, gate_first, exact = ctx.how
        product = op(matrix(x), matrix(weight), bias)
        dproduct = gated_activation_backward(dy.contiguous(), product, None, None, kind, gate_first, 0.0, exact)
        wanted = ctx.needs_input_grad[:3]
        return *product_gradients(dproduct, x, weight, ctx.transposed, wanted), None, None, None


class _LinearGatedResidual(Function):
    """Autograd function of a matrix product in a gated residual, `residual + gate * product`. For the gradient of the
    gate, the backward computes the product again.
    """

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, gate: Tensor | None, exact: bool
    ) -> Tensor:
        return op_gated_residual(matrix(x), matrix(weight), bias, matrix(residual), gate, exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, _, gate, _ = inputs
        of_x, of_weight, _, _, of_gate, _ = ctx.needs_input_grad
        ctx.transposed = transposed(x, weight)
        ctx.save_for_backward(
            x if of_weight or of_gate else None, weight if of_x or of_gate else None, bias if of_gate else None, gate
        )

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, gate = ctx.saved_tensors
        *of_product, of_residual, of_gate, _ = ctx.needs_input_grad
        dproduct: Tensor | None = dy
        dgate: Tensor | None = None
        if gate is not None:
            # If the gate needs no gradient, the function `gated` uses only the dtype of the product, so the
            # product is not computed again.
            product = op(matrix(x), matrix(weight), bias) if of_gate else dy
            dproduct, dgate, _ = gated(dy, product, Modulation(gate, None), (any(of_product), of_gate, False))
        gradients: tuple[Tensor | None, ...] = (None, None, None)
        if dproduct is not None:
            gradients = product_gradients(dproduct, x, weight, ctx.transposed, tuple(of_product))
        return *gradients, dy if of_residual else None, dgate, None


class _Kernel(NamedTuple):
    """The operators and the autograd function for an epilogue (the activation or residual after the product), and the
    arguments of a call after the bias.
    """

    op: Any
    op_out: Any
    function: type[Function]
    arguments: tuple[Any, ...]


def _kernel(epilogue: str | None, residual: Tensor | None, gate: Tensor | None, exact: bool) -> _Kernel:
    """Return the operators for a call with the given epilogue (the activation or residual after the product). Raise
    ValueError for an unknown epilogue.
    """
    if residual is not None:
        if epilogue is not None:
            raise ValueError(f"linear: epilogue is {epilogue!r}, expected None, because there is a residual")
        return _Kernel(op_gated_residual, op_gated_residual_out, _LinearGatedResidual, (matrix(residual), gate, exact))
    if gate is not None:
        raise RuntimeError("linear: gate is given without residual")
    if epilogue is None:
        return _Kernel(op, op_out, _Linear, ())
    if epilogue in ACTIVATIONS:
        return _Kernel(op_activation, op_activation_out, _LinearActivation, (ACTIVATIONS[epilogue], exact))
    if epilogue in GATED_ACTIVATIONS:
        how = (*GATED_ACTIVATIONS[epilogue], exact)
        return _Kernel(op_gated_activation, op_gated_activation_out, _LinearGatedActivation, how)
    names = ", ".join(map(repr, (*ACTIVATIONS, *GATED_ACTIVATIONS)))
    raise ValueError(f"linear: epilogue is {epilogue!r}, expected None or one of {names}")


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    epilogue: str | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    mode: str = "exact",
    out: Tensor | None = None,
) -> Tensor:
    """Compute the matrix product `x @ weight.T + bias`, and optionally an activation or a residual in the same
    kernel.

    Args:
        x (Tensor): float16 or bfloat16, shape `[..., K]`, on the CPU or a CUDA device. K is a multiple of 8, and at
            least 8. The number of rows may be 0. `x` may have any strides. If its last stride is not 1, or if
            `Tensor.view` cannot merge all dimensions except the last, a contiguous copy is made first.
        weight (Tensor): shape `[N, K]`, in the dtype of `x`. N is a multiple of 8, or of 16 with a gated
            activation. `weight` may have any strides. If its last stride is not 1, a contiguous copy is made
            first.
        bias (Tensor | None): shape `[N]`, contiguous, in the dtype of `x`.
        epilogue (str | None): the name of an oxiwarp function that is applied to the product. It may be an activation:
            "gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick" or "silu". It may also be a gated activation of
            the two halves of the N columns, which returns N / 2 columns: "geglu", "swiglu", "mul_and_silu",
            "silu_and_mul", "gelu_and_mul" or "gelu_tanh_and_mul".
        residual (Tensor | None): shape `[..., N]`, in the dtype of `x`, with any strides. If it is given, the result is
            `residual + gate * (x @ weight.T + bias)`. `epilogue` and `residual` cannot both be given.
        gate (Tensor | None): broadcasts to `residual`, in the dtype of `x` or in float32. Its last dimension is N or 1,
            or it has no dimension. It may have the shapes and strides of the gate of `gated_residual`. Without a gate,
            the result is `residual + x @ weight.T + bias`.
        mode (str): "exact" rounds the product, and then each step of the activation or residual, as separate functions
            do. "fast" rounds only the result.
        out (Tensor | None): tensor with the shape of the result, and the dtype and device of `x`, to which the
            result is written. It may be a slice of a wider buffer: the last stride is 1, and `Tensor.view`
            must be able to merge all dimensions before the last. It must not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the dtype of `x` and the shape `[..., N]`, or
        `[..., N / 2]` with a gated activation.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if `gate` is given without `residual`, in forward-mode AD, and if `out` is
            given and an input requires grad. For CUDA tensors, also raised if the GPU is older than sm_80 or the CUDA
            driver is missing.
        ValueError: `epilogue` or `mode` has an unknown value, or `epilogue` and `residual` are both given.
        TypeError: `x`, `weight`, `bias`, `residual`, `gate` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Tensor cores add the products of a row of `x` and a row of `weight` to a float32 accumulator, in
            steps of 16 elements of K in ascending order. The bias is added in float32, and the sum is rounded once. A
            row's result does not depend on the other rows. On Hopper GPUs, with torch 2.11 for CUDA 13.0 and a
            contiguous `x`, all measured results with 512 or more rows were bitwise equal to those of
            `torch.nn.functional.linear`. With fewer rows, cuBLAS may divide each sum over K into parts, and its bits
            can then differ. torch rounds twice (the product, and the sum with the bias) if `x` has three or more
            dimensions and is not contiguous, and there is a bias. With an activation or a residual and `mode="exact"`,
            the result is bitwise equal to that of two separate calls: `linear`, and then an oxiwarp function such as
            `gelu` or `gated_residual`. With `mode="fast"`, only the result is rounded.
        Gradients: Without an activation or residual, torch's operators compute the gradients. They are the same
            operators as in the backward of `torch.nn.functional.linear`, so the gradients have the same bits. With an
            activation or a residual, the backward computes the product again if a gradient depends on it. The gradients
            then have the bits of the gradients of two separate calls: `linear`, and then the oxiwarp function. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.linear`.

    Example:
        >>> x, weight = torch.arange(8).bfloat16(), torch.eye(8).bfloat16()
        >>> oxiwarp.linear(x, weight, torch.ones(8).bfloat16())
        tensor([1., 2., 3., 4., 5., 6., 7., 8.], dtype=torch.bfloat16)
        >>> oxiwarp.linear(x, weight, residual=torch.full((8,), 10.0).bfloat16(), gate=torch.full((8,), 2.0).bfloat16())
        tensor([10., 12., 14., 16., 18., 20., 22., 24.], dtype=torch.bfloat16)
    """
    tensors = isinstance(x, Tensor) and isinstance(weight, Tensor)
    optional = isinstance(bias, OPTIONAL) and isinstance(residual, OPTIONAL) and isinstance(gate, OPTIONAL)
    if not (tensors and optional and isinstance(out, OPTIONAL)):
        others = {"bias": bias, "residual": residual, "gate": gate, "out": out}
        refuse_types("linear", {"x": x, "weight": weight}, others)
    grad, exact = needs_grad(x, weight, bias, residual, gate, out), is_exact("linear", mode)
    gate = None if gate is None else chosen(gate, None)
    try:
        kernel = _kernel(epilogue, residual, gate, exact)
        if grad:
            refuse_forward_mode("linear")
        if out is not None:
            write("linear", kernel.op_out, (matrix(x), matrix(weight), bias, *kernel.arguments), (out,), grad)
            return out
        if grad:
            return apply(kernel.function, x, weight, bias, *kernel.arguments)
        return kernel.op(matrix(x), matrix(weight), bias, *kernel.arguments)
    except RuntimeError as error:
        # The result has the size of this many tensors like `x`.
        count = (
            -(-weight.shape[0] // x.shape[-1]) if weight.dim() == 2 and not x.is_nested and x.dim() and x.numel() else 1
        )
        count = 0 if out is not None else count
        explain(error, "linear", count, x, weight=weight, bias=bias, residual=residual, gate=gate, out=out)
        raise


__all__ = ["linear"]
