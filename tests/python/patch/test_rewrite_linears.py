"""Tests of linears in the branches of an `if`, whose result a gated residual reads."""

import pytest
import torch
from helpers import random
from torch import nn

import oxiwarp


class Branches(nn.Module):
    """A block whose feed-forward may run in chunks, as in SD3."""

    def __init__(self):
        super().__init__()
        self.ff = nn.Linear(8, 8)

    def forward(self, x, gate, chunked):
        if chunked:  # noqa: SIM108
            y = torch.cat([self.ff(part) for part in x.chunk(2, dim=1)], dim=1)
        else:
            y = self.ff(x)
        y = gate.unsqueeze(1) * y
        x = x + y
        return x


class Again(Branches):
    """A method that reads the result of the linear again."""

    def forward(self, x, gate, chunked):
        if chunked:  # noqa: SIM108
            y = self.ff(x)
        else:
            y = self.ff(x) * 2
        x = x + gate.unsqueeze(1) * y
        return x, y


class Between(Branches):
    """A method that changes the input of the linear before the gated residual."""

    def forward(self, x, gate, chunked):
        h = x * 2
        if chunked:  # noqa: SIM108
            y = self.ff(h)
        else:
            y = h
        h += 1
        x = x + gate.unsqueeze(1) * y
        return x, h


class OneBranch(Branches):
    """A method in which only one branch assigns the variable."""

    def forward(self, x, gate, chunked):
        y = x
        if chunked:
            y = self.ff(x)
        x = x + gate.unsqueeze(1) * y
        return x


@pytest.mark.parametrize(("cls", "count"), [(Branches, 1), (Again, 0), (Between, 0), (OneBranch, 0)])
def test_branches(cls, count, device):
    """The rewritten method may defer a linear only if nothing else reads its result or changes its input."""
    module = cls().to(device).requires_grad_(False)
    x, gate = random((2, 4, 8), torch.float32, device), random((2, 8), torch.float32, device, seed=1)
    own = [module(x, gate, chunked) for chunked in (True, False)]
    oxiwarp.patch(module, cpu_kernels=True)
    assert oxiwarp.patched_source(module).count("_oxiwarp_linear(") == count
    for chunked, right in zip((True, False), own, strict=True):
        torch.testing.assert_close(module(x, gate, chunked), right)
