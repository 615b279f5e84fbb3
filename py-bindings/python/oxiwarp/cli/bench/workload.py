"""Defines the class `Workload`: a model with the arguments of one step. The command `bench` measures such
steps.

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
    """A model with the arguments of one step, at one size."""

    name: str
    title: str
    build: Callable[[bool], nn.Module]
    """Function that builds the model. If its argument is True, it builds a small model for tests."""
    arguments: Callable[[nn.Module, bool, torch.device, torch.dtype], Arguments]
    """Function that creates the arguments of one step. The random values are the same in every call."""
    state: str = "hidden_states"
    """Name of the argument that has the latents. Each step of a diffusion model updates the latents."""
    sigma: float = 1000.0
    """Value of `timestep` at the first step, or 0 for a model without timesteps."""
    steps: int = 30
    """Number of steps until the output of the model is compared with that of the unpatched model.

    The default is a typical number of steps in a pipeline, so that errors can accumulate.
    """
    large: bool = False
    """Whether the model in float32 is larger than the memory of one GPU.

    If True, the weights are created directly in the final dtype.
    """
    restore: Callable[[Arguments], None] | None = None
    """Function that restores the arguments that a step has modified, or None."""

    @property
    def denoises(self) -> bool:
        """Whether the model of this workload is a diffusion model.

        Each step of a diffusion model updates the latents, which are the argument that `state` names.
        """
        return self.sigma > 0


def seeded(seed: int, *shape: int) -> Tensor:
    """Return a tensor of shape `shape` with normally distributed values. The values are generated on the CPU,
    so they depend only on `seed`.
    """
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")


__all__ = ["Arguments", "Workload", "seeded"]
