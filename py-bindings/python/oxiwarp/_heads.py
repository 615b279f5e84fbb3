"""What the operators on queries and keys share: their rotation arguments, their checks, the norm's gradient."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._operands import is_exact
from ._register import FLOATS, needs_grad

# The rotation's part of every schema here, and of the calls: see `Rotation`.
ROTATION = (
    "Tensor? cos, Tensor? sin, int angles, int rotary_dim, bool interleaved, int offset, bool exact, bool conjugate, "
    "bool heads_first, int head_dim"
)
TABLES, COMPLEX, FREQUENCIES = range(3)


class Rotation(NamedTuple):
    """The operators' rotation arguments. `cos` None: no rotation; 0 stands for all columns, -1 for all tokens."""

    cos: Tensor | None
    sin: Tensor | None
    angles: int
    rotary_dim: int
    interleaved: bool
    offset: int
    exact: bool
    conjugate: bool
    heads_first: bool
    head_dim: int


def rotation(
    op: str,
    cos: Tensor | None,
    sin: Tensor | None,
    *,
    interleaved: bool,
    rotary_dim: int | None,
    offset: int | None,
    mode: str,
    heads_first: bool,
    head_dim: int | None,
    angles: int = TABLES,
) -> Rotation:
    """The operators' arguments for a public function's: a complex table becomes a real one."""
    exact = is_exact(op, mode)
    if rotary_dim is not None or head_dim is not None or offset is not None:
        _check_numbers(op, rotary_dim, head_dim, offset)
    if cos is not None and cos.is_complex():
        if sin is not None:
            raise ValueError(f"{op}: sin is given beside a complex table")
        if cos.dtype != torch.complex64:
            raise RuntimeError(f"{op}: cos is {cos.dtype}, expected complex64 or real tables")
        cos, angles = torch.view_as_real(cos.resolve_conj()).flatten(-2), COMPLEX
    elif angles == TABLES and (cos is None) != (sin is None):
        raise ValueError(f"{op}: one of cos and sin is None, expected both or neither")
    return Rotation(
        cos, sin, angles, rotary_dim or 0, interleaved, -1 if offset is None else offset, exact, False, heads_first,
        head_dim or 0,
    )  # fmt: skip


def _check_numbers(op: str, rotary_dim: int | None, head_dim: int | None, offset: int | None) -> None:
    for name, value, least in (("rotary_dim", rotary_dim, 1), ("head_dim", head_dim, 1), ("offset", offset, 0)):
        if value is not None and value < least:
            raise ValueError(f"{op}: {name} is {value}, expected {least} or more")


def tensors_only(op: str, q: Any, **others: Any) -> None:
    """Raise TypeError for a `q` that is no tensor, or another argument that is neither a tensor nor None."""
    if not isinstance(q, Tensor):
        raise TypeError(f"{op}: q is {type(q).__name__}, expected a torch.Tensor")
    for name, value in others.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a torch.Tensor or None")


def tables_want_grad(op: str, *tables: Tensor | None) -> None:
    """Raise where autograd would have to differentiate a table."""
    if needs_grad(*tables) and any(table is not None and table.requires_grad for table in tables):
        raise RuntimeError(f"{op}: a table requires grad, and there is no gradient of tables: detach it")


def check_heads(op: str, q: Tensor, k: Tensor | None, how: Rotation, **outs: Tensor | None) -> None:
    """Raise RuntimeError for queries and keys that the kernels refuse, from shapes, dtypes and devices alone."""
    for name, x in (("q", q), ("k", k)):
        if x is None:
            continue
        if x.dtype not in FLOATS:
            raise RuntimeError(f"{op}: {name} is {x.dtype}, expected f32, f16 or bf16")
        if x.dtype != q.dtype:
            raise RuntimeError(f"{op}: {name} is {FLOATS[x.dtype]}, expected {FLOATS[q.dtype]}")
        _same_device(op, name, x, q)
        if x.dim() not in (3, 4) or (x.dim() == 3 and how.heads_first):
            raise RuntimeError(
                f"{op}: {name} has shape {list(x.shape)}, expected four dimensions, or three without heads"
            )
    if k is not None and sizes(k, how)[::3] + sizes(k, how)[1:2] != sizes(q, how)[::3] + sizes(q, how)[1:2]:
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected the batches, tokens and columns of q")
    for name, out in outs.items():
        x = q if name == "q_out" else k
        if out is not None and x is not None:
            _same_device(op, name, out, q)
            if out.shape != x.shape or out.dtype != x.dtype:
                raise RuntimeError(f"{op}: {name} has shape {list(out.shape)}, expected {list(x.shape)}")
    check_tables(op, q, k, how)


def sizes(x: Tensor, how: Rotation) -> tuple[int, int, int, int]:
    """Batches, tokens, heads and columns of a head."""
    if x.dim() == 3:
        batches, tokens, columns = x.shape
        dim = how.head_dim or columns
        return batches, tokens, columns // dim, dim
    batches, tokens, heads, dim = x.shape
    return (batches, heads, tokens, dim) if how.heads_first else (batches, tokens, heads, dim)


def check_tables(op: str, q: Tensor, k: Tensor | None, how: Rotation) -> None:
    """Raise RuntimeError for tables that do not fit `q`."""
    if how.cos is None:
        return
    batches, tokens, heads, dim = sizes(q, how)
    columns = how.rotary_dim or dim
    if columns % 2 or columns > dim:
        raise RuntimeError(f"{op}: rotary_dim is {columns}, expected an even number of columns, at most {dim}")
    _same_device(op, "cos", how.cos, q)
    if how.angles == FREQUENCIES:
        if tuple(how.cos.shape) != (columns // 2,):
            raise RuntimeError(f"{op}: frequencies has shape {list(how.cos.shape)}, expected [{columns // 2}]")
        return
    shape = how.cos.shape
    if how.sin is not None:
        _same_device(op, "sin", how.sin, q)
        if how.sin.shape != shape or how.sin.dtype != how.cos.dtype:
            raise RuntimeError(f"{op}: sin has shape {list(how.sin.shape)}, expected {list(shape)}, as cos")
    if how.cos.dtype not in (torch.float32, q.dtype):
        raise RuntimeError(f"{op}: cos is {how.cos.dtype}, expected {FLOATS[q.dtype]} (as q) or f32")
    if len(shape) not in (2, 3, 4):
        raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected two to four dimensions")
    if len(shape) == 4:
        of = (shape[0], shape[2], shape[1]) if how.heads_first else (shape[0], shape[1], shape[2])
    else:
        of = (shape[0] if len(shape) == 3 else 1, shape[-2], 1)
    same = k is None or sizes(k, how)[2] == heads
    fits = of[0] in (1, batches) and of[2] in (1, heads if same else 1) and shape[-1] in (columns, columns // 2)
    rotated = of[1] == tokens if how.offset < 0 else how.offset + of[1] <= tokens
    if not (fits and rotated):
        expected = f"tables of {tokens} tokens and {columns} or {columns // 2} columns"
        raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected {expected}")


def _same_device(op: str, name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {q.device}, the device of q")


def readable(grad: Tensor) -> Tensor:
    """A gradient that the kernels can read: autograd makes expanded ones."""
    return grad if grad.stride(-1) == 1 or grad.shape[-1] == 1 else grad.contiguous()


__all__ = ["FREQUENCIES", "ROTATION", "Rotation", "check_heads", "readable", "rotation", "sizes", "tensors_only"]
