"""Measures GPU times by replaying CUDA graphs whose calls rotate through several sets of buffers. The
compared implementations run alternately.

A graph of many calls excludes Python time and the gaps between launches. Its calls rotate through many sets of inputs,
and each call writes to separate result tensors, so that no call finds its data in the L2 cache. All results stay alive
during the capture. Otherwise, the next call would get the memory of a freed result, which is still in the L2 cache, and
small shapes would look too fast.

The implementations alternate, so that a change of the clock rate affects all of them. Each measurement of an
implementation has two graph replays, and only the second replay is timed. The first replay evicts the
previous implementation's data from the L2 cache.

A large device-to-device copy, measured in alternation with the implementations, gives the bandwidth to which their
bandwidths are compared. The copy is not in a graph, because a graph runs copies on a DMA engine of the GPU, which is
slower. On an H200, a copy moves 2767 GB/s in a graph, and 4200 GB/s outside of one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles

import torch
from forms import DTYPE, Inputs, Result, bytes_of, tuple_of

ROTATED = 800e6  # All input sets together have at least this many bytes, and at least three times the L2 cache.
SMALL = 2**20  # Tensors with fewer bytes are taken as model parameters, so all input sets share them.
CALLS = 20  # A graph has at least this many calls, if the memory is sufficient for their results.
RESULTS = 1 / 24  # The results of a graph take at most this fraction of the GPU memory.
# A call that takes more than this many µs counts as slow. Its launch is shorter than its kernel, so a graph
# of few calls is enough.
SLOW = 200
MOST_SETS = 8  # `race_calls` rotates through at most this many sets of inputs.
LONGEST = 4e3  # If calls are slow, a graph has fewer calls, so that its replay takes about this many µs.
COPIES = 4  # One measurement of the device copy makes this many copies.
# The tensor for the device copy has at least this many bytes. It has up to twice as many if the memory is
# sufficient.
COPY_BYTES = 2**29
COPY = "copy"


@dataclass(frozen=True)
class Time:
    """Microseconds per call: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> "Time":
        """Create a `Time` from times in microseconds. A single time serves as the median and as both
        percentiles."""
        deciles = quantiles(samples, n=10) if len(samples) > 1 else samples
        return Time(median(samples), deciles[0], deciles[-1])


@dataclass(frozen=True)
class Turn:
    """The work of one implementation in one measurement.

    `run` enqueues `calls` calls of the implementation on the stream.
    """

    run: Callable[[], object]
    calls: int
    keep: object
    """The inputs and results of the CUDA graph. They must stay alive while `run` is in use."""


def sets_for(input_bytes: int, device: torch.device) -> int:
    """Return the number of input sets to rotate through."""
    return max(2, math.ceil(max(ROTATED, 3 * _l2(device)) / input_bytes))


def rotated(make: Callable[[], Inputs], count: int) -> list[Inputs]:
    """Return `count` sets of inputs. All sets share the tensors with fewer than `SMALL` bytes, such as
    weights."""
    sets = [make() for _ in range(count)]
    small = {name: x for name, x in sets[0].items() if bytes_of(x) < SMALL}
    return [{**inputs, **small} for inputs in sets]


def calls_for(output_bytes: int, sets: int, device: torch.device) -> int:
    """Return the number of calls in a CUDA graph: `CALLS`, or fewer if the memory is too small for the
    results of so many calls. It is never less than the number of input sets.
    """
    room = int(torch.cuda.get_device_properties(device).total_memory * RESULTS)
    return max(sets, min(CALLS, room // output_bytes))


def capture(prepare: Callable[[Inputs], Callable[[], Result]], sets: list[Inputs], calls: int) -> Turn:
    """Capture a CUDA graph of `calls` calls that rotate through the input sets, and keep all results alive.
    If a call is slow, capture fewer calls.

    `prepare` takes one set of inputs and returns the callable to capture. For a gradient, `prepare` also runs
    the forward pass. The forward pass runs on the capturing stream, because autograd runs a backward pass on
    the stream of its forward pass.
    """
    stream = _capturing(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        prepared = [prepare(inputs) for inputs in sets]
        for call in prepared[:2]:  # the first calls compile, load and allocate
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
    """Return a `Turn` (the work of one measurement) that makes several large device copies.

    Also return the number of bytes that one copy reads and writes.
    """
    free, _ = torch.cuda.mem_get_info(device)
    size = max(COPY_BYTES, min(2 * COPY_BYTES, free // 8))
    source = torch.randn(size // DTYPE.itemsize, device=device, dtype=DTYPE)
    target = torch.empty_like(source)

    def run() -> None:
        for _ in range(COPIES):
            target.copy_(source)

    return Turn(run, COPIES, (source, target)), 2 * source.nbytes


def race(turns: dict[str, Turn], rounds: int) -> dict[str, Time]:
    """Time all implementations alternately. Map the name of each implementation to its time per call. Each
    round starts with another implementation."""
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


def race_calls(
    prepare: dict[str, Callable[[Inputs], Callable[[], Result]]],
    first: Inputs,
    make: Callable[[], Inputs],
    output_bytes: int,
    rounds: int,
) -> dict[str, Time]:
    """Time implementations alternately, each as a CUDA graph of calls that rotate through sets of inputs. The
    first set is `first`, and `make` returns each other set. `prepare` is as in `capture`."""
    device = next(iter(first.values())).device
    count = min(MOST_SETS, sets_for(bytes_of(*first.values()), device))
    sets = [first] + [make() for _ in range(count - 1)]
    calls = calls_for(output_bytes, count, device)
    return race({name: capture(one, sets, calls) for name, one in prepare.items()}, rounds)


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return begin, end


@cache
def _capturing(device: int) -> torch.cuda.Stream:
    """Return the stream on which all graphs are captured. There is only one, because torch's caching
    allocator reuses memory only within a stream."""
    return torch.cuda.Stream(device)


def _l2(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size
