"""Hooks of torch: on modules, on all modules, on tensors."""

import contextlib

import torch
from patch_changes import change, linears, norms
from torch import nn


@contextlib.contextmanager
def hooked(handles):
    """The handles of hooks, until they are removed."""
    handles = list(handles)
    yield
    for handle in handles:
        handle.remove()


class Watched:
    """A model whose calls return what every module of it got and gave, too."""

    def __init__(self, model):
        self.model, self.seen = model, {}
        self.names = {module: name for name, module in model.named_modules()}

    def hook(self, module, args, kwargs, y):
        """Values by name of module and number of its call."""
        calls = self.seen.setdefault(self.names.get(module, "?"), [])
        calls.append({"args": args, "kwargs": kwargs, "y": y})

    def __call__(self, **inputs):
        self.seen.clear()
        y = self.model(**inputs)
        return y, {name: list(self.seen[name]) for name in sorted(self.seen)}


# Gemma 3 turns queries and keys to heads first before their norms.
TOKENS_FIRST = {"*-gemma3text": "the norms of Gemma 3's queries and keys are called with tokens first"}


@change(known=TOKENS_FIRST)
def watched(model):
    """Each module is called with the stock arguments, by the same names, and gives the stock result."""
    made = Watched(model)
    add = [module.register_forward_hook(made.hook, with_kwargs=True, always_call=True) for module in model.modules()]
    with hooked(add):
        yield made


@change(kernels=None)
def watched_globally(model):
    """By a hook for all modules of the process, which comes after `patch` knew of none."""
    seen = []
    with hooked([nn.modules.module.register_module_forward_hook(lambda module, args, y: seen.append(type(module)))]):
        yield
    assert seen


def scaled(module, args, y):
    """Half of a module's result, of each that it has."""
    if isinstance(y, tuple):
        return tuple(scaled(module, args, each) for each in y)
    return y * 0.5 if isinstance(y, torch.Tensor) else y


@change(grad=True)
def linears_scaled(model):
    with hooked(model.get_submodule(path).register_forward_hook(scaled) for path in linears(model)):
        yield


@change(grad=True)
def norms_scaled(model):
    with hooked(model.get_submodule(path).register_forward_hook(scaled) for path in norms(model)):
        yield


@change(grad=True)
def attentions_scaled(model):
    found = [module for module in model.modules() if "Attention" in type(module).__name__]
    with hooked(module.register_forward_hook(scaled) for module in found):
        yield


@change(kernels=None)
def everything_scaled(model):
    """All modules that are no containers of one tensor after the other."""
    kept = (nn.Sequential, nn.ModuleList)
    found = [module for module in model.modules() if not isinstance(module, kept)]
    with hooked(module.register_forward_hook(scaled) for module in found):
        yield


@change()
def arguments_shifted(model):
    """A hook that changes the tensors that come before a linear."""

    def hook(module, args, kwargs):
        return tuple(x + 0.25 for x in args), kwargs

    found = [model.get_submodule(path) for path in linears(model)]
    with hooked(module.register_forward_pre_hook(hook, with_kwargs=True) for module in found):
        yield


class Backwards:
    """A model whose calls return the sizes of the gradients that came to each module in the call before."""

    def __init__(self, model):
        self.model, self.seen = model, {}
        self.names = {module: name for name, module in model.named_modules()}

    def hook(self, module, *grads):
        shapes = [[None if x is None else x.shape for x in each] for each in grads]
        self.seen.setdefault(self.names[module], []).append(shapes)

    def __call__(self, **inputs):
        before = {name: self.seen[name] for name in sorted(self.seen)}
        self.seen = {}
        return self.model(**inputs), before


@change("-cogvideox", "-cogvideox-packed", grad=True, kernels=None, known=TOKENS_FIRST)
def backward_hooks(model):
    made = Backwards(model)
    with hooked(module.register_full_backward_hook(made.hook) for module in model.modules()):
        yield made


@change("-cogvideox", "-cogvideox-packed", grad=True, kernels=None, known=TOKENS_FIRST)
def backward_pre_hooks(model):
    made = Backwards(model)
    with hooked(module.register_full_backward_pre_hook(made.hook) for module in model.modules()):
        yield made


@change(grad=True)
def gradients_halved(model):
    """Hooks on parameters."""
    with hooked(parameter.register_hook(lambda gradient: gradient * 0.5) for parameter in model.parameters()):
        yield


@change(grad=True)
def gradients_in_place(model):
    """Hooks on parameters that come after a gradient was added."""

    def hook(parameter):
        parameter.grad.mul_(0.5)

    with hooked(parameter.register_post_accumulate_grad_hook(hook) for parameter in model.parameters()):
        yield
