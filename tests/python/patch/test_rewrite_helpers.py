"""Tests of rewritten helper functions that compute queries and keys for a method, as in Qwen-Image 2.1."""

import sys

import pytest
import torch
from test_rewrite_forms import close
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.recipe import found_in

HEADS, WIDTH = 3, 16


def rotate_pairs(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).float().unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


def queries_and_keys(attn, x, tables):
    query, key = (linear(x).unflatten(-1, (HEADS, WIDTH)) for linear in (attn.to_q, attn.to_k))
    query = attn.norm_q(query)
    key = attn.norm_k(key)
    if tables is not None:
        query = rotate_pairs(query, *tables)
        key = rotate_pairs(key, *tables)
    return query, key


def countdown(attn, x, count):
    x = attn.norm_q(x)
    return other(attn, x, count - 1) if count else x


def other(attn, x, count):
    x = attn.norm_k(x)
    return countdown(attn, x, count - 1) if count else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k = (nn.Linear(WIDTH, HEADS * WIDTH) for _ in range(2))
        self.norm_q, self.norm_k = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, x, tables=None):
        query, key = queries_and_keys(self, x, tables)
        return query, key


class Local(Attention):
    """A method that calls a local variable with the same name as a helper function of the file."""

    def forward(self, x, tables=None):
        queries_and_keys = torch.chunk
        query, key = queries_and_keys(x, 2, -1)
        return query, key


class Recursive(Attention):
    def forward(self, x, tables=None):
        return countdown(self, x, 3), countdown(self, x, 0)


def inputs(dtype, device):
    angles = torch.randn(5, WIDTH // 2, device=device)
    return torch.randn(2, 5, WIDTH, device=device).to(dtype), (angles.cos(), angles.sin())


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_and_rotations(dtype, rotates, device):
    """One kernel computes norm and rotation (RoPE) in a helper function. The report of `patch` counts the
    kernels that run in this function."""
    module, (x, tables) = Attention().to(device, dtype), inputs(dtype, device)
    nn.init.normal_(module.norm_q.weight)
    args = (x, tables) if rotates else (x,)
    with torch.no_grad():
        own = module(*args)
        report = oxiwarp.patch(module, cpu_kernels=True)
        made = module(*args)
    close(made, own)
    exact = module.to_q(x).double().unflatten(-1, (HEADS, WIDTH))
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6) * module.norm_q.weight.double()
    if rotates:
        pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)).contiguous())
        exact = torch.view_as_real(pairs * torch.complex(*(t.double() for t in tables))[:, None]).flatten(-2)
    torch.testing.assert_close(
        made[0].double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )
    ran = [(row.op, row.kernels) for row in report.ran() if row.line and row.module_class.endswith("Attention")]
    assert sum(count for op, count in ran if "rope" in op) == int(rotates), ran
    assert "_oxiwarp_helper_queries_and_keys(queries_and_keys)(self" in oxiwarp.patched_source(module)
    assert "_oxiwarp_deferred_norm(attn.norm_q, query)" in oxiwarp.patched_source(module)


def test_a_function_that_is_replaced_after_patch(monkeypatch):
    module, x = Attention(), torch.randn(2, 5, WIDTH)
    oxiwarp.patch(module, cpu_kernels=True)
    monkeypatch.setattr(sys.modules[__name__], "queries_and_keys", lambda attn, x, tables: (x, tables))
    assert module(x) == (x, None)


def test_other_functions():
    """A local variable is not treated as a helper function of the same name. Functions that call each other
    are rewritten once."""
    assert found_in(Local.forward) == ()
    module, x = Recursive(), torch.randn(2, 5, HEADS, WIDTH)
    own = module(x)
    oxiwarp.patch(module, cpu_kernels=True)
    close(module(x), own)
