"""Launches that overlap on a GPU: what is launched later sees what was launched before."""

from contextlib import nullcontext

import torch
from helpers import random

import oxiwarp


def test_launches_in_a_row(cuda):
    """Launches overlap, and none reads what one before it has yet to write: ops with long and short blocks by turns, in
    memory that each takes over from an earlier one."""
    weight = random((2048,), torch.bfloat16, cuda, 1)

    def chain(between):
        x = random((4096, 2048), torch.bfloat16, cuda)
        for _ in range(25):
            x, total = oxiwarp.add_rms_norm(x, oxiwarp.gelu_tanh(x), weight)
            between()
            x = oxiwarp.gated_residual(oxiwarp.softmax(x), total, weight)
            between()
            x = oxiwarp.layer_norm(x)
            between()
        return x

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    for _ in range(10):
        assert torch.equal(chain(lambda: None), expected)


def test_graph_of_two_streams(cuda):
    """A fork and a join within a capture: the launch behind the join has two before it."""
    static, side, graph = torch.zeros(512, 3072, device=cuda).bfloat16(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    weight = random((3072,), torch.bfloat16, cuda, 1)

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
        static.copy_(random(static.shape, static.dtype, cuda, seed=seed))
        graph.replay()
        for result, expected in zip(results, calls(static.clone(), fork=False), strict=True):
            assert torch.equal(result, expected)
