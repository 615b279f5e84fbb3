"""Computes gradients with autograd and compares them with float64."""

import torch
from torch import Tensor


def gradients(function, inputs, dys):
    """Return the gradients of `function(*inputs)` for all tensor inputs. `dys` are the incoming gradients."""
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        dys = [dy.to(y.dtype) for dy, y in zip(dys, results, strict=True)]
        return torch.autograd.grad(results, [x for x in leaves if x is not None], dys)


def wide(inputs):
    """Return the inputs in float64."""
    return [x if x is None else x.double() for x in inputs]


def check(ours, right, what, factor=1.0, dtype=None):
    """Check each gradient against the float64 gradient.

    The permitted error is 2 eps for 16-bit dtypes, and `16 * factor` eps for float32, times the largest element of the
    row. The element itself cannot be the measure, because it is a sum of terms that may cancel. If an intermediate
    tensor has a dtype with a larger eps than the gradients, pass this dtype as `dtype`.
    """
    assert len(ours) == len(right)
    for i, (gradient, expected) in enumerate(zip(ours, right, strict=True)):
        assert gradient.shape == expected.shape, f"{what}, input {i}"
        coarser = dtype or gradient.dtype
        allowed = (16 * factor if coarser == torch.float32 else 2) * torch.finfo(coarser).eps
        scale = expected.abs().amax(-1, keepdim=True) + 1e-30
        off = ((gradient.double() - expected).abs() / scale).max().item() if gradient.numel() else 0.0
        assert off <= allowed, f"{what}, input {i}: {off:.2e} of the row's largest, allowed {allowed:.2e}"
