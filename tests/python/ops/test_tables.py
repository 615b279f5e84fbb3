"""Tests of the cache for tensors that several calls need, such as rotary tables.

The tests check which calls may reuse a cached tensor, and which tensors are never cached.
"""

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from helpers import random
from torch._subclasses.fake_tensor import FakeTensorMode

import oxiwarp
from oxiwarp import _cache
from oxiwarp._cache import KEPT, keep, kept, lasts
from oxiwarp.ops import _rope_tables
from oxiwarp.ops._rope_tables import frequencies


@pytest.fixture
def halves():
    """Return a function whose results are cached. Its attribute `seen` lists the sizes for which it computed
    a result."""
    seen = []

    @kept
    def made(count, device):
        seen.append(count)
        return torch.full((count,), 0.5, device=device)

    made.seen = seen
    return made


def test_made_once(halves, device):
    """The same arguments give the same cached tensor. If there are more than `KEPT` entries, the oldest
    entry is dropped."""
    first = halves(3, device)
    assert halves(3, device) is first and halves(4, device) is not first and halves.seen == [3, 4]
    for count in range(5, KEPT + 4):
        halves(count, device)
    assert len(halves.store) == KEPT and halves(4, device) is not None and halves.seen.count(4) == 1
    assert halves(3, device) is not first


def test_made_in_inference_mode(halves):
    """A tensor that is cached during inference mode is not an inference tensor, so autograd may save it for a
    backward pass."""
    with torch.inference_mode():
        made = halves(3, torch.device("cpu"))
    assert not made.is_inference() and not made.requires_grad
    with torch.enable_grad():
        x = torch.ones(3, requires_grad=True)
        (x * halves(3, torch.device("cpu"))).sum().backward()
    assert halves.seen == [3] and torch.equal(x.grad, made)


def test_fake_tensors(halves):
    """Results that are fake tensors are not cached, and a call in `FakeTensorMode` does not read the cache."""
    for _ in range(2):
        with FakeTensorMode():
            assert not lasts(halves(3, torch.device("cpu")))
        assert lasts(halves(3, torch.device("cpu")))


def test_transforms(halves):
    """Tensors that are made under a torch.func transform are not cached."""
    with torch.enable_grad():
        for _ in range(2):
            gradient = torch.func.grad(lambda x: (x * halves(3, torch.device("cpu"))).sum())(torch.ones(3))
            assert torch.equal(gradient, torch.full((3,), 0.5))
    assert not halves.store and lasts(halves(3, torch.device("cpu")))


def test_large_ones():
    """A result that is larger than the byte limit is not cached.

    If the total size of all entries exceeds this limit, the oldest entries are dropped.
    """
    store = {}
    for bytes_, left in ((16, []), (8, [8]), (4, [8, 4]), (12, [12]), (16, [12])):
        keep(store, KEPT, bytes_, torch.device("cpu"), lambda n=bytes_ // 4: torch.ones(n), most_bytes=12)
        assert [key for key, _ in store] == left


def test_grids():
    """The cached rotary tables for many video sizes take at most `MOST_BYTES` in total."""
    before = dict(_rope_tables.grid_tables.store)
    _rope_tables.grid_tables.store.clear()
    for width in range(8, 8 + KEPT):
        _rope_tables.grid_tables((21, 160, width), (44, 42, 42), 10000.0, torch.device("meta"))
    assert sum(map(_cache.bytes_of, _rope_tables.grid_tables.store.values())) <= _cache.MOST_BYTES
    _rope_tables.grid_tables.store.clear()
    _rope_tables.grid_tables.store.update(before)


def test_threads():
    """The cache works if several threads drop the same entry at the same time."""
    store, errors, device, value = {}, [], torch.device("cpu"), torch.zeros(1)
    before, end = sys.getswitchinterval(), time.monotonic() + 1

    def ask(of):
        try:
            for at in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
                keep(store, 1, at % 5 + of, device, lambda: value)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(of,)) for of in range(6)]
    sys.setswitchinterval(1e-7)
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    sys.setswitchinterval(before)
    assert not errors


def test_rope_1d_after_fake_tensors():
    """If `rope_1d` runs with fake tensors, later calls with real tensors do not use the fake rotary
    frequencies."""
    q = random((1, 6, 2, 16), torch.float32, "cpu")
    with FakeTensorMode() as mode:
        oxiwarp.rope_1d(mode.from_tensor(q), theta=123.0)
    expected = oxiwarp.rope_1d(q, theta=123.0)
    with FakeTensorMode() as mode:
        oxiwarp.rope_1d(mode.from_tensor(q), theta=123.0)
    assert torch.equal(oxiwarp.rope_1d(q, theta=123.0), expected)


def test_graphs_find_what_any_stream_made(halves, monkeypatch):
    """A call in a CUDA graph capture reads cache entries that were made on any stream.

    During a capture, nothing can be copied from the CPU to the GPU, so some results cannot be computed. A
    cached tensor that a graph reads is never freed. With `graphs=False`, a call in a capture ignores the
    cache and computes a new result.
    """
    device, stream, store = torch.device("cuda"), SimpleNamespace(now=7), {}
    monkeypatch.setattr(_cache, "stream_of", lambda device: stream.now)

    def get(graphs):
        return keep(store, 1, ("key",), device, lambda: torch.ones(3), graphs=graphs)

    made = get(True)
    stream.now = 8
    other = get(True)
    assert other is not made
    stream.now = None
    assert get(False) is not other and get(True) is other
    assert get(True) is other and sum(held is other for held in _cache._of_graphs) == 1
    store.clear()
    assert get(True) is not other and not store
    assert any(held is other for held in _cache._of_graphs)


def test_what_graphs_hold(monkeypatch):
    """Cached tables that CUDA graphs read stay alive, up to a total size of `MOST_BYTES`.

    Beyond this limit, each captured graph computes its own large tables. Small tables always stay alive,
    because some of them cannot be computed in a capture.
    """
    store, device = {}, torch.device("cuda")
    monkeypatch.setattr(_cache, "_of_graphs", [])
    monkeypatch.setattr(_cache, "SMALL", 8)
    monkeypatch.setattr(_cache, "MOST_BYTES", 32)
    found = []
    for stream in (7, None):
        monkeypatch.setattr(_cache, "stream_of", lambda device, stream=stream: stream)
        for count in (4, 5, 6, 2):
            found.append(keep(store, KEPT, count, device, lambda n=count: torch.ones(n), graphs=True))
    eager, captured = found[:4], found[4:]
    assert [a is b for a, b in zip(eager, captured, strict=True)] == [True, False, False, True]


def test_frequencies_of_graphs():
    """For every head dimension, the rotary frequencies have at most `SMALL` bytes. If a CUDA graph reads
    them, they therefore always stay alive.

    This is necessary because a capture cannot compute the frequencies, which are copied from the CPU.
    """
    assert frequencies(8192, 10000.0, torch.device("cpu")).nbytes <= _cache.SMALL


def test_streams_and_graphs(halves, cuda):
    """A call on another stream makes a separate cache entry. A call in a CUDA graph capture reads an existing
    entry of any stream."""
    device = torch.device(cuda.type, torch.cuda.current_device())
    made, graph = halves(3, device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert halves(3, device) is not made
    assert len(halves.store) == 2
    with torch.cuda.graph(graph):
        captured = halves(3, device)
    graph.replay()
    assert captured is made and len(halves.store) == 2 and halves(3, device) is made
