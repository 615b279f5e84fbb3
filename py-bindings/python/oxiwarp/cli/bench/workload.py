"""A workload is a model with the arguments of one step, which `bench` measures from start to end.

A step of a diffusion model denoises latents by flow matching. A step of a language model processes a prompt or decodes
one token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """One model at one size."""

    name: str
    title: str
    build: Callable[[bool], nn.Module]
    """Builds the model. The argument True requests a small model."""
    arguments: Callable[[nn.Module, bool, torch.device, torch.dtype], Arguments]
    """Creates the arguments of one step, with the same seeded values each time."""
    state: str = "hidden_states"
    """Name of the argument with the latents, which each step of a diffusion model updates."""
    sigma: float = 1000.0
    """Value of `timestep` at the first step, or 0 for a model without timesteps."""
    steps: int = 30
    """Steps of the sample that is compared with the unpatched model. It has as many steps as a pipeline, so that errors
    can accumulate."""
    restore: Callable[[Arguments], None] | None = None
    """Restores the arguments that a step has modified."""

    @property
    def denoises(self) -> bool:
        """Whether the workload is a diffusion model. Its step updates the argument that `state` names."""
        return self.sigma > 0


def seeded(seed: int, *shape: int) -> Tensor:
    """Return normally distributed values. They are generated on the CPU, so they do not depend on the device."""
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


__all__ = ["Arguments", "Workload", "seeded"]
