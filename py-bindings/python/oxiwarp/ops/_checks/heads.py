"""Rotation arguments and argument checks that `rope` and `qk_norm_rope` share."""

from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._register import FLOATS, dtype_name, needs_grad, or_f32
from .._roles import Role
from .rows import is_exact

# The schemas of the operators `rope` and `qk_norm_rope` contain this text. It declares the rotation
# arguments, which are the fields of the class `Rotation`.
ROTATION = (
    "Tensor? cos, Tensor? sin, Tensor? positions, int angles, int rotary_dim, bool interleaved, int offset, "
    "bool exact, bool conjugate, bool heads_first, int head_dim"
)
TABLE_ROLES = {"cos": Role.TABLE, "sin": Role.TABLE, "positions": Role.TABLE_ROWS}
TABLES, COMPLEX, FREQUENCIES = range(3)
INTEGERS = (int, torch.SymInt, Integral)  # Integral includes the integers of numpy
MOST_ROWS = 2**31 - 1
"""Maximum number of rows of tables whose rows are chosen by positions."""


class Rotation(NamedTuple):
    """Rotation arguments of the operators `rope` and `qk_norm_rope`, in the order of their schemas.

    If `cos` is None, the operator does not rotate. Otherwise, `angles` says what `cos` and `sin` contain. With
    `TABLES`, they are tables of cosines and sines. With `COMPLEX`, `cos` is a complex table, stored as a real tensor,
    and `sin` is None. With `FREQUENCIES`, `cos` contains frequencies and `sin` contains positions.

    `positions` says which row of the tables each token has. If it is None, token `t` has row `t`.

    `rotary_dim` is the number of columns per head that are rotated, or 0 for all columns. `offset` is the first token
    that is rotated, or -1 if the tables have all tokens. If `conjugate` is True, the operator rotates by the negative
    angles. If the queries have shape `[B, S, heads * head_dim]`, `head_dim` is the number of columns per head. If the
    queries have a dimension for heads, or only one head, `head_dim` can be 0.
    """

    cos: Tensor | None
    sin: Tensor | None
    positions: Tensor | None
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
    positions: Tensor | None = None,
    angles: int = TABLES,
) -> Rotation:
    """Convert the rotation arguments of a public function to a `Rotation`.

    A complex table becomes a real view, in which real and imaginary parts alternate.
    """
    exact = is_exact(op, mode)
    if rotary_dim is not None or head_dim is not None or offset is not None:
        check_numbers(op, rotary_dim, head_dim, offset)
    if cos is not None and cos.is_complex():
        if sin is not None:
            raise ValueError(f"{op}: sin is given beside a complex table")
        if cos.dtype != torch.complex64:
            raise RuntimeError(f"{op}: cos is {cos.dtype}, expected complex64 or real tables")
        cos, angles = torch.view_as_real(cos.resolve_conj()).flatten(-2), COMPLEX
    elif angles == TABLES and (cos is None) != (sin is None):
        raise ValueError(f"{op}: one of cos and sin is None, expected both or neither")
    return Rotation(
        cos, sin, positions, angles, rotary_dim or 0, interleaved, -1 if offset is None else offset, exact, False,
        heads_first, head_dim or 0,
    )  # fmt: skip


def check_numbers(op: str, rotary_dim: int | None, head_dim: int | None, offset: int | None) -> None:
    """Raise TypeError unless all three numbers are integers or None. Raise ValueError for an integer below
    its minimum.
    """
    for name, value, least in (("rotary_dim", rotary_dim, 1), ("head_dim", head_dim, 1), ("offset", offset, 0)):
        if value is None:
            continue
        if not isinstance(value, INTEGERS):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected an integer or None")
        if value < least:
            raise ValueError(f"{op}: {name} is {value}, expected {least} or more")


