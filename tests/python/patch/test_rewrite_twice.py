"""Tests of norms whose result two statements of a rewritten method modulate. One kernel computes both results."""

import pytest
import torch
from fused_checks import Operators
from helpers import DTYPES, random
from torch import nn

import oxiwarp

WIDTH = 40


class Both(nn.Module):
    """A method that modulates one norm twice, as in SD 3.5."""

    def __init__(self, norm=None):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6) if norm is None else norm
        self.other = nn.Identity()

    def forward(self, x, by):
        shift, scale, shift2, scale2 = by
        normed = self.norm(x)
        x = normed * (1 + scale[:, None]) + shift[:, None]
        second = normed * (1 + scale2[:, None]) + shift2[:, None]
        return x, second


class ReadOnceMore(Both):
    """A third statement reads the norm."""

    def forward(self, x, by):
        shift, scale, shift2, scale2 = by
        normed = self.norm(x)
        first = normed * (1 + scale[:, None]) + shift[:, None]
        second = normed * (1 + scale2[:, None]) + shift2[:, None]
        return first, second + normed


class ChangedBetween(Both):
    """The second modulation reads a tensor that changes after the first one."""

    def forward(self, x, by):
        shift, scale, shift2, scale2 = by
        normed = self.norm(x)
        first = normed * (1 + scale[:, None]) + shift[:, None]
        scale2.add_(1)
        second = normed * (1 + scale2[:, None]) + shift2[:, None]
        return first, second


class OfTheFirst(Both):
    """The second modulation reads the result of the first one."""

    def forward(self, x, by):
        shift, scale, shift2, scale2 = by
        normed = self.norm(x)
        shift2 = normed * (1 + scale[:, None]) + shift[:, None]
        second = normed * (1 + scale2[:, None]) + shift2
        return shift2, second


class InputChanged(Both):
    """The input of the norm changes before the first modulation."""

    def forward(self, x, by):
        shift, scale, shift2, scale2 = by
        normed = self.norm(x)
        x.mul_(2)
        first = normed * (1 + scale[:, None]) + shift[:, None]
        second = normed * (1 + scale2[:, None]) + shift2[:, None]
        return first + x, second


def inputs(dtype, device):
    by = tuple(random((2, WIDTH), dtype, device, seed) for seed in range(1, 5))
    return random((2, 5, WIDTH), dtype, device), by


def results(module, dtype, device):
    """Return the original results, the results of the patched module, and the operators that it ran."""
    own = module(*inputs(dtype, device))
    oxiwarp.patch(module, cpu_kernels=True)
    with Operators() as operators:
        made = module(*inputs(dtype, device))
    return own, made, operators.calls


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_kernel(dtype, device):
    own, made, calls = results(Both().to(device), dtype, device)
    assert calls == {"ada_norm_pair": 1}
    for x, y in zip(made, own, strict=True):
        torch.testing.assert_close(x, y, rtol=0.02 if dtype.itemsize == 2 else 1e-5, atol=0.02)


@pytest.mark.parametrize("cls", [ReadOnceMore, ChangedBetween, OfTheFirst, InputChanged])
def test_other_statements(cls, device):
    """If a kernel for both modulations might change the results, none runs."""
    own, made, calls = results(cls().to(device), torch.float32, device)
    assert "ada_norm_pair" not in calls and calls
    for x, y in zip(made, own, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


class Wide(nn.LayerNorm):
    """A norm that no kernel computes."""

    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("hook", [False, True])
def test_norm_without_kernel(hook, device):
    """The original norm runs once, with its hooks. A kernel computes each modulation."""
    module, seen = Both(nn.LayerNorm(WIDTH) if hook else Wide(WIDTH)).to(device), []
    if hook:
        module.norm.register_forward_hook(lambda *args: seen.append(1))
    own, made, calls = results(module, torch.float32, device)
    assert calls["modulate"] == 2 and "ada_norm_pair" not in calls and len(seen) == 2 * hook
    for x, y in zip(made, own, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_wide_modulation(device):
    """If the scales are float32 and the input is bfloat16, the original expressions run."""
    module = Both().to(device)
    x, by = inputs(torch.bfloat16, device)
    by = tuple(part.float() for part in by)
    own = module(x.clone(), by)
    oxiwarp.patch(module, cpu_kernels=True)
    made = module(x, by)
    assert [one.dtype for one in made] == [torch.float32] * 2
    for one, right in zip(made, own, strict=True):
        torch.testing.assert_close(one, right, rtol=0.02, atol=0.02)
