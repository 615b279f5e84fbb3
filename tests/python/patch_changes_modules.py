"""Changes of a model's own objects: copies, dtypes, weights, what is trained, classes and forwards of modules."""

import contextlib
import copy
import functools
import itertools
import pickle
import types
from unittest import mock

import test_decoder
import torch
from helpers import random
from patch_changes import TAKES_OUT, change, linears, norms
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune


@change()
def deepcopy(model):
    yield copy.deepcopy(model)


@change(*(f"-{name.lower()}" for name in test_decoder.CALLS if name != "Phi3"))  # transformers makes classes in a function
def pickled(model):
    yield pickle.loads(pickle.dumps(model))


@change()
def weights_assigned(model):
    """`load_state_dict(assign=True)`: other parameters, of which the model's modules know nothing."""
    old = model.state_dict()
    other = {key: x + random(x.shape, x.dtype, "cpu", seed, 0.05) for seed, (key, x) in enumerate(old.items())}
    model.load_state_dict(other, assign=True)
    yield
    model.load_state_dict(old, assign=True)


@change()
def through_meta(model):
    """To meta, to empty memory, and loaded. What modules share they no longer share."""

    def values():
        every = {"remove_duplicate": False}
        return dict(itertools.chain(model.named_parameters(**every), model.named_buffers(**every)))

    old = {name: x.clone() for name, x in values().items()}
    nn.Module.to(model, "meta")
    model.to_empty(device="cpu")
    for name, x in values().items():
        x.data.copy_(old[name])
    yield


@change()
def tensors_swapped(model):
    """A conversion that swaps parameters instead of their data."""
    own = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    nn.Module.double(model)
    nn.Module.float(model)
    torch.__future__.set_swap_module_params_on_conversion(own)
    yield


@change()
def shared_memory(model):
    yield model.share_memory()


