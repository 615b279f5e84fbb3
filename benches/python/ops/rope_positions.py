"""Benchmarks of `rope_1d` and `rope_3d`, whose kernels compute the rotation angles from token positions."""

import math

import references
import torch
from forms import NO_MODE, ONE_ROUNDING, Form, Inputs, Result, Shape, Source
from rotary import wan
from torch import Tensor, float32

import oxiwarp
from oxiwarp.ops._rope_tables import grid_tables

THETA = 10000.0
HEIGHT, WIDTH = 30, 52  # A frame of Wan's 480p latents has this many rows and columns of patches.
# The grid (frames, rows, columns) for the shape [2, 480, 8, 64], an example in the guides for kernel authors.
SMALL_GRID = (4, 10, 12)


def _inputs(source: Source, shape: Shape) -> Inputs:
    return {"q": source.normal(*shape), "k": source.normal(*shape)}


def _angles(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    powers = torch.arange(0, dim, 2, device=positions.device, dtype=dtype) / dim
    return positions.to(dtype)[:, None] / THETA**powers


def _text(tokens: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the rotation angles of text tokens, `[tokens, dim / 2]`."""
    return _angles(torch.arange(tokens, device=device), dim, dtype)


def _video(tokens: int, dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the rotation angles of video tokens, `[tokens, dim / 2]`. The position of a video token consists
    of frame, row and column."""
    token = torch.arange(tokens, device=device)
    _, height, width = _grid(tokens)
    index = (token // (height * width), token // width % height, token % width)
    return torch.cat([_angles(at, axis, dtype) for at, axis in zip(index, _axes(dim), strict=True)], dim=-1)


def _axes(dim: int) -> tuple[int, int, int]:
    """Return how many elements of a head are rotated by angles of the token's frame, row and column, as in
    Wan."""
    side = 2 * (dim // 6)
    return dim - 2 * side, side, side


def _chain(angles_of, dtype):
    """Return a function that rotates q and k. It first computes cos and sin tables from token positions in
    the arithmetic of `dtype`."""

    def chain(q: Tensor, k: Tensor) -> Result:
        angles = angles_of(q.shape[1], q.shape[-1], q.device, dtype)
        cos, sin = (f(angles).repeat_interleave(2, dim=-1)[None, :, None] for f in (torch.cos, torch.sin))
        turned = references.rotate if dtype == torch.float64 else wan
        return turned(q, cos, sin), turned(k, cos, sin)

    return chain


# The following functions call oxiwarp.
def _ours_text(q: Tensor, k: Tensor) -> Result:
    return oxiwarp.rope_1d(q, k, theta=THETA)


def _ours_video(q: Tensor, k: Tensor, mode: str) -> Result:
    return oxiwarp.rope_3d(q, k, grid=_grid(q.shape[1]), splits=_axes(q.shape[-1]), theta=THETA, mode=mode)


def _grid(tokens: int) -> tuple[int, int, int]:
    """Return the video grid `(frames, rows, columns)` for this number of tokens.

    If there are too few tokens for one frame of 480p, the grid is one frame with fewer rows, or a single row.
    """
    if tokens == math.prod(SMALL_GRID):
        return SMALL_GRID
    if tokens < HEIGHT * WIDTH:
        return (1, tokens // WIDTH, WIDTH) if tokens > WIDTH else (1, 1, tokens)
    return (tokens // (HEIGHT * WIDTH), HEIGHT, WIDTH)


def _token_of_text(q: Tensor, k: Tensor, at: int, tokens: int) -> Result:
    return oxiwarp.rope_1d(q, k, theta=THETA, positions=torch.tensor([at], device=q.device))


def _token_of_video(q: Tensor, k: Tensor, at: int, tokens: int) -> Result:
    """Rotate one token of a video by `oxiwarp.rope`, with the cos and sin tables for this token."""
    cos, sin = (table[at : at + 1] for table in grid_tables(_grid(tokens), _axes(q.shape[-1]), THETA, q.device))
    return oxiwarp.rope(q, k, cos, sin)


FAMILY = "rope"
FORMS = (
    Form(
        op="rope_1d",
        chain="text",
        cases=(("text", (1, 8192, 32, 128)),),
        inputs=_inputs,
        eager=_chain(_text, float32),
        reference=_chain(_text, torch.float64),
        ours=_ours_text,
        claims={NO_MODE: ONE_ROUNDING},
        chunked=False,
        token=_token_of_text,
    ),
    Form(
        op="rope_3d",
        chain="video: Wan",
        cases=(("Wan 14B", (1, 32760, 40, 128)), ("small", (2, 480, 8, 64))),
        inputs=_inputs,
        eager=_chain(_video, float32),
        reference=_chain(_video, torch.float64),
        ours=_ours_video,
        claims={"exact": ONE_ROUNDING, "fast": ONE_ROUNDING},
        chunked=False,
        grains=(WIDTH, HEIGHT * WIDTH),
        token=_token_of_video,
    ),
)
