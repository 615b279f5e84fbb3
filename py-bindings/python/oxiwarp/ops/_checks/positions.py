"""What `rope_1d` and `rope_3d` are given beside queries and keys, checked: numbers, and places of tokens.

What theta has to be is checked where tables are made of it, which is not in every call.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._register import dtype_name
from .heads import INTEGERS

NUMBERS = (float, int, torch.SymFloat, torch.SymInt)  # others go through `check_theta`: no cache can hold a list
Three = tuple[int, int, int]


def sizes(q: Tensor, heads_first: bool) -> tuple[int, int]:
    """Batches and tokens. Raises RuntimeError where there are none."""
    if q.dim() not in (3, 4) or (q.dim() == 3 and heads_first):
        raise RuntimeError(f"rope: q has shape {list(q.shape)}, expected four dimensions, or three without heads")
    return q.shape[0], q.shape[2 if heads_first else 1]


def checked_grid(grid: Sequence[int] | None, tokens: int, offset: int | None) -> Three:
    """The grid as a tuple. Raises TypeError or ValueError unless it is three sizes that together have all tokens, or
    those from `offset` on as far as they reach."""
    three = _three("grid", grid)
    if three is None or three[0] < 0 or three[1] < 0 or three[2] < 0:
        raise ValueError(f"rope: grid is {grid}, expected three numbers: frames, height and width")
    held = three[0] * three[1] * three[2]
    if held != tokens if offset is None else offset + held > tokens:
        behind = "" if offset is None else f", the first of them token {offset}"
        raise ValueError(f"rope: grid is {grid} of {held} tokens{behind}, expected the {tokens} tokens of q")
    return three


def checked_splits(splits: Sequence[int] | None, dim: int) -> Three:
    """The columns of each axis, or Wan's. Raises TypeError or ValueError unless they are even and those of a head."""
    rows = 2 * (dim // 6)
    if splits is None and dim % 2 == 0:
        return dim - 2 * rows, rows, rows
    three = (dim - 2 * rows, rows, rows) if splits is None else _three("splits", splits)
    if three is None or sum(three) != dim or any(split % 2 or split < 0 for split in three):
        raise ValueError(f"rope: splits is {splits or three}, expected three even numbers whose sum is {dim}")
    return three


def _three(name: str, values: Any) -> Three | None:
    """Three integers; None for anything else that has elements."""
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
    """Raise RuntimeError unless each token, or those from `offset` on, has three; ValueError for splits beside them."""
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
    """Raise RuntimeError unless there is one in float32 for each pair of columns."""
    if tuple(inv_freq.shape) != (columns // 2,):
        raise RuntimeError(f"rope: inv_freq has shape {list(inv_freq.shape)}, expected [{columns // 2}]")
    if inv_freq.dtype is not torch.float32:
        raise RuntimeError(f"rope: inv_freq is {dtype_name(inv_freq.dtype)}, expected f32")


def check_theta(theta: float, one: bool = True) -> None:
    """Raise TypeError or ValueError unless it is a base of frequencies; `one`: 1 may be."""
    try:
        fits = 0.0 < theta < math.inf and (one or theta != 1)
    except TypeError:
        raise TypeError(f"rope: theta is {type(theta).__name__}, expected a number") from None
    if not fits:
        raise ValueError(f"rope: theta is {theta}, expected a finite number above 0{'' if one else ' that is not 1'}")


__all__ = ["NUMBERS", "check_coordinates", "check_inv_freq", "check_theta", "checked_grid", "checked_splits", "sizes"]
