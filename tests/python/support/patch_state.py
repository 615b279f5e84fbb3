"""All that a model's objects hold, as lines of text: two models are in the same state if their lines are equal."""

import enum
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

DESCRIPTIONS = ("__wrapped__", "__signature__")  # of what a function stands for: they are read, not called
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)


def state(model: nn.Module) -> list[str]:
    """One line for each value that the model reaches: path, class, keys in their order. Tensors: without values.

    Classes and functions of oxiwarp have the names of what they replace. The lines of objects of these classes, and of
    these functions, say so.
    """
    return list(lines("", model, {}))


def lines(path: str, x: Any, seen: dict[int, Any]) -> Iterator[str]:
    """The lines of `x`. `seen` has what has a line already, by id, so that an id is not used twice."""
    if isinstance(x, PLAIN):
        yield f"{path}: {'an address' if type(x) is int and x >= 1 << 32 else repr(x)}"
    elif isinstance(x, torch.Tensor):
        yield f"{path}: {name(type(x))} {x.dtype} {list(x.shape)} {x.device}, requires_grad {x.requires_grad}"
    elif isinstance(x, type):
        yield f"{path}: class {x.__module__}.{x.__qualname__}"
    elif isinstance(x, (types.ModuleType, RemovableHandle)) or id(x) in seen:
        yield f"{path}: the {type(x).__name__} from before"
    else:
        seen[id(x)] = x
        yield f"{path}: {name(type(x))}{of_function(x)}"
        for key, value in parts(x):
            yield from lines(f"{path}{key}", value, seen)


def name(cls: type) -> str:
    """A class by its name, and whether oxiwarp made it or a class that it inherits from."""
    ours = any("_oxiwarp_base" in vars(base) for base in cls.__mro__)
    return f"{cls.__module__}.{cls.__qualname__}" + (" of oxiwarp" if ours else "")


def of_function(x: Any) -> str:
    """A function's name, and whether its source is oxiwarp's. `functools.wraps` hides that from its `__module__`."""
    x = getattr(x, "__func__", x)
    if not isinstance(x, types.FunctionType):
        return ""
    ours = x.__globals__.get("__name__", "").partition(".")[0] == "oxiwarp"
    return f" {x.__module__}.{x.__qualname__}" + (" of oxiwarp" if ours else "")


def parts(x: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, in its order."""
    if isinstance(x, types.MethodType):
        yield ".__self__", x.__self__
    elif isinstance(x, types.FunctionType):
        for key, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            if cell != types.CellType():
                yield f"<{key}>", cell.cell_contents
    elif isinstance(x, functools.partial):
        yield ".func", x.func
        yield ".args", x.args
        yield ".keywords", x.keywords
    elif isinstance(x, (dict, types.MappingProxyType)):
        for at, (key, value) in enumerate(x.items()):
            yield f"[{key!r}]" if isinstance(key, PLAIN) and not is_id(key) else f"[key {at}]", value
    elif isinstance(x, (list, tuple)):
        for at, value in enumerate(x):
            yield f"[{at}]", value
    for key, value in getattr(x, "__dict__", {}).items():
        if key not in DESCRIPTIONS and not isinstance(x, types.FunctionType):
            yield f".{key}", value


def is_id(key: Any) -> bool:
    """Whether a key is a number that differs between two models: of a hook's handle, or an object's id."""
    return type(key) is int
