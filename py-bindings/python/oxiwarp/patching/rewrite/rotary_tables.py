"""Converts rotary tables to the form that `oxiwarp.rope` takes, once for all layers that read the same tables."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._cache import FAKE, Store, dispatch_mode, keep, stream_of

HALVES = ("even", "odd", "first", "second")
"""Columns of a table that a function may read instead of all columns."""
MOST_RESULTS = 8
"""Most results that are kept for one tensor."""
Tables = tuple[Tensor, ...]
_held: dict[int, tuple["weakref.ref[Tensor]", int, Store]] = {}
"""By the `id` of a tensor that owns memory: the tensor, its version, and the results for it and its views."""


def once(table: Tensor, key: Any, make: Callable[[Tensor], Tables]) -> Tables:
    """Return `make(table)`. The result is kept until the memory of `table` is written or freed.

    `key` identifies `make`. Tensors of the inference mode have no version, so their results are not kept. A write
    through `Tensor.data` does not change the version either.
    """
    if table.is_inference() or table.requires_grad or dispatch_mode(FAKE) is not None:
        return make(table)
    owner = table._base if table._is_view() else table
    assert owner is not None
    store = store_of(owner)
    full = key, table.dtype, table.shape, table.stride(), table.data_ptr()
    made = store.get((full, stream_of(table.device)))
    return keep(store, MOST_RESULTS, full, table.device, lambda: apart(make(table), owner)) if made is None else made


def store_of(owner: Tensor) -> Store:
    """Return the results for the present version of a tensor."""
    key, version = id(owner), owner._version
    found = _held.get(key)
    if found is not None and found[0]() is owner and found[1] == version:
        return found[2]

    def drop(dead: "weakref.ref[Tensor]") -> None:
        if (now := _held.get(key)) is not None and now[0] is dead:
            del _held[key]

    store: Store = {}
    _held[key] = weakref.ref(owner, drop), version, store
    return store


def apart(made: Tables, owner: Tensor) -> Tables:
    """Copy each tensor that shares memory with `owner`, because the cache would keep `owner` alive."""
    return tuple(x.clone() if x is owner or x._base is owner else x for x in made)


def cosines_and_sines(table: Tensor, form: str) -> Tables:
    """Return the cosines and the sines that a table of a form contains, or the table itself."""
    if form == "chunks":
        return table.chunk(2, dim=-1)
    if form in ("angles", "wide_angles"):
        angles = table.float() if form == "wide_angles" else table
        return angles.cos(), angles.sin()
    if form == "wide_complex":
        return (table.to(torch.complex64),)
    if form == "matrices":  # any matrix ((a, b), (c, d)): cosines (a, d), sines (-b, c)
        own = table.float()
        sines = torch.stack((-own[..., 0, 1], own[..., 1, 0]), dim=-1)
        return own.diagonal(dim1=-2, dim2=-1).flatten(-2), sines.flatten(-2)
    return (table,)


def columns_of(table: Tensor, part: str) -> Tensor:
    """Return the columns that `part` names, copied if they are not adjacent."""
    if part != "all":
        half = table.shape[-1] // 2
        columns = {
            "even": slice(0, None, 2),
            "odd": slice(1, None, 2),
            "first": slice(half),
            "second": slice(half, None),
        }
        table = table[..., columns[part]]
    return table if table.stride(-1) == 1 else table.contiguous()


__all__ = ["HALVES", "Tables", "columns_of", "cosines_and_sines", "once"]
