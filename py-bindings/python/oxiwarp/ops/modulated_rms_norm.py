"""Modulated RMSNorm of the model Mochi, `x * rsqrt(mean(x**2) + eps) * (1 + scale)`.

There is no separate kernel: the function in this file calls `ada_norm`.
"""

from torch import Tensor

from ._roles import Role
from .ada_norm import ada_norm

ROLES = {"x": Role.ROWS, "scale": Role.PER_BATCH}


def modulated_rms_norm(x: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """Compute Mochi's modulated RMSNorm over the last dimension: `x * rsqrt(mean(x**2) + eps) * (1 + scale)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA device. If
            the last stride is not 1, a contiguous copy is made first.
        scale (Tensor): shape `[B, N]` for `x` of shape `[B, S, N]`, or a shape that `ada_norm` supports; float32,
            float16 or bfloat16. Mochi's shape is `[B, 1, N]`.
        eps (float): added to the mean of squares; finite, 0 or more.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its
            value and the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is
            missing. Also raised in forward-mode AD. The messages begin with `ada_norm`, because this function
            calls `ada_norm`.
        TypeError: `x` or `scale` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The formula is computed in float32 and rounded once, as in Mochi's modules.
        Gradients: The gradients are computed as for `ada_norm`. A second derivative and forward-mode AD raise
            RuntimeError.

    Source:
        `modulated_rmsnorm` of genmo's Mochi 1 and diffusers' `MochiModulatedRMSNorm`.

    Example:
        >>> oxiwarp.modulated_rms_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(4))
        tensor([[0.7303, 1.4606, 2.1909, 2.9212]])
    """
    return ada_norm(x, per_batch(scale, x), norm="rms_norm", eps=eps, mode="fast")


def per_batch(modulation: Tensor, x: Tensor) -> Tensor:
    """If `x` has shape `[B, S, N]` and the modulation has shape `[B, N]`, return the modulation as
    `[B, 1, N]`.

    Otherwise, return the modulation unchanged.
    """
    if isinstance(modulation, Tensor) and isinstance(x, Tensor) and modulation.dim() == 2 and x.dim() == 3:
        return modulation.unsqueeze(1)
    return modulation


__all__ = ["modulated_rms_norm"]
