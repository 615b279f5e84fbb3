"""Converts the rotary tables (cosines and sines) of a model to the layout that `oxiwarp.rope` requires.

The converted tables are cached, so that the conversion runs once for all layers that read the same tables.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._cache import FAKE, Store, dispatch_mode, keep, stream_of

HALVES = ("even", "odd", "first", "second")
"""Names of the column subsets of a table that a rotary function may read: every second column, or one
half."""
MOST_RESULTS = 8
"""Maximum number of cached results for one tensor."""
Tables = tuple[Tensor, ...]
_held: dict[int, tuple["weakref.ref[Tensor]", int, Store]] = {}
"""The cache. For the `id` of a tensor that owns memory: the tensor, its version, and the results for it and
its views."""


def once(table: Tensor, key: Any, make: Callable[[Tensor], Tables]) -> Tables:
    """Return `make(table)`, which converts a rotary table. The result is cached until other code writes to
    the table or frees it.

    `key` identifies the conversion `make`. Autograd's version counter of the table detects writes, except writes
    through `Tensor.data`. A table that was created in inference mode has no version counter, so its result is not
    cached.
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
    """Return the cached results for the current version of a tensor."""
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
    """Return the tensors `made`, and replace each tensor that shares memory with `owner` by a copy. Without the
    copy, a cached tensor would keep `owner` alive.
    """
    return tuple(x.clone() if x is owner or x._base is owner else x for x in made)


def cosines_and_sines(table: Tensor, form: str) -> Tables:
    """Return a tuple with the cosines and the sines that a rotary table contains. If `oxiwarp.rope` takes the
    table unchanged, return only the table.

    `form` says what the table contains: one of the names that are documented at `rotary.FORMS`.
    """
    if form == "chunks":
        return table.chunk(2, dim=-1)
    if form in ("angles", "wide_angles"):
        angles = table.float() if form == "wide_angles" else table
        return angles.cos(), angles.sin()
    if form == "wide_complex":
        return (table.to(torch.complex64),)
    if form == "matrices":  # From a matrix ((a, b), (c, d)), take (a, d) as cosines and (-b, c) as sines.
        own = table.float()
        sines = torch.stack((-own[..., 0, 1], own[..., 1, 0]), dim=-1)
        return own.diagonal(dim1=-2, dim2=-1).flatten(-2), sines.flatten(-2)
    return (table,)


def columns_of(table: Tensor, part: str) -> Tensor:
    """Return all or half of the columns of a table. `part` names them: "all" or a name in `HALVES`. If they
    are not adjacent in memory, return a copy.
    """
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
