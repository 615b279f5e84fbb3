"""Captures steps as CUDA graphs and times the replays, which take a step's GPU time without Python overhead."""

from collections.abc import Callable

import torch

from .turns import in_turns


def replay(
    steps: dict[int, Callable[[], object]], rounds: int, timed: Callable[[Callable[[], object]], float]
) -> dict[int, list[float]]:
    """Return the milliseconds of each replay, for each step that a CUDA graph can capture.

    The replays of the different steps alternate. The caller must have executed each step once.
    """
    graphs = dict[int, torch.cuda.CUDAGraph]()
    for at, step in steps.items():
        try:
            graphs[at] = captured(step)
        except RuntimeError:  # the step synchronizes with the GPU, or memory is exhausted
            continue
    times = {at: list[float]() for at in graphs}
    for _, at in in_turns(graphs, rounds):
        times[at].append(timed(graphs[at].replay))
    return times


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture a step in a CUDA graph, after one warm-up call on the capturing stream, and replay it once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    graph.replay()
    return graph


__all__ = ["replay"]
