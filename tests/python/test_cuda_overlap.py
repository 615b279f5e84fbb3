"""Launches that overlap on a GPU: later ones see what earlier ones write. In a process of its own, so that they do."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

TESTS = ["launches_in_a_row", "graph_of_two_streams"]


@pytest.mark.parametrize("name", TESTS)
def test_overlap(name, cuda):
    environment = os.environ | {"OXIWARP_OVERLAP": "1"}
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def launches_in_a_row():
    """Ops of every family, each behind one that writes what it reads: the bits of calls with a wait after each."""
    wide = random((2048,), torch.bfloat16, CUDA, 1)
    across = {"q_weight": wide, "k_weight": wide, "across_heads": True}
    cos, sin = (random((1024, 64), torch.float32, CUDA, seed).repeat_interleave(2, dim=-1) for seed in (3, 4))

    def chain(wait):
        def step(call, *arguments, **options):
            result = call(*arguments, **options)
            wait()
            return result

        x = random((4, 1024, 2048), torch.bfloat16, CUDA)
        for _ in range(10):
            act = step(oxiwarp.gelu_tanh, x)
            x, total = step(oxiwarp.add_rms_norm, x, act, wide)
            heads = step(oxiwarp.rms_norm, total, wide).view(4, 1024, 16, 128)
            q, k = step(oxiwarp.qk_norm_rope, heads, heads.clone(), cos, sin, **across)
            q, k = step(oxiwarp.rope, q, k, cos, sin)
            y = step(oxiwarp.attention, q, k, heads).reshape(x.shape)
            x, y = step(oxiwarp.gated_residual_ada_norm, x, y, wide, wide, wide)
            y = step(oxiwarp.ada_norm, y, wide, wide)
            x = step(oxiwarp.residual_tanh_gated_rms_norm, x, y, wide)
            x = step(oxiwarp.layer_norm, step(oxiwarp.gated_residual, x, step(oxiwarp.softmax, y), wide))
        return x

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    for _ in range(10):
        assert torch.equal(chain(lambda: None), expected)


def graph_of_two_streams():
    """A fork and a join within a capture: the launch behind the join has two before it."""
    static, side, graph = torch.zeros(512, 3072, device=CUDA).bfloat16(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    weight = random((3072,), torch.bfloat16, CUDA, 1)

    def calls(x, fork):
        first = oxiwarp.rms_norm(x, weight)
        if fork:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side) if fork else nullcontext():
            beside = oxiwarp.rms_norm(first, weight, 1e-3)
        own = oxiwarp.layer_norm(first, weight)
        if fork:
            torch.cuda.current_stream().wait_stream(side)
        return oxiwarp.add_rms_norm(beside, own, weight)

    with torch.cuda.graph(graph):
        results = calls(static, fork=True)
    for seed in range(10):
        static.copy_(random(static.shape, static.dtype, CUDA, seed=seed))
        graph.replay()
        for result, expected in zip(results, calls(static.clone(), fork=False), strict=True):
            assert torch.equal(result, expected)


if __name__ == "__main__":
    import torch
    from helpers import random

    import oxiwarp

    CUDA = torch.device("cuda")
    torch.set_grad_enabled(False)
    globals()[sys.argv[1]]()
