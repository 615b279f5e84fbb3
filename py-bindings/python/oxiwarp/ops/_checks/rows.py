"""Checks of the operands of norms, modulations and gates.

The Rust host functions make the same checks. The checks exist in Python as well, because calls with meta tensors and
calls under torch.compile do not run the Rust code.
"""

import itertools

import torch
from torch import Tensor

from .._register import check_number, check_rows, dtype_name, or_f32

MODES = {"exact": True, "fast": False}
NORMS = {"layer_norm": False, "rms_norm": True}


def is_exact(op: str, mode: str) -> bool:
    """Return whether `mode` is "exact". Raise ValueError for an unknown mode."""
    try:
        return MODES[mode]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: mode is {mode!r}, expected 'exact' or 'fast'") from None


def is_rms(op: str, norm: str) -> bool:
    """Return whether `norm` is "rms_norm". Raise ValueError for an unknown norm."""
    try:
        return NORMS[norm]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: norm is {norm!r}, expected 'layer_norm' or 'rms_norm'") from None


def check_eps(op: str, eps: float) -> None:
    """Raise RuntimeError if `eps` is negative or not finite."""
    check_number(op, "eps", eps, 0.0)


def check_vector(op: str, name: str, vector: Tensor | None, x: Tensor) -> None:
    """Raise RuntimeError if `vector` has an unsupported shape, dtype or device. `vector` may be None.

    The shape must be `[x.shape[-1]]`. The dtype must be the dtype of `x` or float32.
    """
    if vector is None:
        return
    _check_kind(op, name, vector, x)
    if vector.dim() != 1 or vector.shape[0] != x.shape[-1]:
        raise RuntimeError(f"{op}: {name} has shape {list(vector.shape)}, expected [{x.shape[-1]}]")


def check_modulation(
    op: str, name: str, value: Tensor | None, table: Tensor | None, x: Tensor, per_row: bool = False
) -> None:
    """Raise RuntimeError unless `value` is None, or broadcasts to `x` and has the dtype of `x` or float32.

    `value` is a scale, shift or gate. `table` is a vector that the kernel adds to `value`. `table` must be
    None or have shape `[x.shape[-1]]`. If `value` is None, `table` must be None too. The last dimension of
    `value` must be `x.shape[-1]`. It may also be 1 if `per_row` is True and `table` is None.
    """
    if value is None:
        if table is not None:
            raise RuntimeError(f"{op}: {name}_table is given without {name}")
        return
    _check_kind(op, name, value, x)
    fits = value.dim() <= x.dim() and all(
        own in (1, wanted) for own, wanted in zip(reversed(value.shape), reversed(x.shape), strict=False)
    )
    if not fits:
        raise RuntimeError(
            f"{op}: {name} has shape {list(value.shape)}, expected one that broadcasts to {list(x.shape)}"
        )
    one = per_row and value.dim() > 0 and value.shape[-1] == 1
    if value.dim() == 0 or (value.shape[-1] != x.shape[-1] and (table is not None or not one)):
        why = ", because there is a table" if one else ""
        raise RuntimeError(
            f"{op}: {name} has shape {list(value.shape)}, expected a last dimension of {x.shape[-1]}{why}"
        )
    _check_repeats(op, name, value, x)
    check_vector(op, f"{name}_table", table, x)


def _check_repeats(op: str, name: str, value: Tensor, x: Tensor) -> None:
    """Raise RuntimeError if `value` is broadcast in a way that the kernels do not support.

    The last dimension has the columns. Of the dimensions before it, `value` may be broadcast along the first
    or along the last ones, but not along both, and not only along some in the middle. For example, if `x` has
    shape `[A, B, C, N]`, `value` may have the shape `[B, C, N]` or `[A, 1, 1, N]`, but not `[A, 1, C, N]`.
    """
    missing = x.dim() - value.dim()
    repeats = [
        dim < missing or value.shape[dim - missing] == 1 or value.stride(dim - missing) == 0
        for dim in range(x.dim() - 1)
        if x.shape[dim] != 1
    ]
    given = [dim for dim in range(x.dim() - 1) if dim < missing or value.shape[dim - missing] != x.shape[dim]]
    if given and sum(one != other for one, other in itertools.pairwise(repeats)) > 1:
        shape = list(x.shape)
        raise RuntimeError(
            f"{op}: {name} has shape {list(value.shape)}, expected one that broadcasts to {shape} in its first or in "
            f"its last leading dimensions, not between or both: use .expand({str(shape)[1:-1]}).contiguous()"
        )


def _check_kind(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {x.device}, the device of x")
    if tensor.dtype not in (x.dtype, torch.float32):
        raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected {or_f32(x.dtype)}")


def check_norm(op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, **others: Tensor) -> None:
    """Raise RuntimeError if the norm kernels do not support one of the arguments.

    `others` maps names to further inputs, which must have the shape, dtype and device of `x`.
    """
    check_rows(op, x, None, **others)
    check_vector(op, "weight", weight, x)
    check_vector(op, "bias", bias, x)
    check_eps(op, eps)


def summed(value: Tensor, table: Tensor | None) -> Tensor:
    """Return `table + value`, or `value` if `table` is None. In diffusers, this sum is
    `scale_shift_table + temb`.
    """
    return value if table is None else table + value
