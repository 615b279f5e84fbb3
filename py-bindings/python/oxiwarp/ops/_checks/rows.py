"""Checks of the operands of norms, modulations and gates.

The Rust host functions make the same checks. The checks exist in Python as well, because calls with meta tensors and
calls under torch.compile do not run the Rust code.
"""

import itertools

import torch
from torch import Tensor

from .._register import FLOATS, check_number, check_rows, dtype_name, or_f32

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


def check_vector(op: str, name: str, vector: Tensor | None, x: Tensor, mixed: bool = False) -> None:
    """Raise RuntimeError if `vector` has an unsupported shape, dtype or device. `vector` may be None.

    The shape must be `[x.shape[-1]]`. The dtype must be the dtype of `x` or float32. If `mixed` is True, it may
    also be the other 16-bit dtype.
    """
    if vector is None:
        return
    _check_kind(op, name, vector, x, mixed)
    if vector.dim() != 1 or vector.shape[0] != x.shape[-1]:
        raise RuntimeError(f"{op}: {name} has shape {list(vector.shape)}, expected [{x.shape[-1]}]")


def check_head_vectors(op: str, name: str, vectors: Tensor | None, x: Tensor) -> None:
    """Raise RuntimeError if `vectors` has an unsupported shape, dtype or device. `vectors` may be None.

    The shape must be `[x.shape[-1]]`, or consist of the last two sizes of `x`. The dtype must be the dtype of `x`
    or float32.
    """
    if vectors is None:
        return
    _check_kind(op, name, vectors, x)
    expected = x.shape[-2:] if vectors.dim() > 1 else x.shape[-1:]
    if vectors.shape != expected:
        raise RuntimeError(f"{op}: {name} has shape {list(vectors.shape)}, expected {list(expected)}")


def check_index(op: str, index: Tensor | None, x: Tensor) -> None:
    """Raise RuntimeError unless `index` is None, or a contiguous tensor with one integer for each row of `x`."""
    if index is None:
        return
    if index.device != x.device:
        raise RuntimeError(f"{op}: index is on {index.device}, expected {x.device}, the device of x")
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"{op}: index is {dtype_name(index.dtype)}, expected int64 or int32")
    if index.shape != x.shape[:-1]:
        raise RuntimeError(f"{op}: index has shape {list(index.shape)}, expected {list(x.shape[:-1])}")
    if not index.is_contiguous():
        raise RuntimeError(f"{op}: index has strides {list(index.stride())}: it must be contiguous")


def check_modulation(
    op: str,
    name: str,
    value: Tensor | None,
    table: Tensor | None,
    x: Tensor,
    per_row: bool = False,
    mixed: bool = False,
    rows: int | None = None,
) -> None:
    """Raise RuntimeError unless `value` is None, or broadcasts to `x` and has the dtype of `x` or float32.

    If `mixed` is True, the dtype may also be the other 16-bit dtype. `rows` is the number of rows from which an
    index chooses, or None if there is no index. With an index, `value` has the shape `[rows, x.shape[-1]]`.

    `value` is a scale, shift or gate. `table` is a vector that the kernel adds to `value`. `table` must be
    None or have shape `[x.shape[-1]]`. If `value` is None, `table` must be None too. The last dimension of
    `value` must be `x.shape[-1]`. If `per_row` is True and `table` is None, it may also be 1, and `value` may have no
    dimensions.
    """
    if value is None:
        if table is not None:
            raise RuntimeError(f"{op}: {name}_table is given without {name}")
        return
    _check_kind(op, name, value, x, mixed)
    if rows is not None:
        if value.shape != (rows, x.shape[-1]) or rows == 0:
            raise RuntimeError(
                f"{op}: {name} has shape {list(value.shape)}, expected [{max(rows, 1)}, {x.shape[-1]}], because there "
                "is an index"
            )
        return check_vector(op, f"{name}_table", table, x, mixed)
    fits = value.dim() <= x.dim() and all(
        own in (1, wanted) for own, wanted in zip(reversed(value.shape), reversed(x.shape), strict=False)
    )
    if not fits:
        raise RuntimeError(
            f"{op}: {name} has shape {list(value.shape)}, expected one that broadcasts to {list(x.shape)}"
        )
    own = value.shape[-1] if value.dim() else 1
    one = per_row and own == 1
    if (value.dim() == 0 or own != x.shape[-1]) and (table is not None or not one):
        why = ", because there is a table" if one else ""
        raise RuntimeError(
            f"{op}: {name} has shape {list(value.shape)}, expected a last dimension of {x.shape[-1]}{why}"
        )
    _check_repeats(op, name, value, x)
    check_vector(op, f"{name}_table", table, x, mixed)


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


def check_modulations(
    op: str, x: Tensor, index: Tensor | None, mixed: bool, modulations: dict[str, tuple[Tensor | None, Tensor | None]]
) -> None:
    """Raise RuntimeError if a kernel of the operator `op` does not support one of the modulations of `x`.

    `modulations` maps a name such as "scale" to a pair of tensors: the scale, and the table that is added to it.
    `index` chooses rows of the modulations, or is None. `mixed` says whether operands may have one column, and the
    16-bit dtype that `x` does not have.
    """
    rows = rows_of(index, modulations["scale"][0])
    for name, (value, table) in modulations.items():
        check_modulation(op, name, value, table, x, per_row=mixed, mixed=mixed, rows=rows)


def rows_of(index: Tensor | None, first: Tensor | None) -> int | None:
    """Return the number of rows from which an index chooses, or None if there is no index. `first` is a scale or a
    gate."""
    if index is None or first is None:
        return None
    return first.shape[0] if first.dim() else 0


def _check_kind(op: str, name: str, tensor: Tensor, x: Tensor, mixed: bool = False) -> None:
    if tensor.device != x.device:
        raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {x.device}, the device of x")
    if mixed and tensor.dtype not in FLOATS:
        raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected f32, f16 or bf16")
    if not mixed and tensor.dtype not in (x.dtype, torch.float32):
        raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected {or_f32(x.dtype)}")


def check_branch(op: str, x: Tensor, y: Tensor, name: str = "y") -> None:
    """Raise RuntimeError unless the branch `y`, an argument named `name`, has the shape and device of `x`, and a float
    dtype."""
    if y.device != x.device:
        raise RuntimeError(f"{op}: {name} is on {y.device}, expected {x.device}, the device of x")
    if y.dtype not in FLOATS:
        raise RuntimeError(f"{op}: {name} is {dtype_name(y.dtype)}, expected f32, f16 or bf16")
    if y.shape != x.shape:
        raise RuntimeError(f"{op}: {name} has shape {list(y.shape)}, expected {list(x.shape)}")


def check_norm(op: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, mixed: bool = False) -> None:
    """Raise RuntimeError if the norm kernels do not support one of the arguments.

    `mixed` says whether weight and bias may have the 16-bit dtype that `x` does not have.
    """
    check_rows(op, x, None)
    check_vector(op, "weight", weight, x, mixed)
    check_vector(op, "bias", bias, x, mixed)
    check_eps(op, eps)


def summed(value: Tensor, table: Tensor | None) -> Tensor:
    """Return `table + value`, or `value` if `table` is None. In diffusers, this sum is
    `scale_shift_table + temb`.
    """
    return value if table is None else table + value
