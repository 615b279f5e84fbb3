"""Formulas of RMSNorm in float64 and with torch operators, shapes to test, and comparisons of results."""

import json

import torch
from checkout import ROOT
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BITS = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}  # fraction bits of each dtype
# exponents of the smallest subnormal numbers
SMALLEST = {torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}
# An error of RMSNorm, in ulp, that `check_error` always allows. `check_error` compares with the error of
# torch's result, which may be zero by chance if there are few elements. For 16-bit results, the errors of the
# float32 computation are too small to matter. For float32 results, the bound consists of these relative
# errors, in units of 2^-23 (such a unit is at most 2 ulp):
# - 0.5 for the division of the mean and 0.5 for the addition of eps; the square root halves both errors.
# - 1.07 (2^-22.9) for rsqrt.approx, 0.5 for the product with x, and 0.5 for the sum offset + weight.
# The sum is 2.57 units, at most 5.15 ulp. The rounding of the last product adds 0.5 ulp, so 5.65 ulp follow.
# The remaining 0.35 ulp are for the sum of squares.
LEAST = {torch.float32: 6.0, torch.float16: 1.0, torch.bfloat16: 1.0}
TABLE = json.loads((ROOT / "tests" / "shapes.json").read_text())
SHAPES = [(row["rows"], row["cols"]) for row in TABLE["shapes"]]
GPU_SHAPES = [(row["rows"], row["cols"], row["gib"]) for row in TABLE["gpu_only"]]

# Combinations of RMSNorm's arguments to test. For "weight", "same" means a weight in the dtype of x, "f32" a
# float32 weight, and None no weight.
VARIANTS = [
    dict(weight=None, weight_offset=0.0, rounding="once"),
    dict(weight="same", weight_offset=0.0, rounding="once"),
    dict(weight="same", weight_offset=1.0, rounding="once"),
    dict(weight="same", weight_offset=0.0, rounding="before_weight"),
    dict(weight="f32", weight_offset=0.0, rounding="once"),
    dict(weight="f32", weight_offset=1.0, rounding="before_weight"),
]


def random(shape, dtype, device, seed=0, scale=1.0) -> Tensor:
    """Return normally distributed values. They are the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(device)


def make_weight(kind, cols, dtype, device) -> Tensor | None:
    """Return a random weight, or None. The weight is float32 if `kind` is "f32", otherwise it has the
    dtype `dtype`."""
    if kind is None:
        return None
    return random((cols,), torch.float32 if kind == "f32" else dtype, device, seed=1, scale=0.5)


def reference(x, weight, eps=1e-6, weight_offset=0.0, rounding="once") -> Tensor:
    """Compute RMSNorm in float64. `rounding` has no effect, because intermediate results are not rounded."""
    x = x.double()
    y = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * (weight.double() + weight_offset)


def torch_chain(x, weight, eps=1e-6, weight_offset=0.0, rounding="once") -> Tensor:
    """Compute RMSNorm with the torch operators and casts of model code."""
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = (y.to(x.dtype).float() if rounding == "before_weight" else y) * (weight.float() + weight_offset)
    return y.to(x.dtype)


def ulps(y: Tensor, right: Tensor) -> Tensor:
    """Return the error of `y` against the float64 result `right`, in units in the last place (ulp) of the
    dtype of `y`."""
    exponent = torch.frexp(right.abs())[1].double() - 1 - BITS[y.dtype]
    return (y.double() - right).abs() / torch.exp2(exponent.clamp_min(SMALLEST[y.dtype]))


def check_error(y: Tensor, own: Tensor, right: Tensor, what: str) -> None:
    """Check that the error of `y` does not exceed the larger of two limits: `LEAST`, and twice the largest
    error of torch's result `own`. All errors are in ulp.
    """
    if y.numel() == 0:
        assert y.shape == right.shape
        return
    assert y.isfinite().all(), f"{what}: not finite"
    off, torch_off = ulps(y, right), ulps(own, right).max().item()
    bound = max(2 * torch_off, LEAST[y.dtype])
    at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    assert off[at] <= bound, (
        f"{what}: worst element {at}: got {y[at].item()!r}, right {right[at].item()!r}, "
        f"{off[at].item():.2f} ulp; torch's worst is {torch_off:.2f} ulp"
    )


def same_roundings(y: Tensor, own: Tensor, units: int = 1) -> bool:
    """Return True if a different order of a float32 sum can explain the differences between `y` and `own`.

    This is the case if at most 1 % of the 16-bit values differ, by at most `units` units in the last place.
    float32 values must agree to 2e-6. If a rounded value is multiplied afterwards, `units` must be larger
    than 1, because each product may double the difference.
    """
    if y.dtype == torch.float32:
        return torch.allclose(y, own, rtol=2e-6, atol=1e-30)
    off = (y.cpu().view(torch.int16).int() - own.cpu().view(torch.int16).int()).abs()
    return bool(off.max() <= units and (off != 0).double().mean() <= 0.01)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have equal values. For 8-bit floats, which `torch.equal` does not support on the
    CPU, return whether they have equal bits."""
    if a.is_floating_point() and a.element_size() == 1:
        a, b = (x.contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)


def poisoned_like(x: Tensor) -> Tensor:
    """Return an output tensor full of NaN. A test can then find elements that a kernel does not write."""
    return torch.full_like(x, float("nan"), memory_format=torch.contiguous_format)
