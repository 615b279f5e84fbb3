"""What a fused method asks of a module whose work it does itself: whether that is still the one it knows."""

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as hooks_everywhere

from ....ops._register import PLAIN
from ...class_swap import base_of

compiling = torch.compiler.is_compiling

Kind = tuple[type, tuple[tuple[str, bool], ...]]
"""A module's class, its own where it is replaced, and its parameters by name: whether they are there."""

NORM: tuple[tuple[str, bool | None], ...] = (("weight", None), ("bias", None))
"""The parameters of a norm, each of which may be there."""


def kind_of(module: nn.Module | None) -> Kind | None:
    """What a module was when its owner was patched; None: there was none."""
    if module is None:
        return None
    return base_of(module), tuple((name, held is not None) for name, held in module._parameters.items())


def is_exactly(module: nn.Module, cls: type) -> bool:
    """Whether the module is of this class itself, replaced or not, and not of another tool's that is derived from it or
    from ours."""
    return is_class(type(module), cls)


def is_class(own: type, cls: type) -> bool:
    """Whether a class is this one or our subclass of it."""
    return own is cls or (own.__base__ is cls and getattr(own, "_oxiwarp_base", None) is cls)


# What `torch.compiler.assume_constant_result` does, without Dynamo's import: of a module only its class is guarded.
is_class._dynamo_marked_constant = True  # type: ignore[attr-defined]


def submodule(x: nn.Module, path: tuple[str, ...]) -> nn.Module | None:
    """The module with this dotted name, or None: some blocks have it and some do not."""
    module: nn.Module | None = x
    for name in path:
        module = None if module is None else module._modules.get(name)
    return module


def hooked(module: nn.Module) -> bool:
    """Whether calling the module does more, or something else, than its class's forward."""
    return hooks_everywhere() or has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """The same but for hooks on all modules, `hooks_everywhere()`."""
    held = module.__dict__
    bound = held.get("forward")  # accelerate leaves the class's own there
    if bound is not None and getattr(bound, "__func__", None) is not type(module).forward:
        return True
    if compiling():  # `bool` of an attribute makes no guard: as for stock modules, hooks that come later are not seen
        hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        return any([bool(held) for held in hooks])
    return bool(
        held["_forward_hooks"] or held["_forward_pre_hooks"] or held["_backward_hooks"] or held["_backward_pre_hooks"]
    )


def idle(module: nn.Module) -> bool:
    """Whether calling the module gives what it is given: a Dropout that is not trained, to which nothing is hooked."""
    return type(module) is nn.Dropout and not module.training and not hooked(module)


def is_plain(module: nn.Module, device: torch.device, kind: Kind | None = None) -> bool:
    """Whether another may do the module's work: nothing is hooked to it (or to all: `fusion.ready` asks that), and
    its parameters are there.

    With a kind: and it is of that kind still, not another that was put in its place (an adapter, a quantised one) or
    whose class was. Another of the same class may be there: weights are read at each call, but where there were none
    the work is done without any. Without a kind the module is a norm.
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
    """Whether these are plain tensors on the device, not offloaded, sharded or quantised."""
    for tensor in operands:  # noqa: SIM110  a generator costs as much as what it asks
        if tensor is not None and (type(tensor) not in PLAIN or tensor.device != device):
            return False
    return True


__all__ = ["Kind", "hooked", "hooks_everywhere", "idle", "is_exactly", "is_plain", "kind_of", "resident", "submodule"]
