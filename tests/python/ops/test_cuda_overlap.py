"""Tests of overlapping launches (programmatic dependent launch): a kernel must not read data before earlier
kernels have written it.

Each test runs in a new process, because `OXIWARP_OVERLAP` is read only once per process. The launches are
captured in CUDA graphs. Each launch has few rows, so that its blocks and the blocks of the next launch fit on
the GPU at the same time. The inputs change with each replay, so that a read that is too early gives a wrong
result.
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
    """Return a dict of functions, each of which runs one operator on a tensor.

    The result of each function has as many elements as the tensor, so it can be the input of another
    function. If an operator has several results, the first function returns the first result, and a second
    function returns the last one. Results of other sizes, for example a loss, are left out.
    """
    others, made = Operands(torch.zeros(shape, dtype=torch.bfloat16, device=device)), {}
    like = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
    fakes = Operands(like)
    for name, form in FORMS.items():
        if name not in INFOS and name.partition(", ")[2] not in form.info.extra:
            continue
        if like.dtype not in form.info.dtypes:
            continue
        results = form.call(like, fakes)
        for at in {0, len(results) - 1}:
            if results[at].numel() == like.numel() and results[at].dtype == like.dtype:
                made[name if at == 0 else f"{name}, last result"] = step(form, at, others)
    return made


def step(form, at, others):
    return lambda x: form.call(x, others)[at].view(x.shape)


def pairs(calls, x, wait):
    """For every ordered pair of operators (first, second), run the second operator on the result of the
    first."""
    results = []
    for first, second in product(calls.values(), repeat=2):
        before = first(x)
        wait()
        results += [before, second(before)]
        wait()
    return results


def in_turns(calls, x, wait):
    """Run `rope` 300 times, each time on the result of the previous call.

    A CUDA graph reuses the same few buffers for these results. Each launch therefore overwrites a buffer that
    an earlier launch has read.
    """
    for _ in range(300):
        x = calls["rope"](x)
        wait()
    return [x]


def forks(calls, x, wait):
    """Run kernels after a copy, after a fill, and after the point where two branches of a CUDA graph join.

    One of the branches ends with a copy.
    """
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
    """Capture `sequence` in a CUDA graph, replay it with new inputs, and compare the results with calls that
    synchronize after each kernel."""
    static, graph = torch.zeros(SHAPE, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
    # `steps` copies operands from the CPU, which a graph capture does not allow. It must therefore run before
    # the capture.
    calls = steps(static.device)
    sequence(calls, static, torch.cuda.synchronize)  # loads the kernels before the capture
    with torch.cuda.graph(graph):
        results = sequence(calls, static, nothing)
    for seed in range(10):
        static.copy_(random(SHAPE, static.dtype, static.device, seed=seed))
        graph.replay()
        for result, expected in zip(results, sequence(calls, static.clone(), torch.cuda.synchronize), strict=True):
            assert expected.isfinite().all() and torch.equal(result, expected)


def nothing():
    """Replace `torch.cuda.synchronize` in a capture, which does not allow it."""


if __name__ == "__main__":
    import torch
    from helpers import random
    from op_info import FORMS, INFOS, Operands

    import oxiwarp

    torch.set_grad_enabled(False)
    check(dict(zip(TESTS, [pairs, in_turns, forks], strict=True))[sys.argv[1]])
