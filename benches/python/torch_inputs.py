"""Creates random inputs with the bits of torch 2.11, in every version of torch.

The inputs of a record of `record_bits.py` may come from torch 2.11. A comparison with such a record needs
inputs with the same bits. For a 16-bit type, torch 2.11 computes random numbers in this type. Newer versions
of torch compute them in float32 and round them. The float32 random numbers are equal in all versions, but
only on CPUs with AVX2.
"""

import math

import torch
from forms import Source
from torch import Tensor

DIGITS = {torch.bfloat16: 8, torch.float16: 11}
"""Number of significant bits."""


def repeatable() -> bool:
    """Return True if this CPU has AVX2, so that the inputs have the bits of the record. On other CPUs, the
    last bits of torch's float32 random numbers differ."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


class TorchSource(Source):
    """Creates the inputs on the CPU."""

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        dtype, count = dtype or self.dtype, math.prod(shape)
        if dtype not in DIGITS or count < 16:
            return super().normal(*shape, scale=scale, mean=mean, dtype=dtype)
        values = _box_muller(_uniform(count, dtype)[: count // 16 * 16])
        if count % 16:
            # If the count is no multiple of 16, torch makes the last 16 values from 16 new random numbers.
            values = torch.cat((values[: count - 16], _box_muller(_uniform(16, dtype))))
        return values.view(shape).mul_(scale).add_(mean)

    def weight(self, cols: int, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self.dtype
        return _uniform(cols, dtype).add_(0.5) if dtype in DIGITS else super().weight(cols, dtype)


def _uniform(count: int, dtype: torch.dtype) -> Tensor:
    """Return numbers from 0 to 1 in a 16-bit type.

    torch 2.11 makes such a number from the low 8 bits (bfloat16) or 11 bits (float16) of a 32-bit random
    integer. `torch.rand` in float32 uses the low 24 bits of the same integer, so its result contains these
    bits.
    """
    steps = 1 << DIGITS[dtype]
    return ((torch.rand(count) * 2.0**24).int() % steps / steps).to(dtype)


def _box_muller(uniform: Tensor) -> Tensor:
    """Return normally distributed numbers from groups of 16 uniform ones. Every step is rounded to the dtype.

    Roots, logarithms, cosines and sines are computed in float64, because float32 results differ between CPUs.
    """

    def rounded(x: Tensor) -> Tensor:
        return x.float().to(uniform.dtype)

    first, second = uniform.view(-1, 2, 8).unbind(1)
    radius = rounded((rounded((1 - first).double().log()) * -2).double().sqrt())
    angle = rounded(2.0 * math.pi * second.double()).double()
    return torch.stack((radius * rounded(angle.cos()), radius * rounded(angle.sin())), 1).flatten()
