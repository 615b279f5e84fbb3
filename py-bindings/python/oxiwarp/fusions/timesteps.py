"""The sinusoidal embedding of a timestep (diffusers: models/embeddings.py), in half as many kernels.

Every step begins with it, while the GPU waits. Its frequencies, which follow from its width, are made once, and cosines
and sines are put beside each other in their order.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .._tables import lasts
from ._fusion import FusedRecipe, Fusion

MODULE = "diffusers.models.embeddings"
MAX_PERIOD = 10000

_kept: dict[tuple[int, float, torch.device], Tensor] = {}


def embedding(self: Any, how: FusedRecipe, timesteps: Tensor) -> Tensor:
    """`Timesteps.forward`."""
    angles = timesteps[:, None].float() * frequencies(self.num_channels // 2, self.downscale_freq_shift, timesteps)
    if self.scale != 1:
        angles = self.scale * angles
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, sin) if self.flip_sin_to_cos else (sin, cos), dim=-1)


def frequencies(count: int, shift: float, x: Tensor) -> Tensor:
    """`get_timestep_embedding`'s, `[1, count]` on `x`'s device, for any stream and grad mode."""
    key = count, shift, x.device
    found = _kept.get(key)
    if found is None:
        with torch.inference_mode(False):
            exponent = -math.log(MAX_PERIOD) * torch.arange(0, count, dtype=torch.float32, device=x.device)
            found = torch.exp(exponent / (count - shift))[None]
        if x.is_cuda:
            torch.cuda.current_stream(x.device).synchronize()
        if lasts(found):
            _kept[key] = found
    return found


def accepts(self: Any, timesteps: Tensor) -> bool:
    """An even width, and no CUDA graph, in which nothing can be made for later."""
    return (
        type(timesteps) is Tensor
        and timesteps.dim() == 1
        and self.num_channels % 2 == 0
        and not (timesteps.is_cuda and torch.cuda.is_current_stream_capturing())
    )


FUSIONS = (
    Fusion(
        name="timesteps",
        classes=(f"{MODULE}.Timesteps",),
        run=embedding,
        accepts=accepts,
        kernels=False,
        sources={"forward": ("cea8c275dd64",), ":get_timestep_embedding": ("5de8c4c9bf64",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("frequencies of the sinusoidal embedding, made once",),
    ),
)
