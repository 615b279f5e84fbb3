"""GPU times: replays of CUDA graphs over rotated buffers, providers taking turns.

A graph of many calls leaves out Python and launch gaps. Its calls go round enough inputs, and each writes results of
its own, so that no call finds its data in the L2 cache. Results that a call frees would not do: the graph's private
pool hands the next call the same block, which then stays in the cache and makes small shapes look too fast. So all
results of a graph stay alive while it is captured, whoever makes them.

Providers take turns, so that a change of clocks meets all of them alike. A turn is two replays, of which the second is
timed: the first one finds the L2 full of what the provider before has written, which has to leave first. A large
device-to-device copy takes its turn too: what the memory gives at that moment. It runs outside a graph, since a copy
node of a graph runs on a copy engine, which on an H200 moves 2767 GB/s instead of 4200.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles

import torch
from forms import DTYPE, Inputs, Result, bytes_of, tuple_of

ROTATED = 800e6  # bytes that the inputs of one provider hold at least; and three times the L2
SMALL = 2**20  # bytes
CALLS = 20  # in a graph, at least; fewer where their results would take more of the memory than this
RESULTS = 1 / 24  # of the GPU's memory, for the results of one graph
SLOW = 200  # µs of a call: launching alone never takes as long
LONGEST = 4e3  # µs of a replay, about: a slow provider's graph is shorter, but still passes the L2 three times
COPIES = 4  # in a turn
COPY_BYTES = 2**29  # of the tensor that is copied, at least; twice that where there is room
COPY = "copy"


@dataclass(frozen=True)
class Time:
    """Microseconds per call."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> "Time":
        """The median with the 10th and 90th percentile; of a single round there is one figure."""
        deciles = quantiles(samples, n=10) if len(samples) > 1 else samples
        return Time(median(samples), deciles[0], deciles[-1])


@dataclass(frozen=True)
class Turn:
    """What a provider does when its turn comes: `run` puts `calls` calls on the stream."""

    run: Callable[[], object]
    calls: int
    keep: object
    """Alive as long as `run` is needed: the graph's inputs and results."""


def sets_for(input_bytes: int, device: torch.device) -> int:
    """How many sets of inputs to rotate."""
    return max(2, math.ceil(max(ROTATED, 3 * _l2(device)) / input_bytes))


def rotated(make: Callable[[], Inputs], count: int) -> list[Inputs]:
    """`count` sets of inputs. Small ones are parameters, which the sets share."""
    sets = [make() for _ in range(count)]
    small = {name: x for name, x in sets[0].items() if bytes_of(x) < SMALL}
    return [{**inputs, **small} for inputs in sets]


def calls_for(output_bytes: int, sets: int, device: torch.device) -> int:
    """How many calls a graph has: each set of inputs once, and more where that is few."""
    room = int(torch.cuda.get_device_properties(device).total_memory * RESULTS)
    return max(sets, min(CALLS, room // output_bytes))


def capture(prepare: Callable[[Inputs], Callable[[], Result]], sets: list[Inputs], calls: int) -> Turn:
    """A graph of at most `calls` calls over the sets of inputs, all results alive; `prepare` makes the call of a set.

    What it does before, the forward pass of a gradient, runs on the capturing stream, for autograd returns to it.
    """
    stream = _capturing(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        prepared = [prepare(inputs) for inputs in sets]
        for call in prepared[:2]:  # compiles, loads, allocates
            call()
        begin, end = _events()
        begin.record()
        result = prepared[0]()
        end.record()
    stream.synchronize()
    least = max(1, math.ceil(3 * _l2(stream.device) / bytes_of(*sets[0].values(), *tuple_of(result))))
    if (once := begin.elapsed_time(end) * 1e3) > SLOW:
        calls = max(least, min(calls, int(LONGEST / once)))
    del result
    graph, results = torch.cuda.CUDAGraph(), list[object]()
    with torch.cuda.graph(graph, stream=stream):
        for at in range(calls):
            results.append(prepared[at % len(prepared)]())
    torch.cuda.current_stream().wait_stream(stream)
    return Turn(graph.replay, calls, (prepared, results))


def copy_turn(device: torch.device) -> tuple[Turn, int]:
    """Large copies, one behind the other, and the bytes of one: read and written."""
    free, _ = torch.cuda.mem_get_info(device)
    size = max(COPY_BYTES, min(2 * COPY_BYTES, free // 8))
    source = torch.randn(size // DTYPE.itemsize, device=device, dtype=DTYPE)
    target = torch.empty_like(source)

    def run() -> None:
        for _ in range(COPIES):
            target.copy_(source)

    return Turn(run, COPIES, (source, target)), 2 * source.nbytes


def race(turns: dict[str, Turn], rounds: int) -> dict[str, Time]:
    """Time per call of each, over `rounds` rounds; who begins changes with each round."""
    for turn in turns.values():
        for _ in range(2):
            turn.run()
    torch.cuda.synchronize()
    names, events = list(turns), {name: list[tuple[torch.cuda.Event, torch.cuda.Event]]() for name in turns}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin, end = _events()
            turns[name].run()
            begin.record()
            turns[name].run()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: Time.of([begin.elapsed_time(end) * 1e3 / turns[name].calls for begin, end in pairs])
        for name, pairs in events.items()
    }


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return begin, end


@cache
def _capturing(device: int) -> torch.cuda.Stream:
    """One for all graphs: the allocator keeps the blocks of each stream apart."""
    return torch.cuda.Stream(device)


def _l2(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size
