"""Tests that `oxiwarp.attention` is about as accurate as FlashAttention-2, for inputs that lead to large
rounding errors."""

import dataclasses
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from checkout import ROOT
from helpers import random
from test_attention import HALVES, heads
from test_cuda import fresh
from torch.nn.attention import SDPBackend, sdpa_kernel

import oxiwarp

sys.path.append(str(ROOT / "benches" / "python"))

import attention as bench  # noqa: E402
from attention_inputs import INPUTS, flash, relative_error  # noqa: E402

SIZES = (
    (1, 4, 128, 640, 64),  # the Hopper kernels take 64 queries or more
    (1, 2, 128, 640, 128),
    (1, 4, 128, 640, 72),
    (16, 8, 1, 1100, 64),  # the keys are split among blocks (split-KV)
)
LIMIT, OF_TORCHS = 1.02, 1.05


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", INPUTS)
def test_error(kind, sizes, dtype, device):
    """The error is at most 1.02 times the error of an emulation of FlashAttention-2. On a GPU, it is also at
    most 1.05 times the error of torch's FlashAttention-2 kernel.

    In some inputs, a few keys have nearly all the attention probability of a query. A kernel that subtracts
    exactly the row maximum computes the largest exponential as exp(0) = 1, without a rounding error. With
    these inputs, the test detects a kernel that subtracts another value.
    """
    if device.type == "cpu" and sizes[0] == 16:
        sizes = (4, *sizes[1:])  # a smaller batch runs the same kernel in less time on the slow CPU executor
    q, k, v = INPUTS[kind](sizes, dtype, device)
    error = relative_error(oxiwarp.attention(q, k, v, layout="bhsd"), q, k, v)
    own = relative_error(flash(q, k, v), q, k, v)
    assert error <= LIMIT * own, f"{error / own:.3f} of FlashAttention-2's error, {own:.2e}"
    if device.type == "cuda":
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torchs = relative_error(F.scaled_dot_product_attention(q, k, v), q, k, v)
        assert error <= OF_TORCHS * torchs, f"{error / torchs:.3f} of the error of torch's, {torchs:.2e}"


@pytest.mark.parametrize("dim", [64, 128])
def test_rows_that_see_nothing(dim, device):
    """Queries without visible keys give zeros, an lse (log-sum-exp) of -inf and a zero gradient.

    The test hides the keys with a mask, `causal`, `window` or `cu_seqlens`.
    """
    q, k, v = heads((2, 130, 70, 2, 1, dim), torch.bfloat16, device)
    rows, batch = (torch.zeros(shape, dtype=torch.bool, device=device) for shape in ((1, 1, 130, 1), (2, 1, 1, 1)))
    rows[:, :, 3], rows[:, :, 64:], batch[1] = True, True, True
    starts = [torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 130, 260], [0, 0, 140])]
    for hidden, options in (
        (rows, dict(mask=~rows)),
        (batch, dict(mask=~batch)),  # a mask without a query dimension, as for padding
        (rows | batch, dict(mask=torch.where(rows | batch, -torch.inf, 0.0))),
        (torch.arange(130, device=device)[:, None] < 60, dict(causal=True)),
        (torch.arange(130, device=device)[:, None] < 57, dict(window=(None, 3))),
        (~batch, dict(cu_seqlens=starts)),  # the first sequence has no keys
    ):
        leaves = [x.flatten(0, 1) if "cu_seqlens" in options else x.clone() for x in (q, k, v)]
        with torch.enable_grad():
            y, lse = oxiwarp.attention(*(x.requires_grad_() for x in leaves), return_lse=True, **options)
            (dq, *others) = torch.autograd.grad(y, leaves, random(y.shape, y.dtype, device, seed=9))
        if "cu_seqlens" in options:
            y, dq, lse = y.view(q.shape), dq.view(q.shape), lse.view(2, 2, 130).transpose(0, 1)
        hidden = hidden.expand(2, 2, 130, 1)[..., 0]
        assert torch.equal(lse == -torch.inf, hidden), f"{list(options)}: lse"
        assert torch.equal((y == 0).all(-1).transpose(1, 2), hidden), list(options)
        # dq is also 0 for a query with only one key
        assert not dq.transpose(1, 2)[hidden].any(), list(options)
        assert all(x.isfinite().all() for x in (y, dq, *others))


@pytest.mark.parametrize("queries", [1, 128])
def test_older_gpus(queries, cuda):
    """On sm_75, `attention` has no kernel and raises an error, which suggests torch's
    `F.scaled_dot_product_attention` instead."""
    said = fresh(
        f"q, k = (torch.randn(1, n, 2, 64, device='cuda', dtype=torch.half) for n in ({queries}, 1100))\n"
        "try:\n    oxiwarp.attention(q, k, k)\nexcept RuntimeError as error:\n    print(error)\n",
        OXIWARP_ARCH="sm_75",
    )
    assert "need sm_80 or newer; use torch's F.scaled_dot_product_attention" in said


@pytest.mark.parametrize("kind", INPUTS)
def test_bench(kind, device, capsys):
    """The attention benchmark accepts the error of oxiwarp. It prints the name of every implementation that
    cannot run on this machine.

    On a GPU, the test uses the sizes of the benchmark, because for small tensors, the error varies by up to 5
    %.
    """
    rows = bench.accuracy(kind, bench.ACCURACY_SIZES[0] if device.type == "cuda" else SIZES[0], device)
    missing = [name for name in (bench.OURS, bench.CUDNN, "FlashAttention-2") if name not in {x.provider for x in rows}]
    assert all(f"{kind}, {name}: not measured" in capsys.readouterr().out for name in missing)
    assert {bench.OURS, "FlashAttention-2"} <= {row.provider for row in rows} and not bench.is_wrong(rows)


def test_what_the_bench_calls_wrong(tmp_path):
    right = [bench.Accuracy("normal", "1", name, error) for name, error in ((bench.OURS, 1.01), ("a", 1.5), ("b", 1.0))]
    assert not bench.is_wrong(right) and bench.is_wrong(right[1:])
    for error in (1.03, math.nan):
        assert bench.is_wrong([dataclasses.replace(right[0], relative_error=error), *right[1:]])
    beside = [dataclasses.replace(right[1], provider=bench.FLASH, relative_error=0.9), *right]
    assert bench.is_wrong(beside), "FlashAttention-2 is what counts where it runs"
    bench.write(tmp_path / "a.csv", bench.Accuracy, right[:1])
    assert (tmp_path / "a.csv").read_text().split() == ["inputs,sizes,provider,relative_error", "normal,1,oxiwarp,1.01"]
