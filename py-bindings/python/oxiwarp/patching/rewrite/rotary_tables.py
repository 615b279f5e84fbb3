"""Converts the cos and sin tables of a model to the layout that `oxiwarp.rope` takes.

The result is cached, so that the conversion runs once for all layers that read the same tables.
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
    """Return `make(table)`. The result is cached until the memory of `table` is written or freed.

    `key` identifies `make`. Tensors that were created in inference mode have no version counter, so their
    results are not cached. A write through `Tensor.data` does not change the version counter, so the cache
    does not notice it.
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
    """Copy each tensor that shares memory with `owner`. Otherwise the cached tensor would keep `owner`
    alive."""
    return tuple(x.clone() if x is owner or x._base is owner else x for x in made)


def cosines_and_sines(table: Tensor, form: str) -> Tables:
    """Return the cosines and the sines that a table contains, or the table itself if `rope` takes it
    unchanged.

    `form` is one of the contents that are documented at `rotary.FORMS`.
    """
    if form == "chunks":
        return table.chunk(2, dim=-1)
    if form in ("angles", "wide_angles"):
        angles = table.float() if form == "wide_angles" else table
        return angles.cos(), angles.sin()
    if form == "wide_complex":
        return (table.to(torch.complex64),)
    if form == "matrices":  # For a matrix ((a, b), (c, d)), the cosines are (a, d) and the sines are (-b, c).
        own = table.float()
        sines = torch.stack((-own[..., 0, 1], own[..., 1, 0]), dim=-1)
        return own.diagonal(dim1=-2, dim2=-1).flatten(-2), sines.flatten(-2)
    return (table,)


def columns_of(table: Tensor, part: str) -> Tensor:
    """Return the columns that `part` names. Copy them if they are not adjacent in memory."""
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
