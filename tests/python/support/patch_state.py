"""Lists the state of a model as lines of text: modules, classes, hooks and other attributes.

Two models with equal lines have the same state. Tests compare an unpatched model with a patched model after
`unpatch`.
"""

import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

DESCRIPTIONS = ("__wrapped__", "__signature__")  # These attributes of wrappers are never called.
PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)


def state(model: nn.Module) -> list[str]:
    """Return one line per object that the model refers to: path, class, keys in order. Tensor values are
    omitted.

    oxiwarp's classes and functions have the names of the originals that they replace. To distinguish them,
    the lines of oxiwarp's classes and functions end with "of oxiwarp".
    """
    found: list[str] = []
    add_lines(found, "", model, {}, functools.cache(name))
    return found


def add_lines(found: list[str], path: str, x: Any, seen: dict[int, Any], name: Callable[[type], str]) -> None:
    """Append the lines of `x` to `found`. `seen` keeps the objects of earlier lines alive, so that Python
    does not give their ids to new objects."""
    if isinstance(x, PLAIN):
        found.append(f"{path}: {'an address' if type(x) is int and x >= 1 << 32 else repr(x)}")
    elif isinstance(x, torch.Tensor):
        text = f"{name(type(x))} {x.dtype} {list(x.shape)} {x.device}, requires_grad {x.requires_grad}"
        found.append(f"{path}: {text}")
    elif isinstance(x, type):
        found.append(f"{path}: class {x.__module__}.{x.__qualname__}")
    elif isinstance(x, (types.ModuleType, RemovableHandle)) or id(x) in seen:
        found.append(f"{path}: the {type(x).__name__} from before")
    else:
        seen[id(x)] = x
        found.append(f"{path}: {name(type(x))}{of_function(x)}")
        for key, value in parts(x):
            add_lines(found, f"{path}{key}", value, seen, name)


def name(cls: type) -> str:
    """Return the name of a class. If oxiwarp made the class or one of its bases, add "of oxiwarp"."""
    ours = any("_oxiwarp_base" in vars(base) for base in cls.__mro__)
    return f"{cls.__module__}.{cls.__qualname__}" + (" of oxiwarp" if ours else "")


def of_function(x: Any) -> str:
    """Return the name of a function. If oxiwarp defines the function, add "of oxiwarp".

    `functools.wraps` replaces the attribute `__module__`. The module is therefore determined from the
    function's globals.
    """
    x = getattr(x, "__func__", x)
    if not isinstance(x, types.FunctionType):
        return ""
    ours = x.__globals__.get("__name__", "").partition(".")[0] == "oxiwarp"
    return f" {x.__module__}.{x.__qualname__}" + (" of oxiwarp" if ours else "")


def parts(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that `x` refers to, such as list items and attributes. Also yield the path suffix
    of each object."""
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
    """Return whether a dict key is an integer, such as the id of an object or hook. Such ids differ between
    models with equal states."""
    return type(key) is int
