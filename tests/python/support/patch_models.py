"""The models of tests/python/patch/test_patch_matrix.py, by name. They are the small models of this folder."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import models
import swapped
import test_decoder
import torch
from image_models import sdxl, sdxl_input
from torch import nn


class Model(NamedTuple):
    """Functions that make a model and its arguments, and the kinds of this model, such as "diffusers".

    A change in test_patch_matrix.py lists the kinds of models that it applies to. The model's name is also a
    kind.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    kinds: frozenset[str]


def ids() -> dict[str, Any]:
    """Return the arguments of a decoder."""
    return {"input_ids": test_decoder.IDS.clone(), "use_cache": False}


def table() -> dict[str, Model]:
    """Return all models by the name that test ids use."""
    found = {}

    def add(name, make, inputs, *kinds):
        found[name] = Model(make, inputs, frozenset({name, *kinds}))

    add("net", models.net, lambda: {"x": models.net_input()})
    for name, (make, make_input) in swapped.MODELS.items():
        if name not in test_decoder.CALLS:
            add(name.replace(" ", "-"), make, make_input, *(["diffusers"] if name != "sd3 single" else []))
    add("sd15", functools.partial(sdxl, linear=False), sdxl_input, "diffusers")
    for name in test_decoder.CALLS:
        add(name.lower(), functools.partial(test_decoder.build, name), ids, "transformers", "decoder")
    add("t5", models.t5, lambda: {"input_ids": torch.arange(24).view(2, 12)}, "transformers")
    return found


MODELS = table()