def check_head_dim(op: str, q: Tensor, head_dim: int) -> None:
    """Raise ValueError if `q` has four dimensions, and the last dimension is not `head_dim`."""
    if q.dim() == 4 and q.shape[-1] != head_dim:
        raise ValueError(f"{op}: head_dim is {head_dim}, expected {q.shape[-1]} (or None): q has shape {list(q.shape)}")


def tensors_only(op: str, q: Any, **others: Any) -> None:
    """Raise TypeError unless `q` is a tensor and each of `others` is a tensor or None."""
    if not isinstance(q, Tensor):
        raise TypeError(f"{op}: q is {type(q).__name__}, expected a torch.Tensor")
    for name, value in others.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a torch.Tensor or None")


def tables_want_grad(op: str, *tables: Tensor | None) -> None:
    """Raise RuntimeError if grad mode is on and a rotary table requires grad. The operators have no gradient
    for tables.
    """
    if needs_grad(*tables) and any(table is not None and table.requires_grad for table in tables):
        raise RuntimeError(f"{op}: a table requires grad, and there is no gradient of tables: detach it")


def check_heads(op: str, q: Tensor, k: Tensor | None, how: Rotation, **outs: Tensor | None) -> None:
    """Raise RuntimeError if the kernels do not support the queries `q`, the keys `k`, the rotary tables in
    `how`, or the outputs.

    The check does not read the values of tensors, so it also works for meta tensors. `outs` maps the names `q_out` and
    `k_out` to the tensors for the results. If the operator allocates its results, `outs` is empty.
    """
    for name, x in (("q", q), ("k", k)):
        if x is None:
            continue
        if q.dtype not in FLOATS:
            raise RuntimeError(f"{op}: q is {dtype_name(q.dtype)}, expected f32, f16 or bf16")
        if x.dtype != q.dtype:
            raise RuntimeError(f"{op}: {name} is {dtype_name(x.dtype)}, expected {FLOATS[q.dtype]}")
        same_device(op, name, x, q)
        if x.dim() not in (3, 4) or (x.dim() == 3 and how.heads_first):
            raise RuntimeError(
                f"{op}: {name} has shape {list(x.shape)}, expected four dimensions, or three without heads"
            )
        dim = how.head_dim or x.shape[-1]
        if x.dim() == 3 and (dim < 1 or x.shape[-1] % dim):
            expected = f"a last dimension of heads of {dim} columns"
            raise RuntimeError(f"{op}: {name} has shape {list(x.shape)}, expected {expected}")
        if x.shape[-1] < 1:
            expected = "heads of between 1 and 2^31 - 1 columns together"
            raise RuntimeError(f"{op}: {name} has shape {list(x.shape)}, expected {expected}")
    batches, tokens, _, dim = sizes(q, how)
    if k is not None and (batches, tokens, dim) != (*sizes(k, how)[:2], sizes(k, how)[3]):
        expected = f"the batches, tokens and columns of q: [{batches}, {tokens}, .., {dim}]"
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected {expected}")
    for name, out in outs.items():
        x = q if name == "q_out" else k
        if out is not None and x is not None:
            same_device(op, name, out, q)
            if out.shape != x.shape or out.dtype != x.dtype:
                raise RuntimeError(f"{op}: {name} has shape {list(out.shape)}, expected {list(x.shape)}")
    check_tables(op, q, k, how)


def sizes(x: Tensor, how: Rotation) -> tuple[int, int, int, int]:
    """Return four numbers for the queries or keys `x`: batches, tokens, heads, and columns per head."""
    if x.dim() == 3:
        batches, tokens, columns = x.shape
        dim = how.head_dim or columns
        return batches, tokens, columns // dim, dim
    batches, tokens, heads, dim = x.shape
    return (batches, heads, tokens, dim) if how.heads_first else (batches, tokens, heads, dim)


