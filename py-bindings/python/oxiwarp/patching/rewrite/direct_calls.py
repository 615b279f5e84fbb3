"""Calls submodules of a rewritten method without `nn.Module.__call__`, which saves Python time.

If a decoder generates one token per step, Python takes more time than the GPU, and each call of a module takes as much
Python time as the launch of a kernel. In methods of transformers, `self.linear(x)` therefore becomes
`direct(self, "linear", x)`. If gradients are disabled and the module has no hooks, this function calls `F.linear` or
the module's `forward`. Otherwise it calls the module.
"""

import ast
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules

from .flow import is_self
from .method import PREFIX

DIRECT = "direct"
LINEAR, CALL = nn.Linear.forward, nn.Module.__call__


def replace_calls(tree: ast.FunctionDef, cls: type) -> None:
    """Replace the calls of submodules in `tree`, which is a method of the class `cls`."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(called, ast.Attribute) or not is_self(called.value):
            continue
        assert isinstance(node, ast.Call)
        if inspect.getattr_static(cls, called.attr, None) is None:
            node.args = [called.value, ast.copy_location(ast.Constant(called.attr), called), *node.args]
            node.func = ast.copy_location(ast.Name(PREFIX + DIRECT, ast.Load()), called)


def traced(owner: Any, name: str, /, *args: Any, **options: Any) -> Any:
    """Return `owner.name(*args, **options)`. torch.compile traces this function instead of `direct`, whose checks would
    add guards."""
    return getattr(owner, name)(*args, **options)


def direct(owner: Any, name: str, /, *args: Any, **options: Any) -> Any:
    """Return `owner.name(*args, **options)`, where `name` is usually a submodule."""
    if torch.is_grad_enabled() or modules._global_forward_hooks or modules._global_forward_pre_hooks:
        return getattr(owner, name)(*args, **options)
    held = owner.__dict__
    module = held["_modules"].get(name) if "_modules" in held and name not in held else None
    if module is None or torch._C._get_tracing_state() is not None:
        return getattr(owner, name)(*args, **options)
    own, cls = module.__dict__, type(module)
    # Backward hooks do not matter, because gradients are disabled.
    hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own
    if hooked or own.get("_compiled_call_impl") is not None or cls.__call__ is not CALL:
        return module(*args, **options)
    if cls is nn.Linear and cls.forward is LINEAR and len(args) == 1 and not options:
        parameters = own["_parameters"]
        if "weight" in parameters and "bias" in parameters and not ("weight" in own or "bias" in own):
            return F.linear(args[0], parameters["weight"], parameters["bias"])
    return cls.forward(module, *args, **options)


__all__ = ["DIRECT", "direct", "replace_calls", "traced"]
