"""Results that are kept: as long as what they were made from, or the last ones on a device, for the next call."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

KEPT = 16  # of each kind: a model has one or two resolutions at a time
MOST_BYTES = 256 << 20  # of each kind: LTX-Video's tables of 161 frames of 512 x 768 pixels have 198 MB
SMALL = 16 << 10  # bytes: frequencies, which no graph can make (they are copied from the CPU), held beyond `MOST_BYTES`
Made = TypeVar("Made", Tensor, tuple[Tensor, ...])
Store = dict[tuple[Any, int | None], Any]
FAKE = torch._C._TorchDispatchModeKey.FAKE
dispatch_mode = torch._C._get_dispatch_mode
compiling = torch.compiler.is_compiling
capturing = torch.cuda.is_current_stream_capturing
_of_graphs: list[Any] = []  # what captured graphs read: nobody says when a graph is gone
_of_objects: WeakKeyDictionary[Any, Store] = WeakKeyDictionary()  # no copy and no pickle of one has them
Result = TypeVar("Result")


def cache_weakly(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """`functools.cache` for a function of one argument, which the cache does not keep alive.

    A result must not refer to its argument, or both live as long as the cache. No result is kept for an argument that
    has no hash or no weak references.
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
    """What `make` makes on `device` for `key`, which names it too, or has made: its last results are in `store`,
    `most` of them, of `most_bytes` together.

    Calls of any thread, any grad mode and inference mode may have them. Another stream has its own, since it would read
    these unasked. Nothing is kept, or found, for fake tensors or torch.func's. Neither for a CUDA graph, which goes on
    reading what it read, but with `graphs`: then it finds what any stream has made, and that is never let go.
    """
    if dispatch_mode(FAKE) is not None:
        return make()
    stream = stream_of(device)
    if stream is None:
        return of_graph(store, key, make) if graphs else make()
    made = store.get((key, stream))
    if made is None:
        with torch.inference_mode(False), torch.no_grad():  # a backward may save them
            made = make()
        size = bytes_of(made)
        if not lasts(*tensors_of(made)) or size > most_bytes:
            return made
        while len(store) >= most or size + sum(map(bytes_of, list(store.values()))) > most_bytes:
            oldest: Any = next(iter(list(store)), None)
            store.pop(oldest, None)  # by now another thread may have
        store[key, stream] = made
    return made


def stream_of(device: torch.device) -> int | None:
    """The device's current stream, 0 on the CPU; None where a graph is captured."""
    if device.type != "cuda":
        return 0
    if capturing():
        return None
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device.index is None else device.index)


def of_graph(store: Store, key: Any, make: Callable[[], Made]) -> Made:
    """What any stream has made, which lives as long as the process from now on; or the graph's own, where nothing was
    made or what all graphs read would be too large."""
    found = next((made for held, made in list(store.items()) if held[0] == key), None)
    if found is None:
        return make()
    if all(found is not held for held in _of_graphs):  # each layer asks
        size = bytes_of(found)
        if size > SMALL and size + sum(map(bytes_of, _of_graphs)) > MOST_BYTES:
            return make()
        _of_graphs.append(found)
    return found


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """`make`, whose last argument is a device, with its last results kept; in a graph that torch.compile traces it
    stands as it is."""
    store: Store = {}

    @functools.wraps(make)
    def call(*args: Any) -> Made:
        if compiling():
            return make(*args)
        if dispatch_mode(FAKE) is None:  # as `keep`, in half the time: every block asks
            made = store.get((args, stream_of(args[-1])))
            if made is not None:
                return made
        return keep(store, KEPT, args, args[-1], lambda: make(*args), graphs=True)

    call.store = store  # type: ignore[attr-defined]
    return call


def store_of(x: Any) -> Store:
    """What is kept of an object, as long as it lives or until it is forgotten."""
    return _of_objects.setdefault(x, {})


def forget(x: Any) -> None:
    """Let go what is kept of an object."""
    _of_objects.pop(x, None)


def tensors_of(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What was made, as a tuple."""
    return (made,) if isinstance(made, Tensor) else made


def bytes_of(made: Tensor | tuple[Tensor, ...]) -> int:
    """The memory of what was made."""
    return sum(tensor.nbytes for tensor in tensors_of(made))


def lasts(*made: Tensor) -> bool:
    """Whether tensors may be kept for later calls: they are no fake ones, and none that torch.func has wrapped."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(tensor) is Tensor and not wrapped(tensor) for tensor in made)


__all__ = ["cache_weakly", "forget", "keep", "kept", "lasts", "store_of"]
