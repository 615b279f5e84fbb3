"""Launches that overlap on a GPU: later ones see what earlier ones write. In a process of its own, so that they do.

All launches are in graphs, one behind the other on the GPU, and of so few rows that all blocks of one have room beside
those of the next. Inputs change with each replay: what is read too early is wrong.
"""

import os
import subprocess
import sys
from itertools import product

import pytest

TESTS = ["pairs_of_ops", "two_buffers_in_turns", "branches"]
SHAPE, HEADS = (1, 100, 2048), (1, 100, 16, 128)


@pytest.mark.parametrize("name", TESTS)
def test_overlap(name, cuda):
    environment = os.environ | {"OXIWARP_OVERLAP": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def steps(device):
    """A call of each family, from a tensor to one of its shape."""
    side = [random((SHAPE[-1],), torch.bfloat16, device, seed) for seed in range(3)]
    across = {"q_weight": side[0], "k_weight": side[1], "across_heads": True}
    angles = random((100, 64), torch.float32, device, seed=3).repeat_interleave(2, dim=-1)
    tables = [angles.cos(), angles.sin()]
    of_heads = {
        "rope": lambda x: oxiwarp.rope(x, x, *tables)[0],
        "qk_norm_rope": lambda x: oxiwarp.qk_norm_rope(x, x, *tables, **across)[1],
        "attention": lambda x: oxiwarp.attention(x, x, x),
    }
    of_rows = {
        "rms_norm": lambda x: oxiwarp.rms_norm(x, side[0]),
        "add_rms_norm": lambda x: oxiwarp.add_rms_norm(x, x, side[0])[0],
        "layer_norm": lambda x: oxiwarp.layer_norm(x, side[0], side[1]),
        "ada_norm": lambda x: oxiwarp.ada_norm(x, side[0], side[1]),
        "gated_residual": lambda x: oxiwarp.gated_residual(x, x, side[0]),
        "gated_residual_ada_norm": lambda x: oxiwarp.gated_residual_ada_norm(x, x, *side)[1],
        "residual_tanh_gated_rms_norm": lambda x: oxiwarp.residual_tanh_gated_rms_norm(x, x, side[0]),
        "softmax": oxiwarp.softmax,
        "gelu_tanh": oxiwarp.gelu_tanh,
        "silu_and_mul": lambda x: oxiwarp.silu_and_mul(torch.cat([x, x], dim=-1)),
    }
    return of_rows | {name: lambda x, call=call: call(x.view(HEADS)).view(SHAPE) for name, call in of_heads.items()}


def pairs(calls, x, wait):
    """Each step behind each."""
    results = []
    for first, second in product(calls.values(), repeat=2):
        before = first(x)
        wait()
        results += [before, second(before)]
        wait()
    return results


def in_turns(calls, x, wait):
    """The same few buffers again and again, each read while another is written."""
    for _ in range(300):
        x = calls["rope"](x)
        wait()
    return [x]


def forks(calls, x, wait):
    """A launch behind a copy, behind a fill, and behind the join of two branches, of which one ends with a copy."""
    main = torch.cuda.current_stream()
    side = main if wait is not nothing else torch.cuda.Stream()
    first = calls["rms_norm"](x.clone())
    wait()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        beside = calls["ada_norm"](first)
        wait()
        copied = calls["rms_norm"](beside).clone()
    own = calls["layer_norm"](first)
    main.wait_stream(side)
    wait()
    joined = oxiwarp.add_rms_norm(beside, own)[0]
    wait()
    filled = oxiwarp.gated_residual(torch.zeros_like(copied), copied, joined)
    return [joined, filled]


def check(sequence):
    """A graph of the calls, replayed with new inputs, gives what the calls give that wait after each other."""
    static, graph = torch.zeros(SHAPE, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
    calls = steps(static.device)  # copies from the CPU: nothing that a capture may have in it
    sequence(calls, static, torch.cuda.synchronize)  # loads the kernels
    with torch.cuda.graph(graph):
        results = sequence(calls, static, nothing)
    for seed in range(10):
        static.copy_(random(SHAPE, static.dtype, static.device, seed=seed))
        graph.replay()
        for result, expected in zip(results, sequence(calls, static.clone(), torch.cuda.synchronize), strict=True):
            assert expected.isfinite().all() and torch.equal(result, expected)


def nothing():
    """Does not wait."""


if __name__ == "__main__":
    import torch
    from helpers import random

    import oxiwarp

    torch.set_grad_enabled(False)
    check(dict(zip(TESTS, [pairs, in_turns, forks], strict=True))[sys.argv[1]])
