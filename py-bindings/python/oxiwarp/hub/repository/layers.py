"""Layers whose `forward` Kernels binds to a model's own modules, which hold the parameters."""

import torch
from torch import Tensor, nn

from . import _oxiwarp


class RMSNorm(nn.Module):
    """Llama's norm, which rounds before the weight multiplies; reads `weight` and `variance_epsilon` or `eps`."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), rounding="before_weight")


class RMSNormZeroCentered(nn.Module):
    """Gemma's norm, whose weight is `1 + weight`."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), weight_offset=1.0)


class RMSNormGated(nn.Module):
    """Qwen3-Next's norm: rounded, times the weight, times `silu(gate)`."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), rounding="before_weight")
        return _oxiwarp.rms_norm_gated(hidden_states, gate, self.weight, eps=_eps(self))


class SiluAndMul(nn.Module):
    """`silu(first half) * second half`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.silu_and_mul(x)


class MulAndSilu(nn.Module):
    """`first half * silu(second half)`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.mul_and_silu(x)


class GeluAndMul(nn.Module):
    """`gelu(first half) * second half`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_and_mul(x)


class GeluTanhAndMul(nn.Module):
    """`gelu(first half, approximate="tanh") * second half`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_tanh_and_mul(x)


class FatreluAndMul(nn.Module):
    """The first half where it is above the module's `threshold` (0 where it has none), times the second."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.fatrelu_and_mul(x, threshold=getattr(self, "threshold", 0.0))


class Silu(nn.Module):
    """`x * sigmoid(x)`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.silu(x)


class Gelu(nn.Module):
    """torch's GELU."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu(x)


class GeluTanh(nn.Module):
    """torch's GELU with `approximate="tanh"`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_tanh(x)


class FastGELU(nn.Module):
    """transformers' `FastGELUActivation`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_fast(x)


class NewGELU(nn.Module):
    """transformers' `NewGELUActivation`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_new(x)


class QuickGELU(nn.Module):
    """transformers' `QuickGELUActivation`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.gelu_quick(x)


def _eps(module: nn.Module) -> float:
    """A norm's epsilon, whatever its class calls it; torch's default where it is None."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return torch.finfo(torch.float32).eps if eps is None else eps
