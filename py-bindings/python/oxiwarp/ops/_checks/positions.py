"""Checks of the arguments of `rope_1d` and `rope_3d` that describe positions: grids, coordinates and
frequencies.

`check_theta`, the check of the frequencies' base, is called only when frequencies or a table are computed. Frequencies
and tables in the cache have already passed this check.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._register import dtype_name
from .heads import INTEGERS

# `theta` is part of a cache key, so it must be hashable. Values of the types in `NUMBERS` are hashable, and
# they are not checked before the cache lookup. Values of other types, such as arrays, may not be hashable.
# They are checked first.
NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
Three = tuple[int, int, int]


def sizes(q: Tensor, heads_first: bool) -> tuple[int, int]:
    """Return two numbers: the batches and the tokens of `q`. Raise RuntimeError if `q` has an unsupported
    number of dimensions.
    """
    if q.dim() not in (3, 4) or (q.dim() == 3 and heads_first):
        raise RuntimeError(f"rope: q has shape {list(q.shape)}, expected four dimensions, or three without heads")
    return q.shape[0], q.shape[2 if heads_first else 1]


def checked_grid(grid: Sequence[int] | None, tokens: int, offset: int | None) -> Three:
    """Return `grid` as a tuple. Raise TypeError or ValueError unless it has three integers (frames, height,
    width) whose product matches the number of tokens.

    If `offset` is None, the product must be `tokens`. Otherwise, the grid starts at the token with the index `offset`,
    and may end before the last token.
    """
    three = _three("grid", grid)
    if three is None or three[0] < 0 or three[1] < 0 or three[2] < 0:
        raise ValueError(f"rope: grid is {grid}, expected three numbers: frames, height and width")
    held = three[0] * three[1] * three[2]
    if held != tokens if offset is None else offset + held > tokens:
        behind = "" if offset is None else f", the first of them token {offset}"
        raise ValueError(f"rope: grid is {grid} of {held} tokens{behind}, expected the {tokens} tokens of q")
    return three


def checked_splits(splits: Sequence[int] | None, dim: int) -> Three:
    """Return three numbers: how many columns of a head are rotated for each position axis (frame, row,
    column).

    If `splits` is None, return the numbers that the model Wan uses.

    Raise TypeError or ValueError unless `splits` has three even numbers whose sum is `dim` (the columns per
    head).
    """
    rows = 2 * (dim // 6)
    if splits is None and dim % 2 == 0:
        return dim - 2 * rows, rows, rows
    three = (dim - 2 * rows, rows, rows) if splits is None else _three("splits", splits)
    if three is None or sum(three) != dim or any(split % 2 or split < 0 for split in three):
        raise ValueError(f"rope: splits is {splits or three}, expected three even numbers whose sum is {dim}")
    return three


def _three(name: str, values: Any) -> Three | None:
    """Return `values` as a tuple, or None if it does not contain exactly three integers.

    Raise TypeError if `values` is not iterable.
    """
    try:
        first, second, third = values
    except TypeError:
        raise TypeError(f"rope: {name} is {type(values).__name__}, expected three integers") from None
    except ValueError:
        return None
    integers = isinstance(first, INTEGERS) and isinstance(second, INTEGERS) and isinstance(third, INTEGERS)
    return (first, second, third) if integers else None


def check_coordinates(
    coordinates: Tensor, q: Tensor, heads_first: bool, offset: int | None, splits: Sequence[int] | None
) -> None:
    """Raise RuntimeError unless `coordinates` has shape `[tokens, 3]` or `[batches, tokens, 3]`, a real
    dtype, and the device of `q`.

    If `offset` is not None, `coordinates` may have fewer tokens than `q`. Raise ValueError if `splits` is not
    None, because coordinates need no splits.
    """
    if splits is not None:
        raise ValueError(f"rope: splits is {splits}, expected None beside coordinates")
    batches, tokens = sizes(q, heads_first)
    shape = coordinates.shape
    fits = len(shape) in (2, 3) and shape[-1] == 3 and (len(shape) == 2 or shape[0] in (1, batches))
    if not fits or (shape[-2] != tokens if offset is None else offset + shape[-2] > tokens):
        raise RuntimeError(
            f"rope: coordinates has shape {list(shape)}, expected [{tokens}, 3] or [{batches}, {tokens}, 3]"
        )
    if coordinates.is_complex():
        raise RuntimeError(f"rope: coordinates is {coordinates.dtype}, expected integers or floats")
    if coordinates.device != q.device:
        raise RuntimeError(f"rope: coordinates is on {coordinates.device}, expected {q.device}, the device of q")


def check_inv_freq(inv_freq: Tensor, columns: int) -> None:
    """Raise RuntimeError unless `inv_freq` is float32 of shape `[columns / 2]`."""
    if tuple(inv_freq.shape) != (columns // 2,):
        raise RuntimeError(f"rope: inv_freq has shape {list(inv_freq.shape)}, expected [{columns // 2}]")
    if inv_freq.dtype is not torch.float32:
        raise RuntimeError(f"rope: inv_freq is {dtype_name(inv_freq.dtype)}, expected f32")


def check_theta(theta: float, one: bool = True) -> None:
    """Raise TypeError or ValueError unless `theta` is a finite number above 0.

    If `one` is False, the value 1 is not allowed either.
    """
    try:
        fits = 0.0 < theta < math.inf and (one or theta != 1)
    except TypeError:
        raise TypeError(f"rope: theta is {type(theta).__name__}, expected a number") from None
    if not fits:
        raise ValueError(f"rope: theta is {theta}, expected a finite number above 0{'' if one else ' that is not 1'}")


__all__ = ["NUMBERS", "check_coordinates", "check_inv_freq", "check_theta", "checked_grid", "checked_splits", "sizes"]