def converted(x, dtype):
    """The floating tensors of the arguments of a call in this dtype."""
    if isinstance(x, dict):
        return {key: converted(value, dtype) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(converted(value, dtype) for value in x)
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def in_dtype(model, dtype, wider=lambda model: ()):
    """Another dtype, but for the modules of these names. Back in float32 the weights stay rounded."""
    nn.Module.to(model, dtype)
    for path in wider(model):
        model.get_submodule(path).float()
    yield lambda **inputs: model(**converted(inputs, dtype))
    nn.Module.float(model)


change(name="float64", kernels=None)(functools.partial(in_dtype, dtype=torch.float64))
change(name="bfloat16")(functools.partial(in_dtype, dtype=torch.bfloat16))
change(name="float16")(functools.partial(in_dtype, dtype=torch.float16))
change(name="bfloat16-with-wider-norms")(functools.partial(in_dtype, dtype=torch.bfloat16, wider=norms))


@change("sdxl", "sd15", "pixart")
def channels_last(model):
    yield nn.Module.to(model, memory_format=torch.channels_last)
    nn.Module.to(model, memory_format=torch.contiguous_format)


@change(grad=True)
def train_mode(model):
    yield model.train()
    model.eval()


@change(grad=True)
def dropout(model):
    """All dropouts at work. They draw the same numbers: the modules are called in the same order."""
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.p = 0.5
    yield model.train()
    for module in dropouts:
        module.p = 0.0
    model.eval()


def learn(model, wanted):
    """Train only the parameters of these names."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted(name))


@change(grad=True)
def norms_trained(model):
    learn(model, lambda name: name.rpartition(".")[0] in norms(model))
    yield


@change(grad=True)
def linears_trained(model):
    learn(model, lambda name: name.rpartition(".")[0] in linears(model))
    yield


@change("diffusers", grad=True)
def tables_trained(model):
    """What is no linear's and no norm's: tables of modulations, embeddings, convolutions."""
    known = {*linears(model), *norms(model)}
    learn(model, lambda name: name.rpartition(".")[0] not in known)
    yield


@change(grad=True)
def half_trained(model):
    """Every second parameter."""
    chosen = {name for name, _ in list(model.named_parameters())[::2]}
    learn(model, chosen.__contains__)
    yield


# torch looks the property up in the class of the module, not in its bases.
PATCHED_OVER = "remove_parametrizations of a module that was patched after it was parametrized"
PATCHED_AGAIN = "review py 3: patched again, a norm keeps the formula of the forward that it had before"


class Scale(nn.Module):
    """A parametrization that can be written in a state dict."""

    def forward(self, x):
        return x * 1.5


@change(leaves=True, orders=("before", "after", "around"), known={"before-*": PATCHED_OVER})
def norms_parametrized(model):
    paths = norms(model)
    for path in paths:
        parametrize.register_parametrization(model.get_submodule(path), "weight", Scale())
    yield
    for path in paths:
        parametrize.remove_parametrizations(model.get_submodule(path), "weight", leave_parametrized=False)


@change("wan", "vace", "pixart", "ltx", "ltx2", "ltx2.3", leaves=True, known={"before-*": PATCHED_OVER, "within-*": PATCHED_OVER})
def tables_parametrized(model):
    """The modulation tables that blocks have as parameters."""
    owners = [module for module in model.modules() if hasattr(module, "scale_shift_table")]
    for module in owners:
        parametrize.register_parametrization(module, "scale_shift_table", Scale())
    yield
    for module in owners:
        parametrize.remove_parametrizations(module, "scale_shift_table", leave_parametrized=False)


@change(grad=True)
def linears_weight_norm(model):
    for path in linears(model):
        parametrizations.weight_norm(model.get_submodule(path))
    yield


@change(grad=True)
def linears_old_weight_norm(model):
    paths = linears(model)
    for path in paths:
        nn.utils.weight_norm(model.get_submodule(path))
    yield
    for path in paths:
        nn.utils.remove_weight_norm(model.get_submodule(path))


@change(grad=True)
def pruned(model):
    """Norms and linears, each with a mask that is a buffer and a hook that applies it."""
    paths = norms(model) + linears(model)
    for path in paths:
        prune.random_unstructured(model.get_submodule(path), "weight", amount=0.3)
    yield
    for path in paths:
        prune.remove(model.get_submodule(path), "weight")


@contextlib.contextmanager
def weights_exchanged(model, paths, give):
    """Replace each parameter `weight` by what `give` makes of the module and twice that weight, for a while."""
    old = []
    for path in paths:
        module = model.get_submodule(path)
        old.append((module, dict(module._parameters)))
        weight = module.weight.detach() * 2
        del module.weight
        give(module, weight)
    yield
    for module, parameters in old:
        del module.weight
        module._parameters.clear()
        module._parameters.update(parameters)


@change()
def norm_weights_as_tensors(model):
    with weights_exchanged(model, norms(model), lambda module, weight: setattr(module, "weight", weight)):
        yield


@change()
def norm_weights_as_buffers(model):
    with weights_exchanged(model, norms(model), lambda module, weight: module.register_buffer("weight", weight)):
        yield


@change()
def linear_weights_as_tensors(model):
    with weights_exchanged(model, linears(model), lambda module, weight: setattr(module, "weight", weight)):
        yield


@change(orders=TAKES_OUT)
def identity_for_a_norm(model):
    """The first norm of each block that has one with a weight."""
    first = {path.rpartition(".")[0]: path for path in reversed(norms(model))}
    old = [(owner, path.rpartition(".")[2], model.get_submodule(path)) for owner, path in first.items()]
    for owner, child, _ in old:
        setattr(model.get_submodule(owner), child, nn.Identity())
    yield
    for owner, child, norm in old:
        setattr(model.get_submodule(owner), child, norm)


@change(orders=TAKES_OUT)
def norms_exchanged(model):
    """Each norm with a weight by a copy of its class with another weight."""
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
    """Of all norms, a thousand times larger."""
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
    """What a tool puts in a module's place: it has none of the attributes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs) * 1.25


@change("-t5", grad=True)  # T5 reads the weight of a linear
def linears_wrapped(model):
    old = {path: model.get_submodule(path) for path in linears(model)}
    for path, linear in old.items():
        put(model, path, Wrapped(linear))
    yield
    for path, linear in old.items():
        put(model, path, linear)


def changed(own):
    """A forward around another one, as a tool puts it on the instance."""

    @functools.wraps(own)
    def forward(*args, **kwargs):
        y = own(*args, **kwargs)
        return y * 1.25 if isinstance(y, torch.Tensor) else y

    return forward


@contextlib.contextmanager
def own_forwards(modules):
    """An attribute `forward` of each module, for a while."""
    modules = list(modules)
    for module in modules:
        module.forward = changed(module.forward)
    yield
    for module in modules:
        del module.forward


@change(leaves=True)
def norm_forwards_wrapped(model):
    with own_forwards(model.get_submodule(path) for path in norms(model)):
        yield


@change()
def linear_forwards_wrapped(model):
    with own_forwards(model.get_submodule(path) for path in linears(model)):
        yield


@change(kernels=None, leaves=True)
def all_forwards_wrapped(model):
    """Those that `patch` replaced, too: oxiwarp's forward is called, or the wrapped original."""
    with own_forwards(model.modules()):
        yield


@change(kernels=None)
def linear_class_forward(model):
    """Another forward for all linears of the process."""
    own = nn.Linear.forward
    with mock.patch.object(nn.Linear, "forward", lambda self, x: own(self, x) * 1.25):
        yield


@change(leaves=True)
def classes_of_a_tool(model):
    """A subclass for each module that inherits everything, as FSDP's."""
    old = [(module, type(module)) for module in model.modules()]
    for module, cls in old:
        module.__class__ = types.new_class(cls.__name__, (cls,), {}, lambda body, cls=cls: body.update(of_tool(cls)))
    yield


def of_tool(cls):
    return {"__module__": cls.__module__, "__qualname__": cls.__qualname__}


@change(leaves=True, known={"after-*": PATCHED_AGAIN, "within-*": PATCHED_AGAIN})
def norm_classes_with_a_forward(model):
    """A subclass for each norm whose forward calls that of its base."""
    for path in norms(model):
        norm = model.get_submodule(path)
        cls = type(norm)
        forward = lambda self, *args, cls=cls, **kwargs: cls.forward(self, *args, **kwargs) * 1.25  # noqa: E731
        norm.__class__ = type(cls)(cls.__name__, (cls,), {**of_tool(cls), "forward": forward})
    yield
