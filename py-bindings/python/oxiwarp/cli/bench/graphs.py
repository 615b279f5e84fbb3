"""Captures steps of models as CUDA graphs, and times the replays of the graphs.

The time of a replay is the GPU time of a step without Python overhead.
"""

from collections.abc import Callable

import torch

from .turns import in_turns


def replay(
    steps: dict[int, Callable[[], object]], rounds: int, timed: Callable[[Callable[[], object]], float]
) -> dict[int, list[float]]:
    """Capture each step as a CUDA graph. Return, for each step, the milliseconds of its replays. Omit steps
    that cannot be captured.

    The replays of the different steps alternate. Before this call, each step must have been executed once.
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
    """Capture a step as a CUDA graph, replay the graph once, and return it.

    Before the capture, the step runs once on the capturing stream as a warm-up.
    """
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
