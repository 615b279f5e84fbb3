"""Draws random arguments: sizes, dtypes, values and memory layouts. Every random choice is recorded as an
integer."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, BF16, F16)
ELEMENTS = 8_000  # maximum number of elements of a random tensor
# Maps each kind of special rows, such as constant rows, to a bool. If it is True, the gradients of calls with
# such rows are compared.
SPECIAL = {
    "ordinary": True,
    "constant": True,
    "offset": True,
    "zeros": True,
    "denormal": False,
    "large": False,
    "nan": False,
    "inf": False,
}
Layout = Callable[[Tensor], Tensor]
T = TypeVar("T")


class Draw:
    """Makes random choices from a seed, or repeats recorded choices.

    A choice is an integer, and 0 is the simplest choice.
    """

    def __init__(self, seed: str, choices: Sequence[int] | None = None, device: str = "cpu") -> None:
        self._random, self._given, self.choices = random.Random(seed), choices, list[int]()
        self.device = torch.device(device)
        self.special = "ordinary"

    def below(self, count: int) -> int:
        """Return an integer from 0 to `count - 1`."""
        if self._given is None:
            value = self._random.randrange(count)
        else:
            at = len(self.choices)
            value = min(self._given[at], count - 1) if at < len(self._given) else 0
        self.choices.append(value)
        return value

    def pick(self, *options: T) -> T:
        """Return one of the options.

        The first option is the simplest choice. An option that is listed more than once is chosen more often.
        """
        return options[self.below(len(options))]

    def maybe(self, probability: float) -> bool:
        """Return True with this probability. False is the simplest choice."""
        return self.below(1000) >= 1000 * (1 - probability)

    def dtype(self) -> torch.dtype:
        return self.pick(*DTYPES)

    def cols(self, most: int = 5000) -> int:
        """Return a number of columns from 1 to `most`.

        Most of these random numbers are small. About a third are rounded up to a multiple of 8.
        """
        bound = min(most, self.pick(8, 8, 32, 32, 130, 130, 600, 2100, 5000))
        count = 1 + self.below(bound)
        return math.ceil(count / 8) * 8 if bound >= 8 and self.maybe(0.35) and count + 7 <= most else count

    def lead(self, cols: int, rank: int | None = None, zero: float = 0.04) -> list[int]:
        """Return a list of random sizes for all dimensions of a tensor except the last one, whose size is
        `cols`.

        The number of these dimensions is `rank`, or a random number from 0 to 5 if `rank` is None. The tensor
        has at most `ELEMENTS` elements, or `cols` elements if these are more.
        """
        rank = self.below(6) if rank is None else rank
        sizes, left = [], max(1, ELEMENTS // cols)
        for _ in range(rank):
            size = min(left, self.pick(1, 2, 3, 4, 7, 5, 40))
            left //= size
            sizes.append(size)
        if rank and self.maybe(zero):
            sizes[self.below(rank)] = 0
        return sizes

    def shape(self, most: int = 5000) -> tuple[int, ...]:
        """Return a shape with 1 to 6 dimensions. The size of the last dimension is at least 1."""
        cols = self.cols(most)
        return (*self.lead(cols), cols)

    def normal(self, shape: Sequence[int], dtype: torch.dtype, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        """Return a dense tensor of normally distributed values, clamped to the finite range of `dtype`."""
        generator = torch.Generator("cpu").manual_seed(self.below(2**31))
        values = torch.randn(tuple(shape), generator=generator) * scale + mean
        limit = 0.9 * torch.finfo(dtype).max
        return values.clamp(-limit, limit).to(dtype).to(self.device)

    def rows(self, shape: Sequence[int], dtype: torch.dtype, *, largest: float = 3e38) -> Tensor:
        """Return a tensor of random rows. In a third of the cases, some rows are special: for example, they
        are constant or contain NaN.

        `self.special` is set to the kind of the special rows, or to "ordinary" if there are none.
        """
        x = self.normal(shape, dtype, self.pick(1.0, 1.0, 0.05, 8.0, 1e-3))
        names = list(SPECIAL)
        kind = self.pick(*["ordinary"] * 14, *names[1:])
        self.special = kind
        if kind == "ordinary" or x.numel() == 0:
            self.special = "ordinary"
            return x
        flat = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
        at = slice(self.below(2), None, self.pick(1, 2, 3))  # every row, every second row or every third row
        if at.start >= len(flat):
            at = slice(0, None, at.step)
        column = self.below(flat.shape[1])
        limit = min(largest, torch.finfo(dtype).max)
        if kind == "constant":
            flat[at] = self.pick(1.0, 0.1, 1000.1, 30000.0)
        elif kind == "offset":
            flat[at] += self.pick(100.0, -1000.0)
        elif kind == "zeros":
            flat[at] = 0.0
        elif kind == "denormal":
            flat[at] = (flat[at].float() * self.pick(1e-40, 1e-38, 1e-7)).to(dtype)
        elif kind == "large":
            flat[at] = (flat[at].float().clamp(-1, 1) * limit).to(dtype)
        elif kind == "nan":
            flat[at, column] = math.nan
        else:
            flat[at, column] = self.pick(math.inf, -math.inf)
        return flat.reshape(x.shape)

    def layout(self, rank: int, *, expand: bool = True, last: bool = True) -> Layout:
        """Return a function that copies a tensor with `rank` dimensions into a random memory layout.

        If `last` is true, 1 % of these layouts have gaps between the elements of a row. Operators must reject
        tensors with such gaps.
        """
        steps: list[Layout] = []
        kinds = ["dense", "dense", "dense", "offset", "gaps"]
        if rank >= 2:
            kinds += ["part", "permuted"] + ["expanded"] * expand
        for _ in range(2 if self.maybe(0.15) else 1):
            kind = self.pick(*kinds)
            if kind == "offset":
                by = 1 + self.below(9)
                steps.append(lambda x, by=by: _shifted(x, by))
            elif kind == "gaps" and rank:
                before, after = self.below(5), 1 + self.below(8)
                steps.append(lambda x, b=before, a=after: _within(x, x.dim() - 1, b, a))
            elif kind == "part":
                dim, step = self.below(rank - 1), 1 + self.below(2)
                before, after = self.below(2), self.below(3)
                steps.append(lambda x, d=dim, b=before, a=after, s=step: _within(x, d, b, a, s))
            elif kind == "permuted":
                order = list(range(rank - 1))
                for at in range(rank - 2):
                    other = at + self.below(rank - 1 - at)
                    order[at], order[other] = order[other], order[at]
                steps.append(lambda x, o=(*order, rank - 1): _permuted(x, o))
            elif kind == "expanded":
                dim = self.below(rank - 1)
                steps.append(lambda x, d=dim: x.narrow(d, 0, min(1, x.shape[d])).expand(x.shape))
        if last and rank and self.maybe(0.01):
            steps.append(lambda x: _within(x, x.dim() - 1, 0, 0, 2))

        def lay(x: Tensor) -> Tensor:
            for step in steps:
                x = step(x)
            return x

        return lay

    def vector(self, cols: int, dtype: torch.dtype, scale: float = 0.5, mean: float = 0.0) -> Tensor:
        """Return a contiguous vector `[cols]`. In 20 % of the cases, the vector has a storage offset of 1
        to 7 elements."""
        values = self.normal((cols,), dtype, scale, mean)
        return _shifted(values, 1 + self.below(7)) if self.maybe(0.2) else values

    def parameter(self, cols: int, dtype: torch.dtype, present: float = 0.6, mean: float = 0.0) -> Tensor | None:
        """Return a random weight or bias, whose dtype is `dtype` or float32. Return None with a probability
        of `1 - present`."""
        return self.vector(cols, self.pick(dtype, dtype, F32), mean=mean) if self.maybe(present) else None

    def eps(self) -> float:
        return self.pick(1e-6, 1e-5, 1e-6, 1e-3, 1e-8)

    def some(self, names: Sequence[str]) -> list[str]:
        """Return a random subset of the names, with at least one."""
        chosen = [name for name in names if self.maybe(0.5)]
        return chosen or list(names[:1])


def _shifted(x: Tensor, by: int) -> Tensor:
    """Return a dense copy of the tensor with a storage offset of `by` elements.

    The copy may therefore be unaligned.
    """
    store = torch.full((x.numel() + by + 3,), 55.0, dtype=x.dtype, device=x.device)
    view = store[by : by + x.numel()].view(x.shape)
    view.copy_(x)
    return view


def _within(x: Tensor, dim: int, before: int, after: int, step: int = 1) -> Tensor:
    """Return a copy of `x` that is a slice of a tensor with more elements in dimension `dim`."""
    sizes = list(x.shape)
    sizes[dim] = before + sizes[dim] * step + after
    store = torch.full(sizes, 55.0, dtype=x.dtype, device=x.device)
    index: list[Any] = [slice(None)] * x.dim()
    index[dim] = slice(before, before + x.shape[dim] * step, step)
    view = store[tuple(index)]
    view.copy_(x)
    return view


def _permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return a copy of `x` with the same shape, but with a different order of dimensions in memory."""
    back = [list(order).index(dim) for dim in range(x.dim())]
    return x.permute(*order).contiguous().permute(*back)
