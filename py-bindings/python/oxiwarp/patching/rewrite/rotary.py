"""Finds out what a rotary function computes, by running it on small random tensors.

Models contain many different rotary functions. These functions differ in four properties:
- which columns form a pair that is rotated,
- the layout of the queries and of the tables,
- which columns of the tables the function reads,
- which intermediate results the function rounds.

*Tables* are tensors of cosines and sines, or one complex tensor. A *probe* is a run of a rotary function on
the CPU with small random tensors. `rotation_of` makes a probe, and compares the result with the results of
`oxiwarp.rope` for each combination of these properties.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops._register import PLAIN
from ...ops.rope import rope
from ..norms.probe import undisturbed
from .rotary_tables import HALVES, columns_of, cosines_and_sines, once

SIZES = {"B": 2, "S": 4, "H": 5}
"""Sizes of the dimensions of the tensors in a probe (a test run on random tensors): batch, tokens and
heads."""
LAYOUTS = {3: ("BS", "SH", "HS"), 4: ("BSH", "BHS")}
"""Possible orders of the query dimensions before the last one, by the rank of the queries. The letters stand
for batch (B), tokens (S) and heads (H). In the order "BS", the last dimension contains the columns of all
heads."""
FEW = SIZES["S"] - 1
"""Number of tokens of the tables in a probe whose function rotates only some tokens of the queries."""
FORMS = {1: ("chunks", "angles", "wide_angles"), 2: ("pair", "swapped")}
"""Possible contents of real tables, by the number of tables.

- "pair": cosines and sines.
- "swapped": sines and cosines.
- "chunks": cosines in the first half of the columns, and sines in the second half.
- "angles": the function computes cosines and sines from angles, in the dtype of the table.
- "wide_angles": the function computes cosines and sines from angles in float32.

Other contents are "complex", "wide_complex" (complex128, so that the function computes in float64) and
"matrices" (a 2 x 2 matrix for each pair of columns)."""
VARIANTS = ("back", "last", "apart", "wide")
"""Rare variants of rotations.

- "back": the function rotates by the negative angle.
- "last": the function rotates the last columns instead of the first columns.
- "apart": the function rotates pairs of adjacent columns. In the result, the first columns of all pairs come
  before the second columns of all pairs.
