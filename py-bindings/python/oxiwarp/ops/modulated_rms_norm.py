"""Mochi's modulated RMSNorm: the kernel of `ada_norm` with Mochi's roundings."""

from torch import Tensor

from ._roles import Role
from .ada_norm import ada_norm

ROLES = {"x": Role.ROWS, "scale": Role.PER_BATCH}


def modulated_rms_norm(x: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """`x * rsqrt(mean(x**2) + eps) * (1 + scale)` over the last dimension, in float32 with one rounding at the end.

    Args:
        x, scale, eps: as for `ada_norm`; Mochi's scale is `[B, 1, N]`, or `[B, N]` where `x` is `[B, S, N]`.

    Returns:
        A contiguous tensor of `x`'s shape and dtype.

    Raises:
        As `ada_norm`, by that name.

    Source: genmo's Mochi 1 (`modulated_rmsnorm`) and diffusers' `MochiModulatedRMSNorm`, whose roundings these are.
    """
    return ada_norm(x, per_batch(scale, x), norm="rms_norm", eps=eps, mode="fast")


def per_batch(modulation: Tensor, x: Tensor) -> Tensor:
    """`[B, N]` as `[B, 1, N]` where `x` is `[B, S, N]`; anything else as it is."""
    if isinstance(modulation, Tensor) and isinstance(x, Tensor) and modulation.dim() == 2 and x.dim() == 3:
        return modulation.unsqueeze(1)
    return modulation


__all__ = ["modulated_rms_norm"]
