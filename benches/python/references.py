"""Float64 references of the benchmarks.

The references compute the mathematical definition of each op. They do not use the code of the models.
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Normalize to mean 0 and variance 1 along the last dimension."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """Normalize to root mean square 1 along the last dimension."""
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight


def silu(x: Tensor) -> Tensor:
    """Compute `x * sigmoid(x)`."""
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """Compute `x * Phi(x)`, where Phi is the distribution function of the standard normal distribution."""
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of GELU. It uses the identity `(1 + tanh(u)) / 2 = sigmoid(2 u)`."""
    return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of elements in the last dimension. The cos and sin tables have the value for each
    pair twice, in adjacent elements."""
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], cos[..., 0::2], sin[..., 0::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate half-split pairs. A pair is element `i` of the first half of the last dimension, and element `i`
    of the second half."""
    (first, second), half = x.chunk(2, dim=-1), x.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
