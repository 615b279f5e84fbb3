"""Finds out what a rotary function computes, by running it on small random tensors.

Models contain many rotary functions. They differ in the pairs of columns that they rotate, in the layout of queries and
tables, in the columns of the tables that they read, and in their roundings. `rotation_of` runs a function on the CPU
and compares the result with the results of `oxiwarp.rope` for each of these choices. Such a run is a *probe*. *Tables*
are cosines and sines, or one complex tensor.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...ops._register import PLAIN
from ...ops.rope import rope

SIZES = {"B": 2, "S": 3, "H": 5}
"""Sizes of the dimensions of a probe's tensors: batch, tokens and heads."""
LAYOUTS = {3: ("BS", "SH", "HS"), 4: ("BSH", "BHS")}
"""What the dimensions of queries before the last one may be, by rank. "BS": all heads are in the last dimension."""
HALVES = ("even", "odd", "first", "second")
"""Columns of a table that a function may read instead of all columns."""
FORMS = {1: ("chunks", "angles"), 2: ("pair",)}
"""What real tables may contain, by their number. "pair": cosines and sines. "chunks": both, in the two halves of the
columns. "angles": the function computes cosines and sines."""
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
MOST_COLUMNS = 1 << 14


class Shape(NamedTuple):
    """What a probe must know about a tensor."""

    dtype: torch.dtype
    columns: int
    """Size of the last dimension."""
    ones: tuple[bool, ...]
    """For each other dimension, whether its size is 1."""


Signature = tuple[Any, ...]
"""The arguments of a call: a `Shape` for a tensor, a tuple for a tuple or list, and a constant for itself."""


class Rotation(NamedTuple):
    """How `oxiwarp.rope` computes a function: how to read the function's tables, and the arguments of `rope`."""

    number: int
    """Number of tensors that the function rotates. They are its first arguments: a query or a key, or both."""
    layout: str
    """What the dimensions of these tensors before the last one are: letters of `SIZES`."""
    dims: str
    """The same for the tables. "1" is a dimension of size 1."""
    form: str
    """What the tables contain: "complex", or one of `FORMS`."""
    casts: bool
    """Whether the function casts float32 tables to the dtype of the queries."""
    parts: tuple[str, str]
    """The columns that the function reads of the cosines and of the sines: "all", or one of `HALVES`."""
    interleaved: bool
    rotary_dim: int | None
    mode: str

    @property
    def heads_first(self) -> bool:
        """Whether the dimension of heads stands before that of tokens."""
        return "HS" in self.layout

    def tables(self, leaves: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the tables of a call in the form that `oxiwarp.rope` takes. `dtype` is that of the queries."""
        found = self.cosines_and_sines(leaves)
        if self.casts:
            found = tuple(table.to(dtype) for table in found)
        return tuple(self.table(table, part) for table, part in zip(found, self.parts, strict=False))

    def cosines_and_sines(self, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return cosines and sines, or the complex table."""
        if self.form == "chunks":
            return tuple(part.contiguous() for part in leaves[0].chunk(2, dim=-1))
        return (leaves[0].cos(), leaves[0].sin()) if self.form == "angles" else leaves

    def table(self, table: Tensor, part: str) -> Tensor:
        """Return a table as `[S, R]`, `[B, S, R]` or, if it depends on the head, with the dimensions of a query."""
        table = columns_of(table, part)
        dims = self.dims.replace("1", "")
        order = ("BHS" if self.heads_first else "BSH") if "H" in dims else "BS" if "B" in dims else "S"
        table = table.squeeze([at for at, dim in enumerate(self.dims) if dim == "1"])
        table = table.permute(*(dims.index(dim) for dim in order if dim in dims), -1)
        for at, dim in enumerate(order):
            if dim not in dims:
                table = table.unsqueeze(at)
        return table

    def rotate(self, heads: tuple[Tensor, ...], leaves: tuple[Tensor, ...], mode: str) -> tuple[Tensor, ...]:
        """Rotate queries, keys or both by the tables of a call."""
        cos, sin, *_ = (*self.tables(leaves, heads[0].dtype), None)
        own = [x.unsqueeze(0) for x in heads] if self.layout in ("SH", "HS") else heads
        made = rope(
            own[0],
            own[1] if len(own) == 2 else None,
            cos,
            sin,
            interleaved=self.interleaved,
            rotary_dim=self.rotary_dim,
            heads_first=self.heads_first,
            mode=mode if mode == "fast" else self.mode,
        )
        results = made if isinstance(made, tuple) else (made,)
        return tuple(x.view(heads[at].shape) for at, x in enumerate(results))


def columns_of(table: Tensor, part: str) -> Tensor:
    """Return the columns that `part` names. A part of a table is copied, so that its columns are contiguous."""
    if part == "all":
        return table
    half = table.shape[-1] // 2
    columns = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "first": slice(half), "second": slice(half, None)}
    return table[..., columns[part]].contiguous()


