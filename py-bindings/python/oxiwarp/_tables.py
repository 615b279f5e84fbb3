"""Frequencies and tables of rotary embeddings, by torch and kept for the next call."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

KEPT = 16  # of each kind: a model has one or two resolutions at a time
Made = TypeVar("Made")


def _kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """`make`, whose last results are kept; in a graph that torch.compile traces it stands as it is."""

    @functools.lru_cache(KEPT)
    def plain(*args: Any) -> Made:
        with torch.inference_mode(False), torch.no_grad():  # a backward may save them
            return make(*args)

    def call(*args: Any) -> Made:
        return make(*args) if torch.compiler.is_compiling() else plain(*args)

    return call


def lasts(*made: Tensor) -> bool:
    """Whether tensors may be kept for later calls: they are no fake ones, and none that torch.func has wrapped."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(tensor) is Tensor and not wrapped(tensor) for tensor in made)


@_kept
def frequencies(dim: int, theta: float, device: torch.device) -> Tensor:
    """`theta**(-2i/dim)` in float32, as transformers' rotary embeddings compute them: on the CPU."""
    return (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))).to(device)


@_kept
def grid_tables(
    grid: tuple[int, ...], splits: tuple[int, ...], theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[S, D / 2]`, float32, for the tokens of a grid whose axes have these columns of a head."""
    parts = []
    for axis, (size, split) in enumerate(zip(grid, splits, strict=True)):
        base = 1.0 / (theta ** (torch.arange(0, split, 2, dtype=torch.float64, device=device) / split))
        angles = torch.outer(torch.arange(size, device=device, dtype=torch.float64), base)
        shape = [size if i == axis else 1 for i in range(len(grid))]
        parts.append(angles.view(*shape, -1).expand(*grid, -1))
    angles = torch.cat(parts, dim=-1).flatten(0, -2)
    return angles.cos().float(), angles.sin().float()


def ltx_tables(coordinates: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """LTX-Video's cosines and sines `[.., S, dim / 2]`, float32, for coordinates `[.., S, 3]`."""
    low, high = (math.log(end, theta) for end in (1.0, theta))
    base = theta ** torch.linspace(low, high, dim // 6, device=coordinates.device, dtype=torch.float32)
    angles = (base * math.pi / 2.0) * (coordinates.float().unsqueeze(-1) * 2 - 1)
    angles = angles.transpose(-1, -2).flatten(-2)
    still = (dim % 6 // 2, 0)
    cos = torch.nn.functional.pad(angles.cos(), still, value=1.0)
    return cos, torch.nn.functional.pad(angles.sin(), still)
