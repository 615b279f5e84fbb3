"""Steps as CUDA graphs: what a GPU takes for a step while nothing waits for Python."""

from collections.abc import Callable

import torch

from .turns import in_turns


def replay(
    steps: dict[int, Callable[[], object]], rounds: int, timed: Callable[[Callable[[], object]], float]
) -> dict[int, list[float]]:
    """Milliseconds of each replay of each step that can be captured, in turns. Each step has run before."""
    graphs = dict[int, torch.cuda.CUDAGraph]()
    for at, step in steps.items():
        try:
            graphs[at] = captured(step)
        except RuntimeError:  # it asks the GPU for something, or what it asks for is more memory than is left
            continue
    times = {at: list[float]() for at in graphs}
    for _, at in in_turns(graphs, rounds):
        times[at].append(timed(graphs[at].replay))
    return times


def captured(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A step, once warm on the stream that captures it, as a graph that has been replayed once."""
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
