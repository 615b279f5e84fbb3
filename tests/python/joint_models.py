"""Small diffusion transformers that attend over text and image tokens together, and what fused kernels do in them."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from helpers import random
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, TEXT, IMAGE = 2, 5, 12


class Family(NamedTuple):
    """A model, its inputs, and how often each of our operators runs in one step of it."""

    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype, Any], dict[str, Any]]
    kernels: dict[str, int]


class Kernels(TorchDispatchMode):
    """Counts calls of operators, ours by their name alone."""

    def __init__(self):
        super().__init__()
        self.all = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.all[func.name()] += 1
        return func(*args, **(kwargs or {}))

    @property
    def ours(self):
        return {name.removeprefix("oxiwarp::"): n for name, n in self.all.items() if name.startswith("oxiwarp::")}


def build(family, dtype=torch.float32, device="cpu"):
    """The family's model, seeded, with biases and norm weights that a mistake would show in."""
    model = family.make().requires_grad_(False)
    for seed, parameter in enumerate(model.parameters()):
        if parameter.dim() == 1:
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.3))
    return nn.Module.to(model, dtype).to(device).eval()


def step(family, model, dtype=torch.float32, device="cpu"):
    """One step of a model: what it returns, as a tuple of tensors."""
    found = model(**family.inputs(dtype, device), return_dict=False)
    return tuple(found)


def seeded(cls, **config):
    """A diffusers model of this configuration, the same each time."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return getattr(diffusers, cls)(**config)


def flux():
    return seeded(
        "FluxTransformer2DModel",
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        in_channels=16,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        axes_dims_rope=(8, 12, 12),
    )


def flux_inputs(dtype, device):
    return dict(
        hidden_states=random((BATCH, IMAGE, 16), dtype, device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        pooled_projections=random((BATCH, 20), dtype, device, seed=2),
        timestep=torch.tensor([0.5, 0.25], device=device),
        img_ids=torch.arange(3.0 * IMAGE, device=device).view(IMAGE, 3),
        txt_ids=torch.zeros(TEXT, 3, device=device),
    )


FAMILIES = {
    "flux": Family(
        flux,
        flux_inputs,
        # a block of two streams: 2 norms, 2 x 2 residuals, of which 2 with the next norm; one of one stream: 1 and 1
        dict(ada_norm=5, gated_residual_ada_norm=2, gated_residual=4, qk_norm_rope_out=2, qk_norm_rope=2),
    ),
}
