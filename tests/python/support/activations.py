"""Activations as models write them with torch operators, and functions that compare oxiwarp's results with
the results of these operators."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

import oxiwarp


def gelu_new(x: Tensor) -> Tensor:
    """Compute transformers' NewGELUActivation."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_fast(x: Tensor) -> Tensor:
    """Compute transformers' FastGELUActivation."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_quick(x: Tensor) -> Tensor:
    """Compute transformers' QuickGELUActivation, which is diffusers' ApproximateGELU."""
    return x * torch.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    """Compute transformers' ReLUSquaredActivation."""
    return torch.square(F.relu(x))


gelu_tanh = functools.partial(F.gelu, approximate="tanh")
THRESHOLD = 0.25

# The torch reference of each oxiwarp activation, by name.
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_fast,
    "gelu_quick": gelu_quick,
    "silu": F.silu,
    "relu2": relu2,
}
GATED = {
    "geglu": (oxiwarp.geglu, lambda a, b: a * F.gelu(b)),
    "geglu_tanh": (functools.partial(oxiwarp.geglu, approximate="tanh"), lambda a, b: a * gelu_tanh(b)),
    "swiglu": (oxiwarp.swiglu, lambda a, b: a * F.silu(b)),
    "mul_and_silu": (oxiwarp.mul_and_silu, lambda a, b: a * F.silu(b)),
    "silu_and_mul": (oxiwarp.silu_and_mul, lambda a, b: F.silu(a) * b),
    "gelu_and_mul": (oxiwarp.gelu_and_mul, lambda a, b: F.gelu(a) * b),
    "gelu_tanh_and_mul": (oxiwarp.gelu_tanh_and_mul, lambda a, b: gelu_tanh(a) * b),
    "sigmoid_and_mul": (oxiwarp.sigmoid_and_mul, lambda a, b: torch.sigmoid(a) * b),
    "relu2_and_mul": (oxiwarp.relu2_and_mul, lambda a, b: relu2(a) * b),
    "fatrelu_and_mul": (
        functools.partial(oxiwarp.fatrelu_and_mul, threshold=THRESHOLD),
        lambda a, b: F.threshold(a, THRESHOLD, 0.0) * b,
    ),
}
SHAPES = [(1, 1), (7, 1), (5, 3), (4, 8), (3, 17), (2, 257), (257, 40), (1031, 16), (8, 640), (3, 2560), (2, 8193)]


def every_16_bit_value(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return all 65,536 values of a 16-bit dtype, with NaN, infinities and subnormal numbers."""
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def same_bits(y: Tensor, own: Tensor) -> bool:
    """Return True if two tensors have the same bits, including the sign of zero. All NaN count as equal."""
    integer = torch.int32 if y.dtype == torch.float32 else torch.int16
    return bool(((y.view(integer) == own.view(integer)) | (y.isnan() & own.isnan())).all())


def check_exact(y: Tensor, own: Tensor, scale: Tensor, what: str) -> None:
    """Check that `y` equals `own`, the result of torch operators: bit for bit on a GPU, within a tolerance on
    the CPU.

    On the CPU, the exp functions of torch and oxiwarp differ in the last bits. The permitted error of a value
    is 2 eps times `scale` (16 eps in float32), because the terms of `1 + erf(x)` may cancel. The CPU check
    skips values beyond 1e4 and subnormal values. For such values, torch's CPU kernels overflow and underflow
    earlier than oxiwarp's kernels.
    """
    assert y.shape == own.shape and y.dtype == own.dtype and y.is_contiguous()
    if y.is_cuda:
        differ = (~torch.isclose(y, own, rtol=0, atol=0, equal_nan=True)).nonzero()
        assert same_bits(y, own), f"{what}: {len(differ)} values differ, the first at {differ[:1].tolist()}"
        return
    kept = (scale.abs() < 1e4) & ((scale.abs() > 1e-30) | (scale == 0))
    infinite = own.isinf() & kept  # squares of large float16 values overflow
    assert torch.equal(y[infinite], own[infinite]), f"{what}: a result should be infinite"
    kept &= ~infinite
    if not kept.any():
        return
    info, limit = torch.finfo(y.dtype), 16 if y.dtype == torch.float32 else 2
    y, own, scale = y[kept].double(), own[kept].double(), scale[kept].double().abs()
    off = (y - own).abs() / torch.maximum(scale, own.abs()).clamp_min(info.tiny) / info.eps
    assert off.max() <= limit, f"{what}: {off.max():.2f} units off"
    plain = own.abs() > scale / 8
    differ = (y != own)[plain].sum()
    if info.bits == 16:
        assert differ <= 2 or differ <= 0.01 * plain.sum(), f"{what}: {differ} of {plain.sum()} are rounded otherwise"


def check_once(y: Tensor, right: Tensor, scale: Tensor, what: str, slack: float = 0.0) -> None:
    """Check `y` against the float64 result `right`.

    The permitted error is the sum of three terms: about half a unit in the last place of `right`, 1e-7, and
    `(2**-20 + slack) * scale`. The last term allows for errors of computations in float32.
    """
    epsilon = torch.finfo(y.dtype).eps
    allowed = 0.51 * epsilon * right.abs() + (2.0**-20 + slack) * scale.double().abs() + 1e-7
    excess = (y.double() - right).abs() / allowed
    if y.numel():
        at = int(excess.argmax())
        got = (y.flatten()[at].item(), right.flatten()[at].item())
        assert excess.max() <= 1, f"{what}: got {got[0]!r}, right {got[1]!r}: {excess.max():.2f} x allowed"
