"""Computes, with torch's operators, the frequencies and the tables of cosines and sines for rotary
embeddings.

The function `rope_3d` uses tables, because they are small and all layers of a model share them. For S tokens and D
columns per head, the two float32 tables together have `4 * S * D` bytes. The bfloat16 queries and keys that the kernel
reads and writes have `8 * S * heads * D` bytes. The function `rope_1d` uses no tables but only frequencies, because its
kernel computes the angles, cosines and sines.
"""

import math

import torch
from torch import Tensor

from .._cache import kept
from ._checks.positions import check_theta


@kept
def frequencies(dim: int, theta: float, device: torch.device) -> Tensor:
    """Return the frequencies `theta**(-2i/dim)` in float32, of shape `[dim / 2]`.

    They are computed on the CPU, so that they have the same bits as the frequencies in transformers.
    """
    check_theta(theta)
    return (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))).to(device)


@kept
def grid_tables(
    grid: tuple[int, ...], splits: tuple[int, ...], theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return two float32 tables, cosines and sines, for the tokens of a grid. Each has shape `[S, D / 2]`: S
    tokens, and one entry per pair of the D columns of a head.

    `grid` has the numbers of frames, rows and columns. `splits` has three numbers: how many columns of a head
    are rotated for each of these axes. The angles are computed in float64.
    """
    check_theta(theta)
    parts = []
    for axis, (size, split) in enumerate(zip(grid, splits, strict=True)):
        base = 1.0 / (theta ** (torch.arange(0, split, 2, dtype=torch.float64, device=device) / split))
        angles = torch.outer(torch.arange(size, device=device, dtype=torch.float64), base)
        shape = [size if i == axis else 1 for i in range(len(grid))]
        parts.append(angles.view(*shape, angles.shape[-1]).expand(*grid, -1))
    angles = torch.cat(parts, dim=-1).flatten(0, -2)
    return angles.cos().float(), angles.sin().float()


def ltx_tables(coordinates: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return two float32 tables, cosines and sines, as the model LTX-Video computes them.

    For coordinates of shape `[..., S, 3]`, the tables have shape `[..., S, dim / 2]`.
    """
    check_theta(theta, one=False)
    low, high = (math.log(end, theta) for end in (1.0, theta))
    base = theta ** torch.linspace(low, high, dim // 6, device=coordinates.device, dtype=torch.float32)
    angles = (base * math.pi / 2.0) * (coordinates.float().unsqueeze(-1) * 2 - 1)
    angles = angles.transpose(-1, -2).flatten(-2)
    still = (dim % 6 // 2, 0)
    cos = torch.nn.functional.pad(angles.cos(), still, value=1.0)
    return cos, torch.nn.functional.pad(angles.sin(), still)
