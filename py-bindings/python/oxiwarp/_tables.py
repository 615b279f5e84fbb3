"""Frequencies and tables of rotary embeddings, by torch; and how they, and whatever else follows from little, are kept
for the next call."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

KEPT = 16  # of each kind: a model has one or two resolutions at a time
Made = TypeVar("Made", Tensor, tuple[Tensor, ...])
Store = dict[tuple[Any, ...], Any]
FAKE = torch._C._TorchDispatchModeKey.FAKE
_of_graphs: list[Any] = []  # what captured graphs read: few and small, and nobody says when a graph is gone


def keep(
    store: Store,
    most: int,
    key: tuple[Any, ...],
    device: torch.device,
    make: Callable[[], Made],
    most_bytes: int = 0,
    graphs: bool = False,
) -> Made:
    """What `make` makes on `device` for `key`, or has made: its last results are in `store`, `most` of them.

    Calls of any grad mode and inference mode may have them. Another stream has its own, since it would read these
    unasked. Nothing is kept, or found, for fake tensors or torch.func's; or, where `most_bytes` is given, if it is
    larger. Neither for a CUDA graph, which goes on reading what it read, but with `graphs`: then it finds what any
    stream has made, and that is never let go.
    """
    stream = 0
    if torch._C._get_dispatch_mode(FAKE) is not None:
        return make()
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            found = (made for held, made in store.items() if held[:-1] == (*key, device))
            made = next(found, None) if graphs else None
            if made is None:
                return make()
            if all(made is not held for held in _of_graphs):  # each layer asks
                _of_graphs.append(made)
            return cast(Made, made)
        stream = torch.cuda.current_stream(device).cuda_stream
    key = (*key, device, stream)
    made = store.get(key)
    if made is None:
        with torch.inference_mode(False), torch.no_grad():  # a backward may save them
            made = make()
        tensors = (made,) if isinstance(made, Tensor) else made
        if not lasts(*tensors) or 0 < most_bytes < sum(tensor.nbytes for tensor in tensors):
            return made
        while len(store) >= most:
            del store[next(iter(store))]  # the oldest
        store[key] = made
    return made


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """`make`, whose last argument is a device, with its last results kept; in a graph that torch.compile traces it
    stands as it is."""
    store: Store = {}

    @functools.wraps(make)
    def call(*args: Any) -> Made:
        if torch.compiler.is_compiling():
            return make(*args)
        return keep(store, KEPT, args, args[-1], lambda: make(*args), graphs=True)

    call.store = store  # type: ignore[attr-defined]
    return call


def lasts(*made: Tensor) -> bool:
    """Whether tensors may be kept for later calls: they are no fake ones, and none that torch.func has wrapped."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(tensor) is Tensor and not wrapped(tensor) for tensor in made)


@kept
def frequencies(dim: int, theta: float, device: torch.device) -> Tensor:
    """`theta**(-2i/dim)` in float32, as transformers' rotary embeddings compute them: on the CPU."""
    return (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))).to(device)


@kept
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
