"""A cache for the rotary tables of LTX-Video (diffusers: models/transformers/transformer_ltx.py). The tables are
cosines and sines.

The rotary tables depend only on the size of the video, but diffusers computes them again in every step, with about
twenty small kernels before the first block. The fused method calls the original method only if the size changes, and
only for a batch of one. Each rotary module caches its last tables. The original tables contain every angle twice, once
for each column of a pair. The cache therefore also has smaller tables with every angle once: `cos[..., ::2]` and
`sin[..., ::2]`. For 8064 tokens, the kernel `qk_norm_rope` takes 112 us with the smaller tables, and 126 us with the
original tables.
"""

from typing import Any

import torch
from torch import Tensor

from ...._cache import MOST_BYTES, keep, store_of
from ...class_swap import base_of
from ..core.fusion import Fusion
from ..core.modules import hooked
from ..core.recipe import FusedRecipe
from .ltx import MODULE, ONCE

CONSTANTS = ("dim", "base_num_frames", "base_height", "base_width", "patch_size", "patch_size_t", "theta")

Tables = tuple[Tensor, ...]


def embedding(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    num_frames: int | None = None,
    height: int | None = None,
    width: int | None = None,
    rope_interpolation_scale: tuple[float, float, float] | None = None,
    video_coords: None = None,
) -> Tables:
    """Return the cosine and sine tables of `LTXVideoRotaryPosEmbed.forward`, expanded to the batch size of
    `hidden_states`.

    A cache keeps the tables for the last video size. If other code has written to the cached tables, compute
    them again. Writes to `.data` or through NumPy are not detected, because they do not change the version
    counter of autograd.
    """
    size = num_frames, height, width, rope_interpolation_scale
    device = hidden_states.device
    key = *size, *(getattr(self, name) for name in CONSTANTS), device

    def make() -> Tables:
        base: Any = base_of(self)
        cos, sin = base.forward(self, hidden_states[:1], *size)
        return cos, sin, cos[..., ::2].contiguous(), sin[..., ::2].contiguous()

    if torch.compiler.is_compiling():
        tables = make()
    else:
        store = store_of(self)
        if any(table._version for tables in store.values() for table in tables):
            store.clear()
        tables = keep(store, 1, key, device, make, MOST_BYTES)
    cos, sin, *once = (table.expand(hidden_states.shape[0], -1, -1) for table in tables)
    setattr(cos, ONCE, (sin, *once))
    return cos, sin


def accepts(
    self: Any,
    hidden_states: Tensor,
    num_frames: Any = None,
    height: Any = None,
    width: Any = None,
    rope_interpolation_scale: Any = None,
    video_coords: Any = None,
) -> bool:
    """Return whether the rotary tables depend only on numbers, such as the height of the video, and the
    rotary module has no hooks.

    A hook could write to the cached tables.
    """
    scale = rope_interpolation_scale
    return (
        video_coords is None
        and type(hidden_states) is Tensor
        and hidden_states.shape[0] > 0
        and type(num_frames) is type(height) is type(width) is int
        and (scale is None or (type(scale) is tuple and all(type(part) in (int, float) for part in scale)))
        and not hooked(self)
    )


FUSIONS = (
    Fusion(
        name="ltx.rope",
        classes=(f"{MODULE}.LTXVideoRotaryPosEmbed",),
        run=embedding,
        accepts=accepts,
        kernels=False,
        traced=True,
        sources={"forward": ("329353628556",), "_prepare_video_coords": ("5d7a87134666",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("tables of the rotary embedding, made once for a size",),
    ),
)
