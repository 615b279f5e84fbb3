"""Converts operands that torch's operators accept and oxiwarp's operators reject.

A fused method (oxiwarp's replacement for a `forward`) calls submodules such as linears and attentions. A user may have
replaced such a submodule, for example by an adapter or by a module that computes in float32. The result of the new
submodule may have another dtype than the residual stream, a batch size of 1, or a last dimension that is not
contiguous. torch's operators promote dtypes, broadcast shapes and read any strides, but oxiwarp's operators raise an
error. The functions here therefore convert the operands.

In eager mode, the functions first call the oxiwarp operator. If it raises an error, they convert the operands and call
it again. For valid operands, the functions therefore cost only one more Python call.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .... import ops
from ....ops._roles import Role, positional
from ....ops.modulated_rms_norm import per_batch

WIDE = torch.float32
RESIDUAL = ("gated_residual", "gated_residual_ada_norm")
"""Operators that add a branch to the residual stream. If their dtypes differ, the sum has the wider dtype."""
ROLES = {name: positional(function) for name, function in ops.FUNCTIONS.items()}
ROWS = {
    name: sum(role in (Role.ROWS, Role.BRANCH) for role in roles)
    for name, roles in ROLES.items()
    if roles.count(Role.ROWS) > 1 or {Role.BROADCAST, Role.MODULATION, Role.PER_BATCH} & {*roles}
}
"""Maps an operator to the number of its first arguments that must have one shape and dtype.

The arguments after these broadcast to this shape."""
PER_BATCH = {name for name, roles in ROLES.items() if Role.PER_BATCH in roles}
HEADS = {name for name, roles in ROLES.items() if Role.HEADS in roles and Role.TABLE in roles}
"""Operators of query, key, cos and sin, which are copied if their last dimension is not contiguous."""

compiling = torch.compiler.is_compiling


def as_rows(x: Tensor) -> Tensor:
    """Return `x`, or a contiguous copy if the last dimension of `x` is not contiguous, as after a
    patch-embedding convolution."""
    return x if x.stride(-1) == 1 else x.contiguous()


def common_shape(tensors: list[Tensor]) -> tuple[int, ...] | None:
    """Return the shape to which `tensors` broadcast together, or None if they do not."""
    shape = tuple(tensors[0].shape)
    for x in tensors[1:]:
        if tuple(x.shape) == shape:
            continue
        pairs = list(itertools.zip_longest(reversed(shape), reversed(x.shape), fillvalue=1))
        if any(a != b and 1 not in (a, b) for a, b in pairs):
            return None
        shape = tuple(b if a == 1 else a for a, b in reversed(pairs))
    return shape


def as_row_operands(count: int, operands: tuple[Any, ...], chosen: bool = False) -> tuple[Any, ...]:
    """Convert the operands of an operator that works on rows. Each tensor in the result has a contiguous last
    dimension.

    The first `count` operands are promoted to a common dtype and expanded to the shape to which all operands
    broadcast. Each other tensor is converted to float32 unless it already has the common dtype. If the
    operands do not broadcast, return them unchanged. If `chosen` is True, an index chooses rows of the other
    tensors, so these tensors do not broadcast.
    """
    tensors = [x for x in operands[: count if chosen else None] if isinstance(x, Tensor) and x.dim() > 0]
    first = [x for x in operands[:count] if isinstance(x, Tensor)]
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in first])
    shape = common_shape(tensors)
    if shape is None:
        return operands
    made: list[Any] = []
    for at, x in enumerate(operands):
        if isinstance(x, Tensor) and x.dim() > 0:
            if at < count:
                x = x if x.dtype == dtype else x.to(dtype)
                x = x if tuple(x.shape) == shape else x.expand(shape)
            elif x.dtype not in (dtype, WIDE):
                x = x.to(WIDE)
            x = as_rows(x)
        made.append(x)
    return tuple(made)


def refitted(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Convert the operands of the operator `name`, call the operator and return its result.

    Return `NotImplemented` if no operand needs a conversion.
    """
    op = getattr(ops, name)
    if name in HEADS:
        made = tuple(as_rows(x) if isinstance(x, Tensor) else x for x in args)
        tables = {key: as_rows(x) for key, x in options.items() if key in ("cos", "sin") and x is not None}
        if same(made, args) and all(x is options[key] for key, x in tables.items()):
            return NotImplemented
        return op(*made, **options | tables)
    count, chosen = ROWS[name], options.get("index") is not None
    operands = (*args[:count], *[per_batch(x, args[0]) for x in args[count:]]) if name in PER_BATCH else args
    made = as_row_operands(count, operands, chosen)
    if name in RESIDUAL and args[0].dtype == made[0].dtype != args[1].dtype:
        # The kernel rounds the product `gate * y` to the common dtype of the two, so keep their dtypes.
        y, *rest = (as_rows(x) if isinstance(x, Tensor) and x.dim() > 0 else x for x in args[1:])
        made = (made[0], y.expand(made[0].shape), *rest)
    if same(made, operands):
        return NotImplemented
    if name in RESIDUAL and args[0].dtype != made[0].dtype:
        return promoted(name, args, options)
    return op(*made, **widened(options, made[0].dtype))