def shape_of(x: Any) -> Shape:
    """Return what a probe must know about a tensor, or about an object with its shape and dtype."""
    return Shape(x.dtype, int(x.shape[-1]) if x.shape else 0, tuple(size == 1 for size in x.shape[:-1]))


def signature_of(args: Any) -> Any:
    """Return the signature of an argument or of a tuple of arguments, or `Unknown` with the reason."""
    if isinstance(args, Tensor):
        if type(args) not in PLAIN:
            return Unknown(f"an argument is a {type(args).__name__}")
        return shape_of(args)
    if isinstance(args, tuple | list):
        found = tuple(signature_of(arg) for arg in args)
        return next((one for one in found if type(one) is Unknown), found)
    return args if isinstance(args, CONSTANTS) else Unknown(f"an argument is a {type(args).__name__}")


class Unknown(str):
    """Why an argument has no signature."""

    __slots__ = ()


def leaves_of(args: Any) -> tuple[Tensor, ...]:
    """Return the tensors in an argument or in a tuple of arguments."""
    if isinstance(args, Tensor):
        return (args,)
    return tuple(leaf for arg in args for leaf in leaves_of(arg)) if isinstance(args, tuple | list) else ()


def rotation_of(function: Callable[..., Any], signature: Signature) -> Rotation | None:
    """Return what `function` computes for arguments with this signature, or None if `oxiwarp.rope` does not compute it.

    The function runs on the CPU. The caller's torch modes, such as fake tensors, do not apply to it.
    """
    with ExitStack() as stack:
        for manager in (_disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False)):
            stack.enter_context(manager)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for count, layout, dims in layouts(signature):
            args = tensors(signature, count, layout, dims)
            found = match(function, args, count, layout, dims)
            if found is not None:
                return found
    return None


def layouts(signature: Signature) -> Iterator[tuple[int, str, str]]:
    """Yield all possible values of the fields number, layout and dims of a `Rotation`."""
    first = signature[0]
    if not isinstance(first, Shape) or first.columns > MOST_COLUMNS or first.dtype.is_complex:
        return
    for count in (1, 2):
        tables = shapes(signature[count:])
        second = signature[count - 1]
        if not isinstance(second, Shape) or len(second.ones) != len(first.ones) or len(tables) not in (1, 2):
            continue
        ones = tables[0].ones
        if not 1 <= len(ones) <= 3 or any(table != tables[0] for table in tables):
            continue
        for layout in LAYOUTS.get(len(first.ones) + 1, ()):
            sizes = dict(zip(layout, first.ones, strict=True))
            free = [dim for dim in layout if not sizes[dim]]
            for chosen in itertools.permutations(free, sum(not one for one in ones)):
                names = iter(chosen)
                dims = "".join("1" if one else next(names) for one in ones)
                if "S" in dims or sizes["S"]:
                    yield count, layout, dims


def shapes(signature: Any) -> list[Shape]:
    """Return the tensors of a signature."""
    if isinstance(signature, Shape):
        return [signature]
    return [shape for one in signature for shape in shapes(one)] if isinstance(signature, tuple) else []


