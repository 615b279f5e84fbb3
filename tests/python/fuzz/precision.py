"""The arithmetic that a formula runs in.

A formula is written once, with `m` as its arithmetic. It marks where the operator's documentation says that a value is
rounded to a dtype (`m.round`), where a float32 result is made (`m.f32`) and where a gradient is rounded (`m.back`).

- `Exact`: float64, and nothing is rounded.
- `Noisy`: float64, and every mark multiplies by 1 plus a random error, half to all of the largest one of such a
  rounding. Several runs show how far a correct result may be from the exact one, whatever the formula's condition is.
- `Rounded`: float32 with real roundings, as torch's chain of operators: NaN, infinities and overflow as there.
"""

import torch
from torch import Tensor

UNIT = 2.0**-23  # relative error of a float32 result: two roundings
# Absolute error of a rounding of small values. Below the smallest normal number of float32 a result may be 0.
LEAST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25}


class Exact:
    """Float64 without rounding."""

    def __init__(self, gradient: bool = False) -> None:
        self.gradient = gradient

    def wide(self, x: Tensor) -> Tensor:
        """The tensor in the type that the formula computes in."""
        return x.double()

    def round(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A result that is rounded to `dtype`. Gradients are computed as if it were not."""
        return x

    def f32(self, x: Tensor, units: float | Tensor = 1.0, of: Tensor | None = None) -> Tensor:
        """A result computed in float32, with an error of so many units of itself, or of `of`."""
        return x

    def back(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A value whose gradient, or which itself for the gradient's sake, is rounded to `dtype`."""
        return x

    def edge(self, x: Tensor, size: float | Tensor = UNIT) -> Tensor:
        """One use of a value, whose part of the value's gradient is a float32 number: parts may cancel."""
        return x

    def slope(self, x: Tensor, amount: float) -> Tensor:
        """Zero, whose derivative by `x` is an error of up to `amount`."""
        return torch.zeros_like(x)

    def kept(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A sum or product that has torch's bits everywhere: really rounded. Its gradient is not."""
        rounded = x.detach().float().to(dtype).to(x.dtype)
        return x + (rounded - x.detach()) if x.requires_grad else rounded


class Noisy(Exact):
    """Float64 with errors as large as roundings may make them; `common`: of the same sign in all elements."""

    def __init__(self, seed: int, gradient: bool = False, common: bool = False) -> None:
        super().__init__(gradient)
        self._generator, self._common = torch.Generator("cpu").manual_seed(seed), common

    def _noise(self, x: Tensor, size: float | Tensor) -> Tensor:
        noise = torch.rand(() if self._common else x.shape, generator=self._generator, dtype=torch.float64) - 0.5
        return (noise + 0.5 * noise.sign()).to(x.device) * size  # from half of it to all of it

    def _changed(self, x: Tensor, size: float | Tensor) -> Tensor:
        """A relative error of the value; for a gradient another one of the derivative."""
        if not self.gradient:
            return x * (1 + self._noise(x, size))
        return self.edge(x + _finite(x.detach()) * self._noise(x, size), size)

    def round(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if self.gradient:
            return x
        return self._changed(x, torch.finfo(dtype).eps / 2) + self._noise(x, LEAST[dtype])

    def f32(self, x: Tensor, units: float | Tensor = 1.0, of: Tensor | None = None) -> Tensor:
        return self._changed(x, units * UNIT) if of is None else x + of * self._noise(x, units) * UNIT

    def back(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.gradient:
            return x
        return self._changed(x, torch.finfo(dtype).eps / 2) + self._noise(x, LEAST[dtype])

    def edge(self, x: Tensor, size: float | Tensor = UNIT) -> Tensor:
        return x + _finite(x - x.detach()) * self._noise(x, size) if self.gradient else x

    def slope(self, x: Tensor, amount: float) -> Tensor:
        return (x - x.detach()) * self._noise(x, amount) if self.gradient else torch.zeros_like(x)


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


class Rounded(Exact):
    """Float32 with real roundings to 16 bits."""

    def wide(self, x: Tensor) -> Tensor:
        return x.float()

    def round(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x if self.gradient else x.to(dtype).to(x.dtype)
