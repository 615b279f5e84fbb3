"""GPU times: replays of CUDA graphs over rotated buffers, providers taking turns.

A graph of many calls leaves out Python and launch gaps. Its calls go round enough buffers, outputs included, that no
call finds its data in the L2 cache. Providers take turns, one replay each, so that a change of clocks meets all of them
alike, and a large device-to-device copy takes its turn too: what the memory gives at that moment.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from ops import DTYPE, Op, Provider
from torch import Tensor

ROTATED = 400e6  # bytes that the buffers of one provider hold at least; and three times the L2
CALLS = 20  # in a graph, at least
COPY = "copy"


@dataclass(frozen=True)
class Time:
    """Microseconds per call."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> "Time":
        """The median with the 10th and 90th percentile."""
        deciles = quantiles(samples, n=10)
        return Time(median(samples), deciles[0], deciles[-1])


@dataclass(frozen=True)
class Replay:
    """A captured graph of `calls` calls; what it reads and writes is kept alive with it."""

    graph: torch.cuda.CUDAGraph
    calls: int
    keep: object


def buffers_for(call_bytes: int, device: torch.device) -> int:
    """How many sets of buffers to rotate."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, math.ceil(max(ROTATED, 3 * l2) / call_bytes))


def capture(call: Callable[[int], object], calls: int, outputs: int) -> Replay:
    """A graph of `call(0) … call(calls - 1)`, the last `outputs` results being alive at any time."""
    for at in range(2):  # compiles, loads, allocates
        call(at)
    torch.cuda.synchronize()
    graph, alive = torch.cuda.CUDAGraph(), deque[object](maxlen=outputs)
    with torch.cuda.graph(graph):
        for at in range(calls):
            alive.append(call(at))
    return Replay(graph, calls, (call, alive))


def capture_op(op: Op, provider: Provider, sets: list[tuple[Tensor, ...]], weight: Tensor) -> Replay:
    """The graph of one provider."""
    return capture(lambda at: provider(*sets[at % len(sets)], weight), max(CALLS, len(sets)), len(sets))


def capture_copy(device: torch.device) -> tuple[Replay, int]:
    """A graph of large copies, and the bytes of one: read and written."""
    free, _ = torch.cuda.mem_get_info(device)
    size = min(2**30, free // 8)
    source = torch.randn(size // DTYPE.itemsize, device=device, dtype=DTYPE)
    target = torch.empty_like(source)
    return capture(lambda _: target.copy_(source), 4, 1), 2 * source.nbytes


def race(replays: dict[str, Replay], rounds: int) -> dict[str, Time]:
    """Time per call of each, over `rounds` rounds; who begins changes with each round."""
    for replay in replays.values():
        for _ in range(2):
            replay.graph.replay()
    torch.cuda.synchronize()
    names, events = list(replays), {name: list[tuple[torch.cuda.Event, torch.cuda.Event]]() for name in replays}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            replays[name].graph.replay()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: Time.of([begin.elapsed_time(end) * 1e3 / replays[name].calls for begin, end in pairs])
        for name, pairs in events.items()
    }


__all__ = ["COPY", "Replay", "Time", "buffers_for", "capture_copy", "capture_op", "race"]