def transposed(how: Rotation, x: Tensor) -> Rotation:
    """Return the arguments with which the kernel of `rope` computes the gradient of the queries or keys `x`
    from the incoming gradient.

    For the columns `a` and `b` of a pair, the forward computes `a * cos_a - b * sin_a` and `b * cos_b + a * sin_b`. Let
    `da` and `db` be the incoming gradients of these two results. The gradients of `a` and `b` are then
    `da * cos_a + db * sin_b` and `db * cos_b - da * sin_a`. The forward kernel computes the same two formulas for the
    pair `(da, db)`, if it rotates by the negative angles and `sin_a` and `sin_b` are exchanged in the table. In a table
    with one entry per pair, `sin_a` and `sin_b` are equal, so nothing is exchanged.
    """
    sin = how.sin
    columns = how.rotary_dim or sizes(x, how)[3]
    if sin is not None and how.angles == TABLES and sin.shape[-1] == columns:
        pairs = sin.unflatten(-1, (-1, 2) if how.interleaved else (2, -1))
        sin = pairs.flip(-1 if how.interleaved else -2).flatten(-2)
    return how._replace(sin=sin, conjugate=not how.conjugate)


def check_tables(op: str, q: Tensor, k: Tensor | None, how: Rotation) -> None:
    """Raise RuntimeError if the rotary tables do not match the shapes and dtypes of `q` and `k`.

    If `how.cos` and `how.sin` are frequencies and positions instead of tables, check the frequencies and
    positions.
    """
    cos, sin = how.cos, how.sin
    if cos is None:
        if how.positions is not None:
            raise RuntimeError(f"{op}: positions is given without cos")
        return
    dim = sizes(q, how)[3]
    columns = how.rotary_dim or dim
    if columns < 2 or columns % 2 or columns > dim:
        raise RuntimeError(f"{op}: rotary_dim is {columns}, expected an even number of columns, at most a head's")
    if how.angles == FREQUENCIES:
        if how.positions is not None:
            raise RuntimeError(f"{op}: positions is given, expected none for frequencies")
        _expect(op, "frequencies", cos, q, (torch.float32,), "f32", (columns // 2,))
        if sin is None:
            return
        _check_positions(op, sin, (q, k), how, (torch.float32,), "f32")
        return
    if how.angles == COMPLEX and not how.interleaved:
        raise RuntimeError(f"{op}: interleaved is 0, expected true for complex tables")
    _expect(op, "cos", cos, q, (q.dtype, torch.float32), or_f32(q.dtype, "the heads"))
    if sin is not None:
        _expect(op, "sin", sin, q, (cos.dtype,), FLOATS[cos.dtype], tuple(cos.shape))
    shape, rank = cos.shape, cos.dim()
    if how.positions is not None and rank != 2:
        raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected two dimensions, because there are positions")
    if rank not in (2, 3, 4):
        raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected two to four dimensions")
    widths = [columns] if how.angles == COMPLEX else [columns, columns // 2]
    if shape[-1] not in widths:
        raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected a last dimension of one of {widths}")
    if how.positions is not None:
        if not 1 <= shape[0] <= MOST_ROWS:
            raise RuntimeError(f"{op}: cos has shape {list(shape)}, expected between 1 and 2^31 - 1 rows")
        _check_positions(op, how.positions, (q, k), how, (torch.int64, torch.int32), "int64 or int32")
        return
    at_heads = 1 if how.heads_first else 2
    held = (
        shape[0] if rank > 2 else 1,
        shape[-2] if rank < 4 else shape[3 - at_heads],
        shape[at_heads] if rank == 4 else 1,
    )
    _check_broadcast(op, "cos", cos, held, (q, k), how)


def _check_positions(
    op: str,
    positions: Tensor,
    tensors: tuple[Tensor, Tensor | None],
    how: Rotation,
    dtypes: tuple[torch.dtype, ...],
    expected: str,
) -> None:
    """Raise RuntimeError unless `positions` has one number for each rotated token, the shape `[S]` or `[B, S]`,
    and one of the dtypes `dtypes`.

    `tensors` is the pair `(q, k)`. `expected` is a text that names the accepted dtypes.
    """
    _expect(op, "positions", positions, tensors[0], dtypes, expected)
    if positions.dim() not in (1, 2):
        raise RuntimeError(f"{op}: positions has shape {list(positions.shape)}, expected [S] or [B, S]")
    held = (positions.shape[0] if positions.dim() == 2 else 1, positions.shape[-1], 1)
    _check_broadcast(op, "positions", positions, held, tensors, how)


def _expect(
    op: str,
    name: str,
    tensor: Tensor,
    q: Tensor,
    dtypes: tuple[torch.dtype, ...],
    expected: str,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Raise RuntimeError unless `tensor` has the device of `q`, one of the dtypes `dtypes`, and the shape
    `shape`.

    If `shape` is None, every shape is accepted. `expected` is a text for the error message, which names the
    accepted dtypes.
    """
    same_device(op, name, tensor, q)
    if tensor.dtype not in dtypes:
        raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected {expected}")
    if shape is not None and tuple(tensor.shape) != shape:
        raise RuntimeError(f"{op}: {name} has shape {list(tensor.shape)}, expected {list(shape)}")


def _check_broadcast(
    op: str,
    name: str,
    table: Tensor,
    held: tuple[int, int, int],
    tensors: tuple[Tensor, Tensor | None],
    how: Rotation,
) -> None:
    """Raise RuntimeError unless the batches, tokens and heads of a rotary table match `q` and `k`. One batch
    matches any number of batches, and one head matches any number of heads.

    `held` has three numbers: how many batches, tokens and heads `table` has. `tensors` is the pair `(q, k)`.
    """
    q, k = tensors
    batches, tokens, heads, _ = sizes(q, how)
    if k is not None and sizes(k, how)[2] != heads:
        heads = 1
    got = f"{op}: {name} has shape {list(table.shape)}"
    if held[0] not in (1, batches) or held[2] not in (1, heads):
        raise RuntimeError(f"{got}, expected one for {batches} batches and {heads} heads, or for all of them")
    if how.offset < 0 and held[1] != tokens:
        raise RuntimeError(f"{got}, expected {tokens} tokens")
    if how.offset >= 0 and how.offset + held[1] > tokens:
        expected = "the number of a token, with those of the tables behind it"
        raise RuntimeError(f"{op}: offset is {how.offset}, expected {expected}")


def same_device(op: str, name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.device != q.device:
        raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {q.device}, the device of q")


def outputs(op: str, k: Tensor | None, out: Any) -> tuple[Tensor, Tensor | None]:
    """Return the tensors in `out` to which an operator writes its results for `q` and `k`.

    Raise TypeError or ValueError unless `out` has one tensor, or two tensors if `k` is not None.
    """
    outs = list(out) if isinstance(out, tuple | list) else [out]
    for one in outs:
        if one is not None and not isinstance(one, Tensor):
            raise TypeError(f"{op}: out is {type(one).__name__}, expected a torch.Tensor or a pair of them")
    if len(outs) > 2 or not outs or outs[0] is None:
        raise ValueError(f"{op}: out has {len(outs)} tensors, expected one, or two with k")
    q_out, k_out = outs[0], outs[1] if len(outs) == 2 else None
    if (k is None) != (k_out is None):
        raise ValueError(f"{op}: out has another number of tensors than there are inputs")
    return q_out, k_out


def readable(grad: Tensor) -> Tensor:
    """Return the gradient `grad`, or a contiguous copy if its last stride is not 1.

    Autograd may pass expanded gradients, whose strides are 0. The kernels require a last stride of 1.
    """
    return grad if grad.stride(-1) == 1 or grad.shape[-1] == 1 else grad.contiguous()


__all__ = [
    "FREQUENCIES",
    "ROTATION",
    "TABLE_ROLES",
    "Rotation",
    "check_head_dim",
    "check_heads",
    "outputs",
    "readable",
    "rotation",
    "same_device",
    "sizes",
    "tensors_only",
]
