"""Modulation without a norm, `x * (1 + scale) + shift`: `torch.ops.oxiwarp.modulate` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_modulation, is_exact
from ._function import Function, apply
from ._modulation_backward import sum_to
from ._once_differentiable import once
from ._register import OPTIONAL, check_rows, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role


def _fake(x: Tensor, scale: Tensor, shift: Tensor | None, exact: bool) -> Tensor:
    check_rows("modulate", x, None)
    check_modulation("modulate", "scale", scale, None, x)
    check_modulation("modulate", "shift", shift, None, x)
    return x.new_empty(x.shape)


op = define(
    "modulate(Tensor x, Tensor scale, Tensor? shift, bool exact) -> Tensor",
    _fake,
    x=Role.ROWS,
    scale=Role.BROADCAST,
    shift=Role.BROADCAST,
)


class _Modulate(Function):
    """Autograd function that saves x, the scale and the shift."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor, shift: Tensor | None, exact: bool) -> Tensor:
        return op(x, scale, shift, exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, shift, _ = inputs
        ctx.save_for_backward(x, scale, shift)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift = ctx.saved_tensors
        of_x, of_scale, of_shift, _ = ctx.needs_input_grad
        return (
            (dy * (1 + scale.float())).to(x.dtype) if of_x else None,
            sum_to(dy.float() * x, scale).to(scale.dtype) if of_scale else None,
            sum_to(dy, shift).to(shift.dtype) if of_shift else None,
            None,
        )


def modulate(x: Tensor, scale: Tensor, shift: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """Modulate rows: `x * (1 + scale) + shift`. If a norm precedes this formula, use `ada_norm`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, last stride 1, on the CPU or a
            CUDA device.
        scale (Tensor): broadcasts to `x`, in the dtype of `x` or in float32. Its last dimension is N. Examples are
            `[B, 1, N]`, `[B, S, N]`, `[N]` and slices. It may be broadcast along the first dimensions, or along the
            last dimensions before N, but not along both. `Tensor.view` must be able to merge all dimensions of `x`
            except the last into at most two, and to merge the same dimensions of `scale` and `shift`.
        shift (Tensor | None): tensor that is added last. It may have the shapes and dtypes that `scale` may
            have.
        mode (str): "exact" or "fast". The section "Exactness" describes both.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `mode` is not "exact" or "fast".
        TypeError: `x`, `scale` or `shift` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: If `x`, `scale` and `shift` have the same dtype, `mode="exact"` rounds `1 + scale`, the product and
            the sum, as torch's operators do. If `x` is 16-bit and `scale` or `shift` is float32, `mode="exact"`
            computes in float32 and rounds only the result. With a float32 `scale`, torch's operators return float32.
            Cast to the dtype of `x`, this float32 tensor is bitwise equal to the result of this function. `mode="fast"`
            always rounds only the result.
        Gradients: The gradients are computed with torch's operators instead of a kernel, in float32, and
            rounded once. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The modulations of the model DiT (arXiv:2212.09748).

    Example:
        >>> oxiwarp.modulate(torch.ones(1, 3), torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 0.5, 0.5]))
        tensor([[1.5000, 2.5000, 3.5000]])
    """
    name = "modulate"
    if not (isinstance(x, Tensor) and isinstance(scale, Tensor) and isinstance(shift, OPTIONAL)):
        refuse_types(name, {"x": x, "scale": scale}, {"shift": shift})
    exact = is_exact(name, mode)
    try:
        if needs_grad(x, scale, shift):
            refuse_forward_mode(name)
            return apply(_Modulate, x, scale, shift, exact)
        return op(x, scale, shift, exact)
    except RuntimeError as error:
        explain(error, name, 1, x, scale=scale, shift=shift)
        raise


__all__ = ["modulate"]
