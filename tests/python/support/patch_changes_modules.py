"""Changes for test_patch_matrix.py that affect a whole model. Each change is a generator function.

Examples: deep-copy the model, load different weights, change the dtype, share the memory of the weights,
freeze some parameters.
"""

import copy
import functools
import itertools
import pickle

import test_decoder
import torch
from helpers import random
from patch_changes import change, linears, norms
from torch import nn


@change()
def deepcopy(model):
    yield copy.deepcopy(model)


# Of the decoders in `test_decoder.CALLS`, only Phi3 can be pickled. All other decoders have an object whose
# class is defined inside a function of transformers.
@change(*(f"-{name.lower()}" for name in test_decoder.CALLS if name != "Phi3"))
def pickled(model):
    yield pickle.loads(pickle.dumps(model))


@change()
def weights_assigned(model):
    """Replace the parameter objects with `load_state_dict(assign=True)`."""
    old = model.state_dict()
    other = {key: x + random(x.shape, x.dtype, "cpu", seed, 0.05) for seed, (key, x) in enumerate(old.items())}
    model.load_state_dict(other, assign=True)
    yield
    model.load_state_dict(old, assign=True)


@change()
def through_meta(model):
    """Move the model to the meta device and then to uninitialized memory, and copy the weights back.

    Afterwards, modules that shared a parameter have separate parameters.
    """

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
    """Convert the model to float64 and back. A torch option makes torch swap parameter objects instead of
    replacing their data."""
    own = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        nn.Module.double(model)
        nn.Module.float(model)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(own)
    yield


@change()
def shared_memory(model):
    yield model.share_memory()


def converted(x, dtype):
    """Return the arguments `x` of a model call with all floating-point tensors converted to `dtype`."""
    if isinstance(x, dict):
        return {key: converted(value, dtype) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(converted(value, dtype) for value in x)
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def in_dtype(model, dtype, wider=lambda model: ()):
    """Convert the model to `dtype`, and the modules that `wider` returns to float32.

    At the end, the model is converted to float32, but its weights stay rounded to `dtype`.
    """
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
    """Enable all dropouts.

    A patched model must call dropouts in the same order as the unpatched model. Otherwise the two models
    would draw different random numbers.
    """
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.p = 0.5
    yield model.train()
    for module in dropouts:
        module.p = 0.0
    model.eval()


def learn(model, wanted):
    """Train only the parameters whose names `wanted` accepts."""
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
    """Train only parameters outside of linear layers and norms: modulation tables, embeddings, convolutions."""
    known = {*linears(model), *norms(model)}
    learn(model, lambda name: name.rpartition(".")[0] not in known)
    yield


@change(grad=True)
def half_trained(model):
    """Train every second parameter."""
    chosen = {name for name, _ in list(model.named_parameters())[::2]}
    learn(model, chosen.__contains__)
    yield
