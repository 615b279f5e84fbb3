"""Changes for test_patch_matrix.py that replace submodules, or the class, `forward` or an attribute of a
module.

Each change is a generator function.
"""

import contextlib
import copy
import functools
import types
from unittest import mock

import torch
from patch_changes import TAKES_OUT, change, linears, norms
from torch import nn


@change(orders=TAKES_OUT)
def identity_for_a_norm(model):
    """In each block, replace the first norm that has a weight by `nn.Identity`."""
    first = {path.rpartition(".")[0]: path for path in reversed(norms(model))}
    old = [(owner, path.rpartition(".")[2], model.get_submodule(path)) for owner, path in first.items()]
    for owner, child, _ in old:
        setattr(model.get_submodule(owner), child, nn.Identity())
    yield
    for owner, child, norm in old:
        setattr(model.get_submodule(owner), child, norm)


@change(orders=TAKES_OUT)
def norms_exchanged(model):
    """Replace each norm that has a weight by a copy with a different weight."""
    old = {path: model.get_submodule(path) for path in norms(model)}
    for path, norm in old.items():
        other = copy.deepcopy(norm)
        other.weight = nn.Parameter(norm.weight + 0.5, requires_grad=False)
        put(model, path, other)
    yield
    for path, norm in old.items():
        put(model, path, norm)


def put(model, path, module):
    owner, _, child = path.rpartition(".")
    setattr(model.get_submodule(owner), child, module)


@change("decoder")
def other_activations(model):
    old = [module for module in model.modules() if "act_fn" in module._modules]
    kept = [module.act_fn for module in old]
    for module in old:
        module.act_fn = nn.ReLU()
    yield
    for module, activation in zip(old, kept, strict=True):
        module.act_fn = activation


@change()
def another_eps(model):
    """Multiply the eps of all norms by 1000."""
    old = []
    for module in model.modules():
        for key in ("eps", "variance_epsilon", "norm_eps"):
            if isinstance(module.__dict__.get(key), float):
                old.append((module, key, module.__dict__[key]))
                setattr(module, key, old[-1][2] * 1000)
    yield
    for module, key, eps in old:
        setattr(module, key, eps)


@change("decoder")
def another_scaling(model):
    old = [(module, module.scaling) for module in model.modules() if hasattr(module, "scaling")]
    for module, scaling in old:
        module.scaling = scaling * 0.5
    yield
    for module, scaling in old:
        module.scaling = scaling


class Wrapped(nn.Module):
    """A third-party wrapper without the attributes (such as `weight`) of the module that it wraps."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs) * 1.25


@change("-t5", grad=True)  # T5 reads the weight of a linear directly.
def linears_wrapped(model):
    old = {path: model.get_submodule(path) for path in linears(model)}
    for path, linear in old.items():
        put(model, path, Wrapped(linear))
    yield
    for path, linear in old.items():
        put(model, path, linear)


def changed(own):
    """Return a function that calls the method `own` (a `forward`) and scales its result, like a wrapper of
    third-party code.

    Third-party code often sets such a function as `forward` on an instance of a module.
    """

    @functools.wraps(own)
    def forward(*args, **kwargs):
        y = own(*args, **kwargs)
        return y * 1.25 if isinstance(y, torch.Tensor) else y

    return forward


@contextlib.contextmanager
def own_forwards(modules):
    """Set an attribute `forward` on each module, and delete it on exit."""
    modules = list(modules)
    for module in modules:
        module.forward = changed(module.forward)
    yield
    for module in modules:
        del module.forward


@change(kernels=None, leaves=True)
def norm_forwards_wrapped(model):
    with own_forwards(model.get_submodule(path) for path in norms(model)):
        yield


@change()
def linear_forwards_wrapped(model):
    with own_forwards(model.get_submodule(path) for path in linears(model)):
        yield


@change(kernels=None, leaves=True)
def all_forwards_wrapped(model):
    """Wrap the `forward` of all modules, including modules that `patch` replaced."""
    with own_forwards(model.modules()):
        yield


@change(kernels=None)
def linear_class_forward(model):
    """Replace `nn.Linear.forward` for the whole process."""
    own = nn.Linear.forward
    with mock.patch.object(nn.Linear, "forward", lambda self, x: own(self, x) * 1.25):
        yield


@change(leaves=True)
def classes_of_a_tool(model):
    """Give each module a subclass that inherits everything, as FSDP does."""
    old = [(module, type(module)) for module in model.modules()]
    for module, cls in old:
        module.__class__ = types.new_class(cls.__name__, (cls,), {}, lambda body, cls=cls: body.update(of_tool(cls)))
    yield


def of_tool(cls):
    return {"__module__": cls.__module__, "__qualname__": cls.__qualname__}


OF_A_TOOL = "decoder attention skips a q_norm whose class has another forward since it was patched"


@change(leaves=True, known={"after-qwen3": OF_A_TOOL, "within-qwen3": OF_A_TOOL})
def norm_classes_with_a_forward(model):
    """Give each norm a subclass whose `forward` scales the result of the base class's `forward`."""
    for path in norms(model):
        norm = model.get_submodule(path)
        cls = type(norm)
        forward = lambda self, *args, cls=cls, **kwargs: cls.forward(self, *args, **kwargs) * 1.25  # noqa: E731
        norm.__class__ = type(cls)(cls.__name__, (cls,), {**of_tool(cls), "forward": forward})
    yield
