"""The kinds of arithmetic in which the fuzzer evaluates the formula of an operator.

Each formula is a function that takes an arithmetic `m`. It calls a method of `m` at each point where the
operator rounds. `m.round` is for a documented rounding to a dtype, `m.f32` for a float32 result, and `m.back`
for a rounding of a gradient.

- `Exact`: float64. Nothing is rounded.
- `Noisy`: float64. Each method call adds a random relative error between 50 % and 100 % of the largest
  rounding error. Several evaluations show how far a correct result may be from the exact one.
- `Rounded`: float32 with real roundings. NaN and infinities occur in the same elements as with torch
  operators, for example after an overflow.
"""

import torch
from torch import Tensor

UNIT = 2.0**-23  # largest relative error of a float32 result with two roundings
# Largest absolute rounding error of values near 0. In float32 and bfloat16, a result below the smallest
# normal number may be flushed to 0.
LEAST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25}


class Exact:
    """Arithmetic in float64, with no rounding to a narrower dtype. Subclasses for other kinds of arithmetic
    override its methods."""

    def __init__(self, gradient: bool = False) -> None:
        self.gradient = gradient

    def wide(self, x: Tensor) -> Tensor:
        """Convert the tensor to the dtype of this arithmetic."""
        return x.double()

    def round(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Mark `x` as a result that the operator rounds to `dtype`. The gradient ignores this rounding."""
        return x

    def f32(self, x: Tensor, units: float | Tensor = 1.0, of: Tensor | None = None) -> Tensor:
        """Mark `x` as a float32 result. Its error is at most `units` times `UNIT`, relative to `of`, or to
        `x` if `of` is None."""
        return x

    def back(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Mark `x` as a value that the backward pass rounds to `dtype`.

        The backward pass rounds either `x` itself or the gradient of `x`.
        """
        return x

    def edge(self, x: Tensor, size: float | Tensor = UNIT) -> Tensor:
        """Mark one use of `x`.

        The gradient of `x` is the sum of the gradients of all its uses. Each of these gradients gets a
        separate simulated error, so that the errors do not cancel.
        """
        return x

    def slope(self, x: Tensor, amount: float) -> Tensor:
        """Return zero.

        In `Noisy`, the derivative of this zero with respect to `x` is a random number of at most `amount`. A
        formula adds the zero to a function of `x` to simulate an error of its derivative.
        """
        return torch.zeros_like(x)

    def kept(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Round a sum or product to `dtype`.

        `Exact` and its subclasses all round this value, because the operator and torch give the same bits for
        it. The gradient is not rounded.
        """
        rounded = x.detach().float().to(dtype).to(x.dtype)
        return x + (rounded - x.detach()) if x.requires_grad else rounded


class Noisy(Exact):
    """Float64 with random errors that simulate rounding errors.

    If `common` is true, the errors of all elements of a tensor are equal. Otherwise they are independent.
    """

    def __init__(self, seed: int, gradient: bool = False, common: bool = False) -> None:
        super().__init__(gradient)
        self._generator, self._common = torch.Generator("cpu").manual_seed(seed), common

    def _noise(self, x: Tensor, size: float | Tensor) -> Tensor:
        noise = torch.rand(() if self._common else x.shape, generator=self._generator, dtype=torch.float64) - 0.5
        return (noise + 0.5 * noise.sign()).to(x.device) * size  # the magnitude is between size / 2 and size

    def _changed(self, x: Tensor, size: float | Tensor) -> Tensor:
        """Return `x` with a random relative error. If gradients are computed, its derivative gets a separate
        random error."""
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
