"""The activations as models write them in eager torch, and comparison with those."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

import oxiwarp


def gelu_new(x: Tensor) -> Tensor:
    """transformers' NewGELUActivation."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_fast(x: Tensor) -> Tensor:
    """transformers' FastGELUActivation."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_quick(x: Tensor) -> Tensor:
    """transformers' QuickGELUActivation, diffusers' ApproximateGELU."""
    return x * torch.sigmoid(1.702 * x)


gelu_tanh = functools.partial(F.gelu, approximate="tanh")
THRESHOLD = 0.3  # no value of a 16-bit type

# Ours by name, and what each stands for.
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "gelu_quick": gelu_quick,
    "silu": F.silu,
}
GATED = {
    "geglu": (oxiwarp.geglu, lambda a, b: a * F.gelu(b)),
    "geglu_tanh": (functools.partial(oxiwarp.geglu, approximate="tanh"), lambda a, b: a * gelu_tanh(b)),
    "swiglu": (oxiwarp.swiglu, lambda a, b: a * F.silu(b)),
    "mul_and_silu": (oxiwarp.mul_and_silu, lambda a, b: a * F.silu(b)),
    "silu_and_mul": (oxiwarp.silu_and_mul, lambda a, b: F.silu(a) * b),
    "gelu_and_mul": (oxiwarp.gelu_and_mul, lambda a, b: F.gelu(a) * b),
    "gelu_tanh_and_mul": (oxiwarp.gelu_tanh_and_mul, lambda a, b: gelu_tanh(a) * b),
    "fatrelu_and_mul": (
        functools.partial(oxiwarp.fatrelu_and_mul, threshold=THRESHOLD),
        lambda a, b: F.threshold(a, THRESHOLD, 0.0) * b,
    ),
}
SHAPES = [(1, 1), (7, 1), (5, 3), (4, 8), (3, 17), (2, 257), (257, 40), (1031, 16), (8, 640), (3, 2560), (2, 8193)]


def every_16_bit_value(dtype: torch.dtype, device: torch.device) -> Tensor:
    """All 65,536 of them, NaN, infinities and subnormal numbers among them."""
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def same_bits(y: Tensor, own: Tensor) -> bool:
    """Equal bit by bit, the sign of zero included; a NaN equals any NaN."""
    integer = torch.int32 if y.dtype == torch.float32 else torch.int16
    return bool(((y.view(integer) == own.view(integer)) | (y.isnan() & own.isnan())).all())


def check_exact(y: Tensor, own: Tensor, scale: Tensor, what: str) -> None:
    """On a GPU the bits of torch's chain. On the CPU, where exponentials have other last bits, its roundings.

    There a value seldom differs, by less than two units of the type at `scale`: what a chain loses at `1 + tanh(x)`.
    """
    assert y.shape == own.shape and y.dtype == own.dtype and y.is_contiguous()
    if y.is_cuda:
        differ = (~torch.isclose(y, own, rtol=0, atol=0, equal_nan=True)).nonzero()
        assert same_bits(y, own), f"{what}: {len(differ)} values differ, the first at {differ[:1].tolist()}"
        return
    assert torch.equal(y.isnan(), own.isnan()), f"{what}: NaN at other places"
    finite = ~own.isnan() & ~own.isinf()
    assert torch.equal(y[~finite].nan_to_num(), own[~finite].nan_to_num()), f"{what}: infinities at other places"
    y, own, scale = y[finite], own[finite], scale[finite].double().abs() + 1e-30
    if y.numel() == 0:
        return
    off = (y.double() - own.double()).abs() / scale.maximum(own.double().abs())
    epsilon = torch.finfo(y.dtype).eps
    limit = 16 if y.dtype == torch.float32 else 2
    assert off.max() <= limit * epsilon, f"{what}: {off.max() / epsilon:.2f} units off"
    if y.dtype != torch.float32:
        assert (y != own).double().mean() <= 0.01 or (y != own).sum() <= 2, f"{what}: roundings differ"


def check_once(y: Tensor, right: Tensor, scale: Tensor, what: str, slack: float = 0.0) -> None:
    """Within half a unit of the float64 result, and what float32 loses of `scale` before."""
    epsilon = torch.finfo(y.dtype).eps
    allowed = 0.51 * epsilon * right.abs() + (2.0**-20 + slack) * scale.double().abs() + 1e-7
    excess = (y.double() - right).abs() / allowed
    if y.numel():
        at = int(excess.argmax())
        got = (y.flatten()[at].item(), right.flatten()[at].item())
        assert excess.max() <= 1, f"{what}: got {got[0]!r}, right {got[1]!r}: {excess.max():.2f} x allowed"