- "wide": the queries have 16 bits, and the result is float32."""
CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)
MOST_COLUMNS = 1 << 14


class Shape(NamedTuple):
    """Dtype and shape properties of a tensor argument. They determine the random tensor that replaces the
    argument in a probe (a test run of a rotary function)."""

    dtype: torch.dtype
    columns: int
    """Size of the last dimension."""
    ones: tuple[bool, ...]
    """For each dimension before the last one, whether its size is 1."""
    matrices: bool = False
    """Whether the last two dimensions have size 2. `columns` and `ones` then describe the dimensions before
    them."""


Signature = tuple[Any, ...]
"""The arguments of a call. A tensor is replaced by its `Shape`, and a tuple or list by a tuple. A constant
stays unchanged."""


@dataclass
class Rotation:
    """Says how `oxiwarp.rope` computes the same as a rotary function: how to read the tables, and which arguments to
    pass to `rope`.

    This is a dataclass, because Dynamo (the tracer of torch.compile) reads properties of dataclasses.
    """

    number: int
    """Number of tensors that the function rotates: 1 (a query or a key) or 2 (both). They are its first
    arguments."""
    layout: str
    """The dimensions of the rotated tensors before the last dimension, as letters: B (batch), S (tokens), H
    (heads)."""
    dims: str
    """The dimensions of the tables before the last dimension, as letters B (batch), S (tokens), H (heads).
    "1" is a dimension of size 1."""
    form: str
    """What the tables contain: one of the names that are documented at `FORMS`."""
    casts: bool
    """Whether the function casts float32 tables to the dtype of the queries."""
    parts: tuple[str, str]
    """The columns that the function reads of the cosines and of the sines: "all", or one of the names in
    `HALVES`."""
    interleaved: bool
    rotary_dim: int | None
    mode: str
    variant: str = ""
    """One of the names in `VARIANTS`, or "" for most rotations."""
    tokens: str = "all"
    """Which tokens of the queries the function rotates: "all", "first" or "last". With "first" and "last",
    the function rotates as many tokens as the tables have."""
    caches: bool = True
    """Whether converted tables are cached. Under torch.compile, they are not."""

    def __post_init__(self) -> None:
        self.key = (*self.fields()[:-1],)
        self.turned: Rotation | None = None
        """The same rotation of tensors in which the dimensions of heads and tokens are exchanged. None if the tables
        have a head dimension, or if the dimension of heads does not come first."""
        if self.layout == "BHS" and "H" not in self.dims:
            self.turned = replace(self, layout="BSH")

    def fields(self) -> tuple[Any, ...]:
        """Return the values of all fields."""
        fields = (self.number, self.layout, self.dims, self.form, self.casts, self.parts, self.interleaved)
        return (*fields, self.rotary_dim, self.mode, self.variant, self.tokens, self.caches)

    @property
    def heads_first(self) -> bool:
        """Whether the dimension of heads comes before the dimension of tokens."""
        return "HS" in self.layout

    @property
    def joint(self) -> int | None:
        """If `oxiwarp.qk_norm_rope` can compute norms and this rotation in one kernel, the index of the token
        dimension. Otherwise None.
        """
        return (
            None if self.layout in ("SH", "HS") or self.variant in ("last", "apart", "wide") else self.layout.index("S")
        )

    @property
    def whole(self) -> bool:
        """Whether one call of `oxiwarp.rope` computes the complete result, and all tokens are rotated."""
        return self.variant in ("", "back") and self.tokens == "all"

    def tables(self, leaves: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the rotary tables `leaves` of a call in the layout that `oxiwarp.rope` requires. `dtype` is
        the dtype of the queries."""
        if self.form == "swapped":
            leaves = leaves[::-1]
        found: tuple[Tensor, ...] = ()
        for at, leaf in enumerate(leaves):
            back = self.variant == "back" and at == 1
            if back or self.casts or self.parts[at] != "all" or leaf.stride(-1) != 1 or self.form not in UNCHANGED:
                convert = functools.partial(self.converted, at=at, dtype=dtype)
                found += once(leaf, (self.key, at, dtype), convert) if self.caches else convert(leaf)
            else:
                found += (self.placed(leaf),)
        return found

    def converted(self, leaf: Tensor, at: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the tables (cosines, sines or both) that `leaf` contains, converted for `oxiwarp.rope`.
        `leaf` is the tensor with index `at` of a call."""
        made = []
        for own, table in enumerate(cosines_and_sines(leaf, self.form), at):
            table = columns_of(table.to(dtype) if self.casts else table, self.parts[own])
            made.append(self.placed(-table if self.variant == "back" and own == 1 else table))
        return tuple(made)

    def placed(self, table: Tensor) -> Tensor:
        """Return a table with shape `[S, R]` or `[B, S, R]`. If the table has a head dimension, return it
        with the dimensions of a query."""
        squeezed, order, new = placement(self.dims, "HS" in self.layout)
        if squeezed:
            table = table.squeeze(squeezed)
        if order is not None:
            table = table.permute(order)
        for at in new:
            table = table.unsqueeze(at)
        return table

    def offset(self, x: Any, leaves: tuple[Tensor, ...]) -> int | None:
        """Return the index of the first token of `x` that is rotated. If the tables have a row for each
        token, return None."""
        if self.tokens == "all":
            return None
        return 0 if self.tokens == "first" else x.shape[self.layout.index("S")] - self.table_tokens(leaves)

    def has_few_tokens(self, args: tuple[Any, ...]) -> bool:
        """Return whether the tables of a call have fewer tokens than the queries."""
        if "S" not in self.dims:
            return False
        return self.table_tokens(leaves_of(args[self.number :])) < args[0].shape[self.layout.index("S")]

    def table_tokens(self, leaves: tuple[Tensor, ...]) -> int:
        """Return the number of tokens of the tables."""
        return leaves[0].shape[self.dims.index("S")]

    def rotate(self, heads: tuple[Tensor, ...], leaves: tuple[Tensor, ...], mode: str) -> tuple[Tensor, ...]:
        """Rotate queries, keys or both with the tables of a call."""
        cos, sin, *_ = (*self.tables(leaves, heads[0].dtype), None)
        heads = tuple([x.float() for x in heads]) if self.variant == "wide" else heads
        own = [x.unsqueeze(0) for x in heads] if self.layout in ("SH", "HS") else heads
        first = own[0].shape[-1] - (self.rotary_dim or 0) if self.variant == "last" else 0
        rotated = [x[..., first:] for x in own] if first else own
        made = rope(
            rotated[0],
            rotated[1] if len(own) == 2 else None,
            cos,
            sin,
            interleaved=self.interleaved,
            rotary_dim=None if first else self.rotary_dim,
            heads_first="HS" in self.layout,
            offset=None if self.tokens == "all" else self.offset(heads[0], leaves),
            mode=mode if mode == "fast" else self.mode,
        )
        results: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        if self.variant == "apart":
            results = tuple(parted(x, self.rotary_dim) for x in results)
        if first:
            results = tuple(torch.cat((x[..., :first], y), dim=-1) for x, y in zip(own, results, strict=True))
        return tuple([x.view(heads[at].shape) for at, x in enumerate(results)]) if own is not heads else results


Placement = tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...]]


@functools.cache
def cached_placement(dims: str, heads_first: bool) -> Placement:
    """Return how to bring a rotary table with the dimensions `dims` into the layout that `oxiwarp.rope`
    requires.

    Return three values: the dimensions to squeeze, the new order of the other dimensions (None if unchanged),
    and the positions of new dimensions.
    """
    own = dims.replace("1", "")
    named = ("BHS" if heads_first else "BSH") if "H" in own else "BS" if "B" in own else "S"
    order = (*(own.index(dim) for dim in named if dim in own), len(own))
    return (
        tuple(at for at, dim in enumerate(dims) if dim == "1"),
        None if order == tuple(range(len(order))) else order,
        tuple(at for at, dim in enumerate(named) if dim not in own),
    )


def placement(dims: str, heads_first: bool) -> Placement:
    """Return the result of `cached_placement`. Under torch.compile, the result is a constant."""
    return cached_placement(dims, heads_first)


placement._dynamo_marked_constant = True  # type: ignore[attr-defined]

UNCHANGED = ("pair", "swapped", "complex")
"""Contents of tables that `oxiwarp.rope` takes without a conversion."""


def parted(x: Tensor, rotary_dim: int | None) -> Tensor:
    """Reorder the first `rotary_dim` columns, which are pairs of adjacent columns: the first columns of all
    pairs, then the second columns of all pairs."""
    own, rest = (x, x[..., :0]) if rotary_dim is None else (x[..., :rotary_dim], x[..., rotary_dim:])
    return torch.cat((own[..., 0::2], own[..., 1::2], rest), dim=-1)


def shape_of(x: Any) -> Shape:
    """Return the `Shape` of a tensor, or of another object with a shape and a dtype."""
    shape = x.shape
    if len(shape) >= 4 and shape[-1] == shape[-2] == 2:
        return Shape(x.dtype, shape[-3], tuple([size == 1 for size in shape[:-3]]), True)
    return Shape(x.dtype, shape[-1] if shape else 0, tuple([size == 1 for size in shape[:-1]]))


def signature_of(args: Any) -> Any:
    """Return the signature of an argument or of a tuple of arguments: each tensor becomes a `Shape`, and
    constants stay.

    If an argument is neither a tensor nor a constant, return an `Unknown` (a `str` with the reason).
    """
    if isinstance(args, Tensor):
        if type(args) not in PLAIN:
            return Unknown(f"an argument is a {type(args).__name__}")
        return shape_of(args)
    if isinstance(args, tuple | list):
        found = tuple(signature_of(arg) for arg in args)
        return next((one for one in found if type(one) is Unknown), found)
    return args if isinstance(args, CONSTANTS) else Unknown(f"an argument is a {type(args).__name__}")


class Unknown(str):
    """The reason why an argument has no signature."""

    __slots__ = ()


def leaves_of(args: Any) -> tuple[Tensor, ...]:
    """Return the tensors in an argument or in a tuple of arguments."""
    if isinstance(args, Tensor):
        return (args,)
    found: list[Tensor] = []
    for arg in args if isinstance(args, tuple | list) else ():
        found += (arg,) if isinstance(arg, Tensor) else leaves_of(arg)
    return tuple(found)


def rotation_of(function: Callable[..., Any], signature: Signature, few: bool = False) -> Rotation | None:
    """Return the `Rotation` (how to call `oxiwarp.rope`) that `function` computes for arguments with this
    `signature`. Return None if `oxiwarp.rope` cannot compute it.

    If `few` is True, the tables have fewer tokens than the queries. This function runs `function` on the CPU, with the
    torch modes of the caller, such as fake tensors, switched off.
    """
    with undisturbed():
        for count, layout, dims in layouts(signature):
            if few and "S" not in dims:
                continue
            args = tensors(signature, count, layout, dims, few)
            found = match(function, args, count, layout, dims, ("first", "last") if few else ("all",))
            if found is not None:
                return found
    return None


def layouts(signature: Signature) -> Iterator[tuple[int, str, str]]:
    """Yield all possible combinations of the fields `number`, `layout` and `dims` of a `Rotation`, as
    tuples."""
    first = signature[0]
    if not isinstance(first, Shape) or first.columns > MOST_COLUMNS or first.dtype.is_complex or first.matrices:
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
    """Return the `Shape` of each tensor of a signature."""
    if isinstance(signature, Shape):
        return [signature]
    return [shape for one in signature for shape in shapes(one)] if isinstance(signature, tuple) else []


def tensors(signature: Signature, count: int, layout: str, dims: str, few: bool) -> tuple[Any, ...]:
    """Return random arguments for a rotary function, with the given `signature`.

    The first `count` arguments (queries and keys) have the dimensions `layout`. All other tensors (tables)
    have the dimensions `dims`.
    """
    generator = torch.Generator("cpu").manual_seed(0)

    def made(one: Any, names: str, tokens: int) -> Any:
        if isinstance(one, Shape):
            sizes = {"1": 1, **SIZES, "S": tokens}
            shape = [1 if is_one else sizes[name] for name, is_one in zip(names, one.ones, strict=True)]
            dtype = torch.complex64 if one.dtype.is_complex else torch.float32
            return torch.randn(
                *shape, one.columns, *(2, 2) * one.matrices, generator=generator, dtype=dtype, device="cpu"
            ).to(one.dtype)
        return tuple(made(part, names, tokens) for part in one) if isinstance(one, tuple) else one

    heads = (made(one, layout, SIZES["S"]) for one in signature[:count])
    return (*heads, *(made(one, dims, FEW if few else SIZES["S"]) for one in signature[count:]))


def match(
    function: Callable[..., Any], args: tuple[Any, ...], count: int, layout: str, dims: str, tokens: tuple[str, ...]
) -> Rotation | None:
    """Return the `Rotation` (how to call `oxiwarp.rope`) that gives the same results as `function(*args)`, or
    None.

    `tokens` lists the values to try for the field `tokens` of the `Rotation`.
    """
    heads, leaves = args[:count], leaves_of(args[count:])
    before = [x.clone() for x in (*heads, *leaves)]
    try:
        results = function(*args)
    except Exception:  # noqa: BLE001  any error means that the function does not take these arguments
        return None
    if not all(torch.equal(x, own) for x, own in zip((*heads, *leaves), before, strict=True)):
        return None  # The function writes to its arguments.
    results = results if isinstance(results, tuple | list) else (results,)
    if len(results) != count:
        return None
    dtype: Any = getattr(results[0], "dtype", None)
    for x, y in zip(heads, results, strict=True):
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != dtype or dtype not in (x.dtype, torch.float32):
            return None
    columns, wide = heads[0].shape[-1], dtype != heads[0].dtype
    for choice, part in itertools.product(choices(leaves, len(dims), columns, dtype), tokens):
        found = replace(Rotation(count, layout, dims, *choice), tokens=part)
        if wide:
            if found.variant:
                continue
            found = replace(found, variant="wide")
        try:
            made = found.rotate(heads, leaves, "exact")
        except RuntimeError:  # The operator `rope` does not take these arguments.
            continue
        if all(agree(y, own) for y, own in zip(made, results, strict=True)):
            return found
    return None


def choices(leaves: tuple[Tensor, ...], rank: int, columns: int, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Yield tuples with the values of the last fields of a `Rotation`, starting with the field `form`. The
    tuples are all combinations that are possible with the rotary tables `leaves`.

    `rank` is the number of dimensions of a table that precede its column dimension.
    """
    single, whole = leaves[0].dtype == torch.float32, ("all", "all")
    if leaves[0].is_complex():
        form = "complex" if leaves[0].dtype == torch.complex64 else "wide_complex"
        if len(leaves) == 1 and (size := 2 * leaves[0].shape[-1]) <= columns:
            yield form, False, whole, True, None if size == columns else size, "exact"
        return
    if leaves[0].dim() == rank + 3:
        if len(leaves) == 1 and (size := 2 * leaves[0].shape[-3]) <= columns:
            yield "matrices", False, whole, True, None if size == columns else size, "exact"
        return
    wide = single and dtype != torch.float32
    roundings = [(False, "exact")] if single else [(False, "exact"), (False, "fast")]
    roundings += [(True, "exact")] if wide else []
    for form in FORMS[len(leaves)]:
        if single and form == "wide_angles":
            continue
        width = leaves[0].shape[-1] // (2 if form == "chunks" else 1)
        halves = [] if width % 2 or form == "swapped" else itertools.product(HALVES, repeat=2)
        for parts in (whole, *halves):
            own = width if parts == whole else width // 2
            sizes = [size for size in ((own, 2 * own) if parts == whole else (2 * own,)) if size <= columns]
            for size, interleaved, (casts, mode) in itertools.product(sizes, (True, False), roundings):
                if size and size % 2 == 0:
                    choice = form, casts, parts, interleaved, None if size == columns else size, mode
                    yield from ((*choice, variant) for variant in ("", *variants(choice, columns)))


def variants(choice: tuple[Any, ...], columns: int) -> Iterator[str]:
    """Yield the rare variants (names in `VARIANTS`) that are possible for a rotation. `choice` has the fields
    of the rotation, as in `choices`."""
    form, _, parts, interleaved, rotary_dim, _ = choice
    if form == "pair" and parts in (("all", "all"), ("first", "first")):
        if parts[0] == "all":
            yield "back"
            if rotary_dim is not None:
                yield "last"
        if interleaved:
            yield "apart"


def agree(y: Tensor, r: Tensor) -> bool:
    """Return whether the results `y` and `r` are equal, apart from the effect of fused multiply-adds.

    If the results have 16 bits, at most 1 % of the values may differ, by up to 2e-2, absolute and relative.
    An additional or missing rounding to 16 bits changes many more values. For float32 results, the tolerance
    is 2e-6, absolute and relative.
    """
    if y.dtype == torch.float32:
        return torch.allclose(y, r, rtol=2e-6, atol=2e-6)
    return torch.allclose(y, r, rtol=2e-2, atol=2e-2) and bool((y != r).float().mean() <= 0.01)


__all__ = [
    "CONSTANTS",
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
