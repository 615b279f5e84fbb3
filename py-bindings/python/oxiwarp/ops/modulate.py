"""Modulation without a norm, `x * (1 + scale) + shift`: `torch.ops.oxiwarp.modulate` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_index, check_modulation, is_exact, rows_of
from ._frames import frames_of
from ._function import Function, apply
from ._mixed import plain
from ._modulation_backward import sum_to
from ._once_differentiable import once
from ._register import OPTIONAL, check_rows, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role


def _check(x: Tensor, scale: Tensor, shift: Tensor | None, index: Tensor | None) -> None:
    check_rows("modulate", x, None)
    for name, value in (("scale", scale), ("shift", shift)):
        check_modulation("modulate", name, value, None, x, per_row=True, mixed=True, rows=rows_of(index, scale))
    check_index("modulate", index, x)


def _fake(x: Tensor, scale: Tensor, shift: Tensor | None, index: Tensor | None, exact: bool) -> Tensor:
    _check(x, scale, shift, index)
    return x.new_empty(x.shape)


op = define(
    "modulate(Tensor x, Tensor scale, Tensor? shift, Tensor? index, bool exact) -> Tensor",
    _fake,
    x=Role.ROWS,
    scale=Role.MODULATION,
    shift=Role.MODULATION,
    index=Role.INDEX,
)


class _Modulate(Function):
    """Autograd function that saves x, the scale and the shift."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor, shift: Tensor | None, exact: bool) -> Tensor:
        return op(x, scale, shift, None, exact)

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


def modulate(
    x: Tensor, scale: Tensor, shift: Tensor | None = None, *, index: Tensor | None = None, mode: str = "exact"
) -> Tensor:
    """Modulate rows: `x * (1 + scale) + shift`. If a norm precedes this formula, use `ada_norm`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA device. If
            the last stride is not 1, a contiguous copy is made first.
        scale (Tensor): float32, float16 or bfloat16; broadcasts to `x`. Its last dimension is N or 1, or it has no
            dimension. Examples are `[B, 1, N]`, `[B, S, N]`, `[N]` and slices, and `[B, F, 1, N]` (per frame) for `x`
            of shape `[B, S, N]`, as in `ada_norm`. It may be broadcast along the first dimensions, or along the last
            dimensions before N, but not along both. `Tensor.view` must be able to merge all dimensions of `x` before
            the last into at most two, and to merge the same dimensions of `scale` and `shift`.
        shift (Tensor | None): tensor that is added last. It may have the shapes and dtypes that `scale` may
            have.
        index (Tensor | None): int64 or int32, contiguous, shape `x.shape[:-1]`. If it is given,
            `scale` and `shift` have the shape `[R, N]`. A row of `x` then uses the row of both that its integer
            names. A negative integer, or R or more, names row R - 1.
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
        Exactness: If `x`, `scale` and `shift` have the same dtype, "exact" rounds `1 + scale`, the product
            and the sum, as torch's operators do. If `scale` or `shift` has another dtype than `x`, "exact"
            computes in float32 and rounds only the result. With a float32 `scale`, torch's operators return
            float32. If this float32 result is cast to the dtype of `x`, it is bitwise equal to the result of
            this function. "fast" always rounds only the result.
        Gradients: The gradients are computed with torch's operators instead of a kernel, in float32, and
            rounded once. A second derivative and forward-mode AD raise RuntimeError.

    Source:
        The modulations of the model DiT (arXiv:2212.09748).

    Example:
        >>> oxiwarp.modulate(torch.ones(1, 3), torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.5, 0.5, 0.5]))
        tensor([[1.5000, 2.5000, 3.5000]])
    """
    name = "modulate"
    optional = isinstance(shift, OPTIONAL) and isinstance(index, OPTIONAL)
    if not (isinstance(x, Tensor) and isinstance(scale, Tensor) and optional):
        refuse_types(name, {"x": x, "scale": scale}, {"shift": shift, "index": index})
    if index is None and (frames := frames_of(x, scale, shift)):
        return modulate(frames.split(x), frames.split(scale), frames.split(shift), mode=mode).flatten(-3, -2)
    exact = is_exact(name, mode)
    try:
        if needs_grad(x, scale, shift):
            refuse_forward_mode(name)
            _check(x, scale, shift, index)
            (scale, _), (shift, _) = plain(x, scale, None, index), plain(x, shift, None, index)
            return apply(_Modulate, x, scale, shift, exact)
        return op(x, scale, shift, index, exact)
    except RuntimeError as error:
        explain(error, name, 1, x, scale=scale, shift=shift, index=index)
        raise


__all__ = ["modulate"]
