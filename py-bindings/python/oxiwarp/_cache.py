"""Caches for tensors that several calls use, such as rotary tables, and for results that depend on one object, such as
a module.

A *store* is a dict of cached results. It has a maximum number of entries and a maximum size in bytes. If a new result
would exceed a maximum, the oldest entries are removed first.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

# Maximum number of cached results per decorated function. This is enough, because a model uses one or two
# resolutions at a time.
KEPT = 16
# Maximum size of a store in bytes. For example, LTX-Video's rotary tables for 161 frames of 512 x 768 pixels
# have 198 MB.
MOST_BYTES = 256 << 20
# Cached tensors that a CUDA graph reads are retained until the process ends, up to `MOST_BYTES` in total.
# Tensors of at most `SMALL` bytes, for example rotary frequencies, are retained beyond this limit. The
# alternative, to compute them in the graph, is impossible for rotary frequencies, because they are copied
# from the CPU.
SMALL = 16 << 10
Made = TypeVar("Made", Tensor, tuple[Tensor, ...])
Store = dict[tuple[Any, int | None], Any]
FAKE = torch._C._TorchDispatchModeKey.FAKE
dispatch_mode = torch._C._get_dispatch_mode
compiling = torch.compiler.is_compiling
capturing = torch.cuda.is_current_stream_capturing
# Cached tensors that CUDA graphs read. They are never freed, because the package does not know when a graph
# is destroyed.
_of_graphs: list[Any] = []
# Maps an object to its store (its cached results). The store is not an attribute of the object, so copies and
# pickles do not include it.
_of_objects: WeakKeyDictionary[Any, Store] = WeakKeyDictionary()
Result = TypeVar("Result")


def cache_weakly(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Decorate a function of one argument, so that its results are cached. The cache has weak references to
    the arguments.

    A result must not refer to its argument. Otherwise, the cached result would keep the argument alive. If an
    argument cannot be hashed or weakly referenced, the result is not cached.
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
    """Return the result that `store` has for `key`. If there is none, call `make`, and cache and return its
    result.

    The caller includes the device in `key`. `store` has at most `most` entries, with at most `most_bytes` in total. All
    threads share the entries. Each CUDA stream has separate entries, because streams are not synchronized. A cached
    result is computed with grad mode and inference mode off. Tensors that torch.func wraps are not cached. While fake
    tensors are active, `store` is neither read nor written.

    The argument `graphs` decides what happens during the capture of a CUDA graph. If it is False, `make` is called, and
    `store` is neither read nor written. If it is True, the result may be an entry that was cached for another stream.
    This entry is then retained until the process ends (see `of_graph`).
    """
    if dispatch_mode(FAKE) is not None:
        return make()
    stream = stream_of(device)
    if stream is None:
        return of_graph(store, key, make) if graphs else make()
    made = store.get((key, stream))
    if made is None:
        with torch.inference_mode(False), torch.no_grad():  # autograd cannot save tensors made in inference mode
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
    """Return the handle of the current stream of `device`.

    On the CPU, return 0. During the capture of a CUDA graph, return None.
    """
    if device.type != "cuda":
        return 0
    if capturing():
        return None
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device.index is None else device.index)


def of_graph(store: Store, key: Any, make: Callable[[], Made]) -> Made:
    """Return the tensors that `store` has for `key`, whatever the stream for which they were cached. A CUDA graph that
    is being captured will read them.

    The tensors are retained until the process ends, because the graph reads them at every replay. In two cases, call
    `make` instead, so that the graph computes the tensors at every replay. In the first case, `store` has no tensors
    for `key`. In the second case, the tensors are larger than `SMALL`, and all retained tensors together would exceed
    `MOST_BYTES`.
    """
    found = next((made for held, made in list(store.items()) if held[0] == key), None)
    if found is None:
        return make()
    if all(found is not held for held in _of_graphs):  # no other layer of the graph has retained it
        size = bytes_of(found)
        if size > SMALL and size + sum(map(bytes_of, _of_graphs)) > MOST_BYTES:
            return make()
        _of_graphs.append(found)
    return found


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorate the function `make`, so that the last `KEPT` results that it computed are cached. The last
    argument of `make` is a device.

    Under torch.compile, `make` is traced, and the cache is not used.
    """
    store: Store = {}

    @functools.wraps(make)
    def call(*args: Any) -> Made:
        if compiling():
            return make(*args)
        # Every block of a model calls the decorated function, so it must be fast. This lookup repeats the one
        # in `keep`, because a call of `keep` would take twice the time.
        if dispatch_mode(FAKE) is None:
            made = store.get((args, stream_of(args[-1])))
            if made is not None:
                return made
        return keep(store, KEPT, args, args[-1], lambda: make(*args), graphs=True)

    call.store = store  # type: ignore[attr-defined]
    return call


def store_of(x: Any) -> Store:
    """Return the store (the cached results) of `x`. If there is none, create an empty store.

    The store exists until `x` is freed, or until `forget(x)` is called.
    """
    return _of_objects.setdefault(x, {})


def forget(x: Any) -> None:
    """Delete the store (the cached results) of an object."""
    _of_objects.pop(x, None)


def tensors_of(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the argument as a tuple of tensors."""
    return (made,) if isinstance(made, Tensor) else made


def bytes_of(made: Tensor | tuple[Tensor, ...]) -> int:
    """Return the size in bytes of one tensor, or the sum of the sizes of the tensors in a tuple."""
    return sum(tensor.nbytes for tensor in tensors_of(made))


def lasts(*made: Tensor) -> bool:
    """Return whether all the tensors may be cached for later calls.

    FakeTensors and the tensor wrappers of torch.func must not be cached.
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(tensor) is Tensor and not wrapped(tensor) for tensor in made)


__all__ = ["cache_weakly", "forget", "keep", "kept", "lasts", "store_of"]
