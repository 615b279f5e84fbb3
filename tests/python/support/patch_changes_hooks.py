"""Changes for test_patch_matrix.py that add torch hooks. Each change is a generator function.

The hooks are on single modules, on all modules of the process, or on parameters.
"""

import contextlib

import torch
from patch_changes import change, linears, norms
from torch import nn


@contextlib.contextmanager
def hooked(handles):
    """Remove the hooks of these handles on exit."""
    handles = list(handles)
    yield
    for handle in handles:
        handle.remove()


class Watched:
    """A callable that calls a model and records the arguments and results of each of its modules.

    It returns the result of the model and these records.
    """

    def __init__(self, model):
        self.model, self.seen = model, {}
        self.names = {module: name for name, module in model.named_modules()}

    def hook(self, module, args, kwargs, y):
        """Record the arguments and the result `y` of a module call, under the name of the module."""
        calls = self.seen.setdefault(self.names.get(module, "?"), [])
        calls.append({"args": args, "kwargs": kwargs, "y": y})

    def __call__(self, **inputs):
        self.seen.clear()
        y = self.model(**inputs)
        return y, {name: list(self.seen[name]) for name in sorted(self.seen)}


# Gemma 3 transposes query and key to `[B, H, S, D]` before their norms. oxiwarp's patched attention calls
# these norms before the transposition, so hooks on the norms receive `[B, S, H, D]`.
TOKENS_FIRST = {"*-gemma3text": "the norms of Gemma 3's queries and keys are called with tokens first"}


@change(known=TOKENS_FIRST)
def watched(model):
    """Record the calls of all modules.

    In a patched model, each module must get the same arguments under the same names, and return the same
    result.
    """
    made = Watched(model)
    add = [module.register_forward_hook(made.hook, with_kwargs=True, always_call=True) for module in model.modules()]
    with hooked(add):
        yield made


@change(kernels=None)
def watched_globally(model):
    """Add a global forward hook, which torch calls for every module of the process."""
    seen = []
    with hooked([nn.modules.module.register_module_forward_hook(lambda module, args, y: seen.append(type(module)))]):
        yield
    assert seen


def scaled(module, args, y):
    """Return half of each tensor that a module returns."""
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
    """Scale the results of all modules except `nn.Sequential` and `nn.ModuleList`."""
    kept = (nn.Sequential, nn.ModuleList)
    found = [module for module in model.modules() if not isinstance(module, kept)]
    with hooked(module.register_forward_hook(scaled) for module in found):
        yield


@change()
def arguments_shifted(model):
    """Add pre-hooks that change the inputs of linear layers."""

    def hook(module, args, kwargs):
        return tuple(x + 0.25 for x in args), kwargs

    found = [model.get_submodule(path) for path in linears(model)]
    with hooked(module.register_forward_pre_hook(hook, with_kwargs=True) for module in found):
        yield


class Backwards:
    """A callable that calls a model. It returns the model's result, and the records of the backward hooks
    since the last call.

    For each module, the hooks record the shapes of the gradients.
    """

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


@change("-cogvideox", "-cogvideox-packed", grad=True, kernels=None, repeats=False, known=TOKENS_FIRST)
def backward_hooks(model):
    made = Backwards(model)
    with hooked(module.register_full_backward_hook(made.hook) for module in model.modules()):
        yield made


@change("-cogvideox", "-cogvideox-packed", grad=True, kernels=None, repeats=False, known=TOKENS_FIRST)
def backward_pre_hooks(model):
    made = Backwards(model)
    with hooked(module.register_full_backward_pre_hook(made.hook) for module in model.modules()):
        yield made


@change(grad=True)
def gradients_halved(model):
    """Halve gradients with hooks on parameters."""
    with hooked(parameter.register_hook(lambda gradient: gradient * 0.5) for parameter in model.parameters()):
        yield


@change(grad=True)
def gradients_in_place(model):
    """Add hooks that halve gradients in place. A hook runs after torch has accumulated the gradient of its
    parameter.
    """

    def hook(parameter):
        parameter.grad.mul_(0.5)

    with hooked(parameter.register_post_accumulate_grad_hook(hook) for parameter in model.parameters()):
        yield
