"""Tests of patching a model module by module, several times, or temporarily.

The results match the unpatched model, and `unpatch` restores the state from before `patch`.
"""

import gc
import weakref

import pytest
import torch
from patch_matrix import choose, leaves, same
from patch_models import MODELS
from patch_state import state
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import is_replaced

MOCHI = "ignore:In CPU autocast"  # Mochi enables float32 autocast


def part_of(model):
    """Return a submodule that contains some of the objects that `patch` replaces."""
    found = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return found[0][0] if found else model.get_submodule(next(name for name, _ in model.named_children()))


def patch(x, **options):
    return oxiwarp.patch(x, cpu_kernels=True, allow_empty=True, **options)


def in_another_mode(model):
    yield patch(model, mode="fast")
    yield patch(model)


def part_first(model):
    yield patch(part_of(model), mode="fast")
    yield patch(model)


def part_unpatched(model):
    yield patch(model)
    oxiwarp.unpatch(part_of(model))
    assert not any(map(is_replaced, part_of(model).modules()))
    yield


def norms_first(model):
    yield patch(model, only="*Norm*")
    yield patch(model, mode="fast")


def norms_in_another_mode(model):
    yield patch(model)
    yield patch(model, only="*Norm*", mode="fast")


def without_norms(model):
    yield patch(model, skip="*Norm*")
    yield patch(model, skip=["*Attn*", "*Attention*"], mode="fast")


def for_a_while(model):
    """Nest two `with oxiwarp.patched(model)` blocks. The end of each `with` block restores the state that the
    model had at the start of this block."""
    stock = state(model)
    with oxiwarp.patched(part_of(model), cpu_kernels=True, allow_empty=True, mode="fast"):
        before = state(model)
        yield
        with oxiwarp.patched(model, cpu_kernels=True):
            yield
        assert state(model) == before
        yield
    assert state(model) == stock


def within_inference_mode(model):
    with torch.inference_mode():
        patch(model)
    yield


WAYS = {
    function.__name__.replace("_", "-"): function
    for function in (
        in_another_mode,
        part_first,
        part_unpatched,
        norms_first,
        norms_in_another_mode,
        without_norms,
        for_a_while,
        within_inference_mode,
    )
}


def pytest_generate_tests(metafunc):
    if "way" in metafunc.fixturenames:
        everything = metafunc.config.getoption("matrix") == "all"
        cells = [(way, name) for way, name in choose(dict.fromkeys(WAYS, MODELS), 3, everything)]
        metafunc.parametrize(("way", "column"), cells, ids=[f"{way}-{name}" for way, name in cells])


@pytest.mark.filterwarnings(MOCHI)
def test_way(way, column):
    make, inputs, _ = MODELS[column]
    model = make()
    stock, own = state(model), leaves(model(**inputs()))
    called = state(model)
    for _ in WAYS[way](model):
        same(leaves(model(**inputs())), own, bits=False)
    oxiwarp.unpatch(model)
    assert state(model) in (stock, called)
    same(leaves(model(**inputs())), own, bits=True)
    assert oxiwarp.unpatch(model) == 0


@pytest.mark.filterwarnings(MOCHI)
def test_models_are_freed():
    """A model that is patched, called, unpatched and patched again is freed with its parameters after deletion."""
    alive = {}
    for name, (make, inputs, _) in MODELS.items():
        model = make()
        for step in (patch, oxiwarp.unpatch, patch):
            step(model)
            model(**inputs())
        parts = [*model.named_modules(), *model.named_parameters()]
        alive[name] = [(path, weakref.ref(part)) for path, part in parts]
        del model, parts
    gc.collect()
    kept = [f"{name}: {path}" for name, parts in alive.items() for path, part in parts if part() is not None]
    # diffusers keeps `pos_embed` modules alive. It caches the results of one of their methods, and uses the
    # module as a key of the cache.
    kept = [path for path in kept if "pos_embed" not in path]
    assert not kept
