"""A fusion for the sinusoidal timestep embedding of diffusers (models/embeddings.py). The fused method
launches half as many kernels as the original method.

A fusion is a hand-written method that replaces a method of a model's class. Every denoising step begins with
this embedding, while the GPU is idle. The frequencies depend only on constants of the module, so they are
cached. Cosines and sines are concatenated directly in the order that the model uses.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...._cache import kept
from ..core.fusion import Fusion
from ..core.recipe import FusedRecipe

MODULE = "diffusers.models.embeddings"
MAX_PERIOD = 10000


def embedding(self: Any, how: FusedRecipe, timesteps: Tensor) -> Tensor:
    """Compute the result of `Timesteps.forward` with cached frequencies."""
    count, shift = self.num_channels // 2, self.downscale_freq_shift
    angles = timesteps[:, None].float() * frequencies(count, shift, timesteps.device)
    if self.scale != 1:
        angles = self.scale * angles
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, sin) if self.flip_sin_to_cos else (sin, cos), dim=-1)


@kept
def frequencies(count: int, shift: float, device: torch.device) -> Tensor:
    """Return the frequencies of diffusers' `get_timestep_embedding`, `[1, count]`."""
    exponent = -math.log(MAX_PERIOD) * torch.arange(0, count, dtype=torch.float32, device=device)
    return torch.exp(exponent / (count - shift))[None]


def accepts(self: Any, timesteps: Tensor) -> bool:
    """Return whether `timesteps` is a plain 1-D tensor and the number of columns of the embedding is even."""
    return type(timesteps) is Tensor and timesteps.dim() == 1 and self.num_channels % 2 == 0


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
