"""Caches for tensors that several calls use, such as rotary tables, and for results that belong to one
object.

A store is a dict of cached results with a maximum number of entries and bytes. If a store is full, its oldest
entry is removed.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

# Maximum number of cached results per function. A model uses one or two resolutions at a time.
KEPT = 16
# Maximum number of bytes per store. For example, LTX-Video's rotary tables for 161 frames of 512 x 768 pixels
# have 198 MB.
MOST_BYTES = 256 << 20
# Cached tensors that a CUDA graph reads are retained until the process ends, up to `MOST_BYTES` in total.
# Tensors of at most `SMALL` bytes are retained beyond this limit. Rotary frequencies are so small. They are
# copied from the CPU, so a graph cannot compute them.
SMALL = 16 << 10
Made = TypeVar("Made", Tensor, tuple[Tensor, ...])
Store = dict[tuple[Any, int | None], Any]
FAKE = torch._C._TorchDispatchModeKey.FAKE
dispatch_mode = torch._C._get_dispatch_mode
compiling = torch.compiler.is_compiling
capturing = torch.cuda.is_current_stream_capturing
# Tensors that CUDA graphs read. They are never freed, because it is unknown when a graph is no longer used.
_of_graphs: list[Any] = []
# Maps an object to its store (its cached results). The store is not an attribute of the object, so copies and
# pickles do not include it.
_of_objects: WeakKeyDictionary[Any, Store] = WeakKeyDictionary()
Result = TypeVar("Result")


def cache_weakly(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Decorate a function of one argument, so that its results are cached. The cache has weak references to
    the arguments.

    A result must not refer to its argument. Otherwise, the cache would keep both alive. If an argument cannot
    be hashed or weakly referenced, its result is not cached.
    """
    results: WeakKeyDictionary[Any, Result] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(argument: Any) -> Result:
        try:
            return results[argument]
        except TypeError:
            return function(argument)
        except KeyError:
            return results.setdefault(argument, function(argument))

    cached.cache_clear = results.clear  # type: ignore[attr-defined]
    return cached


def keep(
    store: Store,
    most: int,
    key: Any,
    device: torch.device,
    make: Callable[[], Made],
    most_bytes: int = MOST_BYTES,
    graphs: bool = False,
) -> Made:
    """Return the cached result for `key`, or call `make` and cache its result in `store`.

    `key` includes the device. `store` has at most `most` entries, with at most `most_bytes` in total. All
    threads share the entries. The result does not depend on grad mode or inference mode. Each stream has
    separate entries, because streams are not synchronized. While fake tensors are active, the cache is
    neither read nor written. Tensors that torch.func wraps are not cached. During the capture of a CUDA
    graph, `make` is called, and the cache is not used. But if `graphs` is True and any stream has an entry
    for `key`, the capture uses this entry instead. The entry is then never freed, because the graph reads it
    at every replay.
    """
    if dispatch_mode(FAKE) is not None:
        return make()
    stream = stream_of(device)
    if stream is None:
        return of_graph(store, key, make) if graphs else make()
    made = store.get((key, stream))
    if made is None:
        with torch.inference_mode(False), torch.no_grad():  # so that a backward may save the tensors
            made = make()
        size = bytes_of(made)
        if not lasts(*tensors_of(made)) or size > most_bytes:
            return made
        while len(store) >= most or size + sum(map(bytes_of, list(store.values()))) > most_bytes:
            oldest: Any = next(iter(list(store)), None)
            store.pop(oldest, None)  # another thread may have removed it
        store[key, stream] = made
    return made


def stream_of(device: torch.device) -> int | None:
    """Return the handle of the device's current stream.

    On the CPU, return 0. During the capture of a CUDA graph, return None.
    """
    if device.type != "cuda":
        return 0
    if capturing():
        return None
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device.index is None else device.index)


def of_graph(store: Store, key: Any, make: Callable[[], Made]) -> Made:
    """Return the tensors that any stream has cached for `key`, for use in a CUDA graph that is being captured.

    The tensors are retained until the process ends, because the graph reads them at every replay. If no
    tensors are cached for `key`, call `make`, so that the graph computes the tensors. Also call `make` if the
    size of all retained tensors would exceed `MOST_BYTES`, except for tensors of at most `SMALL` bytes.
    """
    found = next((made for held, made in list(store.items()) if held[0] == key), None)
    if found is None:
        return make()
    if all(found is not held for held in _of_graphs):  # not yet retained for another layer
        size = bytes_of(found)
        if size > SMALL and size + sum(map(bytes_of, _of_graphs)) > MOST_BYTES:
            return make()
        _of_graphs.append(found)
    return found


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorate the function `make`, so that its most recent `KEPT` results are cached. The last argument of
    `make` is a device.

    torch.compile traces `make` and does not use the cache.
    """
    store: Store = {}

    @functools.wraps(make)
    def call(*args: Any) -> Made:
        if compiling():
            return make(*args)
        # The function `keep` has the same lookup, but takes twice the time. Every block of a model calls this
        # function, so the lookup is repeated here.
        if dispatch_mode(FAKE) is None:
            made = store.get((args, stream_of(args[-1])))
            if made is not None:
                return made
        return keep(store, KEPT, args, args[-1], lambda: make(*args), graphs=True)

    call.store = store  # type: ignore[attr-defined]
    return call


def store_of(x: Any) -> Store:
    """Return the store (the cached results) of an object.

    It exists until the object is freed or `forget` is called.
    """
    return _of_objects.setdefault(x, {})


def forget(x: Any) -> None:
    """Delete the store (the cached results) of an object."""
    _of_objects.pop(x, None)


def tensors_of(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the argument as a tuple of tensors."""
    return (made,) if isinstance(made, Tensor) else made


def bytes_of(made: Tensor | tuple[Tensor, ...]) -> int:
    """Return the size in bytes of one tensor, or of all tensors in a tuple."""
    return sum(tensor.nbytes for tensor in tensors_of(made))


def lasts(*made: Tensor) -> bool:
    """Return whether tensors may be cached for later calls.

    FakeTensors and wrappers of torch.func must not be cached.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(tensor) is Tensor and not wrapped(tensor) for tensor in made)


__all__ = ["cache_weakly", "forget", "keep", "kept", "lasts", "store_of"]
