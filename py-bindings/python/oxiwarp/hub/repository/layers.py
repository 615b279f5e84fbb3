"""Layer classes for the library Hugging Face Kernels, which replaces the `forward` of a model's module by the `forward`
of a layer class.

In the replaced `forward`, `self` is the model's module, so `self.weight` is the parameter of this module. The layer
classes therefore define no parameters.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from . import _oxiwarp, rotary


class RMSNorm(nn.Module):
    """Llama's RMSNorm. It rounds the normalized row to the dtype of the input, and then multiplies it by the
    weight.

    The module must have the attribute `weight`. It may have the attribute `variance_epsilon` or `eps`.
    """

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), rounding="before_weight")


class RMSNormZeroCentered(nn.Module):
    """Gemma's RMSNorm, which multiplies by `1 + weight`."""

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), weight_offset=1.0)


class RMSNormGated(nn.Module):
    """Qwen3-Next's RMSNorm.

    It rounds the normalized row to the dtype of the input, and then multiplies it by the weight and by
    `silu(gate)`.
    """

    can_torch_compile = True
    has_backward = True
    weight: Tensor

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        if gate is None:
            return _oxiwarp.rms_norm(hidden_states, self.weight, _eps(self), rounding="before_weight")
        return _oxiwarp.rms_norm_gated(hidden_states, gate, self.weight, eps=_eps(self))


class FatreluAndMul(nn.Module):
    """Compute `fatrelu(first half) * second half` for the two halves of each row. FATReLU replaces values
    that are not above `threshold` by 0.

    If the module has no attribute `threshold`, the threshold is 0.
    """

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return _oxiwarp.fatrelu_and_mul(x, threshold=getattr(self, "threshold", 0.0))


class apply_rotary_transformers(nn.Module):
    """The function `apply_rotary_pos_emb` of transformers, as a layer.

    Hugging Face Kernels looks for a class with the name `apply_rotary_transformers`.
    """

    can_torch_compile = True
    has_backward = True

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        return rotary.apply_rotary_transformers(q, k, cos, sin, unsqueeze_dim)


def _applying(name: str, function: Callable[[Tensor], Tensor], what: str) -> type[nn.Module]:
    """Create a layer class with the name `name` and the docstring `what`, whose `forward` applies `function`."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return function(x)

    members = {"__doc__": what, "__module__": __name__, "can_torch_compile": True, "has_backward": True}
    return type(name, (nn.Module,), {**members, "forward": forward})


SiluAndMul = _applying("SiluAndMul", _oxiwarp.silu_and_mul, "`silu(first half) * second half`.")
MulAndSilu = _applying("MulAndSilu", _oxiwarp.mul_and_silu, "`first half * silu(second half)`.")
GeluAndMul = _applying("GeluAndMul", _oxiwarp.gelu_and_mul, "`gelu(first half) * second half`.")
GeluTanhAndMul = _applying(
    "GeluTanhAndMul", _oxiwarp.gelu_tanh_and_mul, '`gelu(first half, approximate="tanh") * second half`.'
)
Silu = _applying("Silu", _oxiwarp.silu, "`x * sigmoid(x)`.")
Gelu = _applying("Gelu", _oxiwarp.gelu, "torch's GELU.")
GeluTanh = _applying("GeluTanh", _oxiwarp.gelu_tanh, 'torch\'s GELU with `approximate="tanh"`.')
FastGELU = _applying("FastGELU", _oxiwarp.gelu_fast, "transformers' `FastGELUActivation`.")
NewGELU = _applying("NewGELU", _oxiwarp.gelu_new, "transformers' `NewGELUActivation`.")
QuickGELU = _applying("QuickGELU", _oxiwarp.gelu_quick, "transformers' `QuickGELUActivation`.")


def _eps(module: nn.Module) -> float:
    """Return the epsilon of a norm module: its attribute `variance_epsilon` or, without it, its attribute
    `eps`.

    If the epsilon is None or both attributes are missing, return the machine epsilon of float32, as torch's
    RMSNorm does for float32 inputs.
    """
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return torch.finfo(torch.float32).eps if eps is None else eps