def promoted(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Compute a gated residual sum `x + gate * y` for operands whose common dtype is wider than the dtype of
    `x`.

    The sum has the common dtype. However, if the gate is float32, the sum is cast to the dtype of `x`, as in the
    original code of Wan. If `name` is "gated_residual_ada_norm", also compute the norm of the sum.
    """
    x, y, gate, *by = args
    table, clip = options.get("gate_table"), options.get("clip", False)
    index = options.get("index")
    by_sum = {"gate_table": table, "clip": clip, "index": index, "mode": options.get("mode", "exact")}
    made = as_row_operands(2, (x, y, gate), index is not None)
    if gate is None:
        total = made[0] + made[1]
    else:
        total = ops.gated_residual(*made, **widened(by_sum, made[0].dtype))
        if WIDE in (gate.dtype, None if table is None else table.dtype):
            total = total.to(x.dtype)
    if name == "gated_residual":
        return total
    options = {key: value for key, value in options.items() if key not in ("gate_table", "clip")}
    by = list(as_row_operands(1, (total, *by), index is not None))
    return ops.ada_norm(*by, **widened(options, total.dtype)), total


def widened(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return keyword arguments for an operator, in which each tensor except an index has `dtype` or float32.
    Tensors with another dtype are converted to float32."""
    return {
        key: x.to(WIDE) if isinstance(x, Tensor) and key != "index" and x.dtype not in (dtype, WIDE) else x
        for key, x in options.items()
    }


def same(made: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    """Return whether each object in `made` is identical (`is`) to the object at the same index in `args`."""
    return all(a is b for a, b in zip(made, args, strict=True))


def narrower(x: Tensor, y: Tensor) -> bool:
    """Return whether the sum of `x` and `y` has another dtype than `x`."""
    return x.dtype != y.dtype and torch.promote_types(x.dtype, y.dtype) != x.dtype


def looked_at(name: str, op: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Convert the operands if necessary, and return the operator's result.

    torch.compile does not trace `except`. Under torch.compile, the operands are therefore converted before the
    operator is called, instead of after an error. The same is necessary for a residual whose branch has a wider
    dtype, because the operator accepts it and returns a sum in the dtype of the residual.
    """
    made = refitted(name, args, options)
    return op(*args, **options) if made is NotImplemented else made


def fitting(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator with the operand conversions of this module."""
    name = op.__name__

    @functools.wraps(op)
    def run(*args: Any, **options: Any) -> Any:
        if compiling() or (name in RESIDUAL and narrower(args[0], args[1])):
            return looked_at(name, op, args, options)
        try:
            return op(*args, **options)
        except RuntimeError:
            made = refitted(name, args, options)
            if made is NotImplemented:
                raise
            return made

    return run


FITTING = {name: fitting(getattr(ops, name)) for name in (*ROWS, *HEADS)}

__all__ = ["FITTING", "as_rows"]