def tensors(signature: Signature, count: int, layout: str, dims: str) -> tuple[Any, ...]:
    """Return random arguments with this signature. The first `count` have dimensions `layout`, all others `dims`."""
    generator = torch.Generator("cpu").manual_seed(0)

    def made(one: Any, names: str) -> Any:
        if isinstance(one, Shape):
            own = ("1" if is_one else name for name, is_one in zip(names, one.ones, strict=True))
            shape = [SIZES.get(name, 1) for name in own]
            dtype = torch.complex64 if one.dtype.is_complex else torch.float32
            return torch.randn(*shape, one.columns, generator=generator, dtype=dtype, device="cpu").to(one.dtype)
        return tuple(made(part, names) for part in one) if isinstance(one, tuple) else one

    return tuple(made(one, layout if at < count else dims) for at, one in enumerate(signature))


def match(function: Callable[..., Any], args: tuple[Any, ...], count: int, layout: str, dims: str) -> Rotation | None:
    """Return the rotation that gives the results of `function` for `args`, or None."""
    heads, leaves = args[:count], leaves_of(args[count:])
    before = [x.clone() for x in (*heads, *leaves)]
    try:
        results = function(*args)
    except Exception:  # noqa: BLE001  any error means that the function does not take these arguments
        return None
    if not all(torch.equal(x, own) for x, own in zip((*heads, *leaves), before, strict=True)):
        return None  # it writes to its arguments
    results = results if isinstance(results, tuple | list) else (results,)
    if len(results) != count:
        return None
    for x, y in zip(heads, results, strict=True):
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            return None
    columns = heads[0].shape[-1]
    for choice in choices(leaves, columns, heads[0].dtype):
        found = Rotation(count, layout, dims, *choice)
        try:
            made = found.rotate(heads, leaves, "exact")
        except RuntimeError:  # the operator does not take these arguments
            continue
        if all(agree(y, own) for y, own in zip(made, results, strict=True)):
            return found
    return None


def choices(leaves: tuple[Tensor, ...], columns: int, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Yield the remaining fields of `Rotation` for the rotations that the tables of a call allow."""
    if leaves[0].is_complex():
        if leaves[0].dtype == torch.complex64 and (size := 2 * leaves[0].shape[-1]) <= columns:
            yield "complex", False, ("all", "all"), True, None if size == columns else size, "exact"
        return
    for form in FORMS[len(leaves)]:
        width = leaves[0].shape[-1] // (2 if form == "chunks" else 1)
        halves = [] if width % 2 else itertools.product(HALVES, repeat=2)
        wide = leaves[0].dtype == torch.float32 and dtype != torch.float32
        roundings = [(False, "exact")] if leaves[0].dtype == torch.float32 else [(False, "exact"), (False, "fast")]
        roundings += [(True, "exact")] if wide else []
        for parts in (("all", "all"), *halves):
            own = width if parts[0] == "all" else width // 2
            sizes = [size for size in ((own, 2 * own) if parts[0] == "all" else (2 * own,)) if size <= columns]
            for size, interleaved, (casts, mode) in itertools.product(sizes, (True, False), roundings):
                if size and size % 2 == 0:
                    yield form, casts, parts, interleaved, None if size == columns else size, mode


def agree(y: Tensor, r: Tensor) -> bool:
    """Whether two results differ so little that a fused multiply-add can be the reason.

    An additional or missing rounding to 16 bits changes many more values than the limit of 1 %. In float32, the limit
    is a difference of 2e-6.
    """
    if y.dtype == torch.float32:
        return torch.allclose(y, r, rtol=2e-6, atol=2e-6)
    return torch.allclose(y, r, rtol=2e-2, atol=2e-2) and bool((y != r).float().mean() <= 0.01)


__all__ = [
    "Rotation",
    "Shape",
    "Signature",
    "Unknown",
    "leaves_of",
    "rotation_of",
    "shape_of",
    "shapes",
    "signature_of",
]
