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
SHAPE = (1, 100, 2048)


@pytest.mark.parametrize("name", TESTS)
def test_overlap(name, cuda):
    environment = os.environ | {"OXIWARP_OVERLAP": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def steps(device, shape=SHAPE):
    """Calls of every operator from a tensor to one of its shape. A second call has the last of several results.

    A loss has no such result.
    """
    others, made = Operands(torch.zeros(shape, dtype=torch.bfloat16, device=device)), {}
    like = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
    fakes = Operands(like)
    for name, form in FORMS.items():
        if name not in INFOS and name.partition(", ")[2] not in form.info.extra:
            continue
        sizes = [result.numel() for result in form.call(like, fakes)]
        for at in {0, len(sizes) - 1}:
            if sizes[at] == like.numel():
                made[name if at == 0 else f"{name}, last result"] = step(form, at, others)
    return made


def step(form, at, others):
    return lambda x: form.call(x, others)[at].view(x.shape)


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
    from op_info import FORMS, INFOS, Operands

    import oxiwarp

    torch.set_grad_enabled(False)
    check(dict(zip(TESTS, [pairs, in_turns, forks], strict=True))[sys.argv[1]])
