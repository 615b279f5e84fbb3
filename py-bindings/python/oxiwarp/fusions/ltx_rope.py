"""The rotary embedding of LTX-Video (diffusers: models/transformers/transformer_ltx.py), kept for the next step.

Its tables follow from the size of the video alone, and making them takes some twenty small kernels before the first
block. Here the own method makes them, of one video whatever the batch, and the module's last ones are kept.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._tables import lasts
from ..replacement import base_of
from ._fusion import FusedRecipe, Fusion, hooked
from .ltx import MODULE

MOST_BYTES = 64 << 20  # of tables that are kept: those of 49 frames of 512 x 768 pixels have 44 MB
CONSTANTS = ("dim", "base_num_frames", "base_height", "base_width", "patch_size", "patch_size_t", "theta")

Tables = tuple[Tensor, Tensor]
_kept: WeakKeyDictionary[nn.Module, tuple[Any, Tables]] = WeakKeyDictionary()  # no copy and no pickle has them


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
    """`LTXVideoRotaryPosEmbed.forward`; tables that a batch shares are expanded."""
    device = hidden_states.device
    # Only the stream that they were made on may read them unasked, and training none that are made in inference mode.
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    constants = [getattr(self, name) for name in CONSTANTS]
    size = num_frames, height, width, rope_interpolation_scale
    key = size, device, stream, torch.is_inference_mode_enabled(), constants
    held, tables = _kept.get(self, (None, None))
    if tables is None or held != key:
        tables = base_of(self).forward(self, hidden_states[:1], *size)  # type: ignore[attr-defined]
        _kept.pop(self, None)
        if lasts(*tables) and sum(table.nbytes for table in tables) <= MOST_BYTES:
            _kept[self] = key, tables
    cos, sin = tables
    batch = hidden_states.shape[0]
    return cos.expand(batch, -1, -1), sin.expand(batch, -1, -1)


def accepts(
    self: Any,
    hidden_states: Tensor,
    num_frames: Any = None,
    height: Any = None,
    width: Any = None,
    rope_interpolation_scale: Any = None,
    video_coords: Any = None,
) -> bool:
    """Numbers only, nobody who could write to the tables, and no CUDA graph that would go on reading them."""
    scale = rope_interpolation_scale
    return (
        video_coords is None
        and type(hidden_states) is Tensor
        and hidden_states.shape[0] > 0
        and type(num_frames) is type(height) is type(width) is int
        and (scale is None or (type(scale) is tuple and all(type(part) in (int, float) for part in scale)))
        and not hooked(self)
        and not (hidden_states.is_cuda and torch.cuda.is_current_stream_capturing())
    )


FUSIONS = (
    Fusion(
        name="ltx.rope",
        classes=(f"{MODULE}.LTXVideoRotaryPosEmbed",),
        run=embedding,
        accepts=accepts,
        kernels=False,
        sources={"forward": ("329353628556",), "_prepare_video_coords": ("5d7a87134666",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("tables of the rotary embedding, made once for a size",),
    ),
)
