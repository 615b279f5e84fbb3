"""Checks whether a fused method, which replaces a block's `forward`, may compute the result of a submodule without
calling it.

The submodule must have no hooks. It must still have the class and the parameter names that it had when
`patch` was called.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as hooks_everywhere

from ....ops._register import PLAIN
from ...class_swap import base_of

tracing = torch.compiler.is_dynamo_compiling

Kind = tuple[type, tuple[tuple[str, bool], ...]]
"""A module's original class, and for each parameter its name and whether it is not None."""

NORM: tuple[tuple[str, bool | None], ...] = (("weight", None), ("bias", None))
"""The parameters of a norm. None means that the parameter is optional."""


def kind_of(module: nn.Module | None) -> Kind | None:
    """Return the `Kind` of a module (class and parameter names), or None if `module` is None."""
    if module is None:
        return None
    return base_of(module), tuple((name, held is not None) for name, held in module._parameters.items())


def is_exactly(module: nn.Module, cls: type) -> bool:
    """Return whether the module's class is `cls`, or the subclass of `cls` that `patch` made for the module.

    The result is False for a class that another tool derived from `cls`.
    """
    return is_class(type(module), cls)


def is_class(own: type, cls: type) -> bool:
    """Return whether `own` is `cls` or the subclass that `patch` derived from `cls` (in `class_swap`)."""
    return own is cls or (own.__base__ is cls and getattr(own, "_oxiwarp_base", None) is cls)


# This assignment has the effect of `torch.compiler.assume_constant_result`, but does not import Dynamo. It
# makes Dynamo treat the result of `is_class` as a constant. Compiled code then checks only the class of the
# module.
is_class._dynamo_marked_constant = True  # type: ignore[attr-defined]


def submodule(x: nn.Module, path: tuple[str, ...]) -> nn.Module | None:
    """Return the submodule of `x` at `path` (the parts of a dotted name), or None if there is no such
    submodule."""
    module: nn.Module | None = x
    for name in path:
        module = None if module is None else module._modules.get(name)
    return module


def hooked(module: nn.Module) -> bool:
    """Return whether a call of the module may run more or other code than its class's `forward`, such as a
    hook."""
    return hooks_everywhere() or has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Return whether the module has hooks, or whether the instance has its own `forward` instead of the
    class's `forward`.

    This function ignores torch's global hooks.
    """
    held = module.__dict__
    bound = held.get("forward")  # accelerate stores the class's own forward here, which is no hook
    if bound is not None and getattr(bound, "__func__", None) is not type(module).forward:
        return True
    # Under torch.compile, `bool(hooks)` creates no guard. Compiled code therefore ignores hooks that are
    # added after the compilation. Without `patch`, torch.compile ignores such hooks too.
    if tracing():
        hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        return any([bool(held) for held in hooks])
    return bool(
        held["_forward_hooks"] or held["_forward_pre_hooks"] or held["_backward_hooks"] or held["_backward_pre_hooks"]
    )


def idle(module: nn.Module) -> bool:
    """Return whether the module returns its input unchanged: it is a Dropout in evaluation mode and has no
    hooks."""
    return type(module) is nn.Dropout and not module.training and not hooked(module)


def is_plain(module: nn.Module, device: torch.device, kind: Kind | None = None) -> bool:
    """Return whether a fused method may compute the result of a module without calling the module.

    The module must have no hooks, and its parameters must be plain tensors on `device`. If `kind` (class and
    parameter names) is given, the module must have this class and these parameters. An adapter or a quantised
    module has another class or other parameters, so the result is False. If `kind` is None, the module must
    be a norm, and its `weight` and `bias` are checked.

    After `patch`, the user may replace the module by another module with the same class and parameter names,
    because the fused method reads the weights at each call. The caller must check for global hooks.
    """
    parameters, known = module._parameters, NORM
    if kind is not None:
        cls, known = kind
        if not is_exactly(module, cls) or len(parameters) != len(known):
            return False
    if has_hooks(module):
        return False
    for name, there in known:
        parameter = parameters.get(name)
        if there is not None and (parameter is not None) is not there:
            return False
        if parameter is not None and (type(parameter) not in PLAIN or parameter.device != device):
            return False
    return True


def resident(device: torch.device, *operands: Tensor | None) -> bool:
    """Return whether each operand is a plain tensor on `device` or None. An offloaded, sharded or quantised
    tensor is not."""
    for tensor in operands:  # noqa: SIM110  a generator would double the time
        if tensor is not None and (type(tensor) not in PLAIN or tensor.device != device):
            return False
    return True


__all__ = ["Kind", "hooked", "hooks_everywhere", "idle", "is_exactly", "is_plain", "kind_of", "resident", "submodule"]
