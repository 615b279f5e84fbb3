"""Tests of patched blocks in which the user replaces a submodule that the patched `forward` normally does not
call."""

import copy
import pickle

import pytest
import torch
from fused_checks import Operators
from helpers import random
from models import ltx, ltx_input
from swapped import MODELS, Adapted, Doubled, arguments, close, fused_parts, results, swap
from torch import nn
from video_models import mochi, mochi_input

import oxiwarp
from oxiwarp.patching.class_swap import recipe_of
from oxiwarp.patching.fusions import FUSIONS, FusedRecipe


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi enables float32 autocast
@pytest.mark.parametrize("name", MODELS)
def test_wrapped_after_patch(name):
    """If the user wraps a submodule that the patched method normally does not call, the original method runs.

    If the patched method ran, the wrapper would have no effect. After the wrapper is removed, the patched
    method runs again.
    """
    make, make_input = MODELS[name]
    stock, ours = make(), make()
    oxiwarp.patch(ours, cpu_kernels=True)
    parts = fused_parts(ours)
    given = arguments(stock, make_input(), set(parts.values()))
    for (fusion, path), owner in parts.items():
        pair = [model.get_submodule(owner) for model in (stock, ours)]
        plain = results(pair[0], given[owner])
        old = [swap(module, path, Doubled) for module in pair]
        own, got = (results(module, given[owner]) for module in pair)
        assert not all(map(torch.equal, own, plain)), f"{fusion}: {path} of {owner} does nothing"
        try:
            close(got, own)
        except AssertionError as error:
            raise AssertionError(f"{fusion}: {path} of {owner}: {error}") from None
        for module, inner in zip(pair, old, strict=True):
            swap(module, path, lambda _, inner=inner: inner)
        close(results(pair[1], given[owner]), plain)


def test_every_skip_is_tried():
    """A fusion (replacement method) lists in `Fusion.skips` the submodules that it does not call. The test
    `test_wrapped_after_patch` covers all of them.
    """
    tried = set()
    for make, _ in MODELS.values():
        model = make()
        oxiwarp.patch(model)
        tried |= fused_parts(model).keys()
    assert tried == {(name, path) for name, fusion in FUSIONS.items() for path in fusion.skips}


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("name", ["ltx", "mochi", "cogvideox", "pixart", "flux"])
def test_wrapped_before_patch(name):
    """`patch` does not use a fusion (replacement method) for a block if a submodule that the fusion would not
    call was wrapped.

    The kernels of the fusion would do the work of this submodule, and the wrapper would have no effect.
    """
    make, make_input = MODELS[name]
    stock, ours = make(), make()
    oxiwarp.patch(stock)
    parts = {path: owner for (fusion, path), owner in fused_parts(stock).items() if FUSIONS[fusion].method == "forward"}
    oxiwarp.unpatch(stock)
    given = arguments(stock, make_input(), set(parts.values()))
    for path, owner in parts.items():
        pair = [model.get_submodule(owner) for model in (stock, ours)]
        old = [swap(module, path, Doubled) for module in pair]
        oxiwarp.patch(pair[1], cpu_kernels=True, allow_empty=True)
        assert not isinstance(recipe_of(pair[1]), FusedRecipe), path
        close(*(results(module, given[owner]) for module in pair[::-1]))
        oxiwarp.unpatch(pair[1])
        for module, inner in zip(pair, old, strict=True):
            swap(module, path, lambda _, inner=inner: inner)


def refiner():
    """Return a block whose second norm has weight and bias, and the arguments of the block."""
    module = pytest.importorskip("diffusers.models.transformers.transformer_hunyuan_video")
    torch.manual_seed(0)
    block = module.HunyuanVideoIndividualTokenRefinerBlock(2, 16).eval().requires_grad_(False)
    return block, ((random((2, 5, 32), torch.float32, "cpu"), random((2, 32), torch.float32, "cpu", seed=1)), {})


def ran(module, given):
    """Return the results, and True if the replacement method computed them."""
    with Operators() as operators:
        made = results(module, given)
    return made, "gated_residual_ada_norm" in operators.calls


def another_norm(affine=True):
    """Return a LayerNorm with an unusual eps. If `affine` is true, its weights and biases are random."""
    norm = nn.LayerNorm(32, eps=0.1, elementwise_affine=affine).requires_grad_(False)
    for seed, parameter in enumerate(norm.parameters()):
        parameter.copy_(random(parameter.shape, torch.float32, "cpu", seed=seed))
    return norm


def copied(module, how):
    return copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("how", ["the module", "deepcopy", "pickle"])
def test_what_is_swapped(how):
    """If a new norm of the same class is assigned to a patched block, the block uses the weights and eps of
    the new norm.

    If the new norm is a wrapper, has no parameters or is of a derived class, the block calls the new norm as
    a module. Copies of the block follow the same rules.
    """
    stock, given = refiner()
    ours = copy.deepcopy(stock)
    oxiwarp.patch(ours, cpu_kernels=True)
    ours = ours if how == "the module" else copied(ours, how)

    def of_a_tool(norm):
        norm = copy.deepcopy(norm)
        norm.__class__ = type("Other", (type(norm),), {"forward": lambda self, x: nn.LayerNorm.forward(self, x) * 2})
        return norm

    changes = (
        (lambda _: another_norm(), True),
        (Adapted, False),
        (lambda _: another_norm(affine=False), False),
        (of_a_tool, False),
    )
    for change, fused in changes:
        old = [swap(module, "norm2", change) for module in (stock, ours)]
        got, by_us = ran(ours, given)
        close(got, results(stock, given))
        assert by_us is fused
        if fused:
            oxiwarp.patch(ours.norm2, cpu_kernels=True)
            close(ran(ours, given)[0], got)
        for module, inner in zip((stock, ours), old, strict=True):
            module.norm2 = inner
        assert ran(ours, given)[1]
    ours.norm2 = None
    with pytest.raises(TypeError):
        results(ours, given)


def test_weights_where_there_were_none():
    """If a norm without a weight gets a weight after `patch`, the patched block applies this weight."""
    stock, ours = ltx(), ltx()
    oxiwarp.patch(ours, cpu_kernels=True)
    for model in (stock, ours):
        weight = random((32,), torch.float32, "cpu", seed=5)
        model.transformer_blocks[0].norm1.weight = nn.Parameter(weight, requires_grad=False)
    close(results(ours, ((), ltx_input())), results(stock, ((), ltx_input())))


def test_compiled():
    """Compiled patched blocks share one graph. If a submodule of a block is replaced, the block is recompiled."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    stock, given = refiner()
    blocks = [copy.deepcopy(stock) for _ in range(6)]
    oxiwarp.patch(nn.ModuleList(blocks), cpu_kernels=True)
    for block in blocks:
        block.compile(backend=backend, fullgraph=True)
        close(results(block, given), results(stock, given))
    assert len(graphs) == 1
    for module in (stock, blocks[0]):
        swap(module, "norm2", Adapted)
    close(results(blocks[0], given), results(stock, given))
    assert len(graphs) == 2
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_eps_changed_after_patch():
    """If the eps of one norm changes after `patch`, a patched Mochi block matches the unpatched block.

    The kernel of a Mochi block takes one eps for several norms, so the block must not use this kernel.
    """
    stock, ours = mochi(), mochi()
    oxiwarp.patch(ours, cpu_kernels=True)
    for model in (stock, ours):
        model.transformer_blocks[0].norm3.norm.eps = 1.0
    close(results(ours, ((), mochi_input())), results(stock, ((), mochi_input())))


@pytest.mark.filterwarnings("ignore:Unsupported layer type")  # peft warns for every norm
@pytest.mark.parametrize("name", ["sdxl", "wan", "cogvideox", "hunyuan_video", "ltx"])
def test_ln_tuning(name):
    """In a patched model, peft's `LNTuningConfig` takes effect on all norms that have parameters."""
    peft = pytest.importorskip("peft")
    make, make_input = MODELS[name]
    outputs = []
    for patched in (False, True):
        model, inputs = make(), make_input()
        if patched:
            oxiwarp.patch(model, cpu_kernels=True)
        names = [path for path, module in model.named_modules() if "norm" in path.rpartition(".")[2]]
        names = [path for path in names if getattr(model.get_submodule(path), "weight", None) is not None]
        tuned = peft.get_peft_model(model, peft.LNTuningConfig(target_modules=names))
        for at, (path, parameter) in enumerate(tuned.named_parameters()):
            if "ln_tuning" in path:
                parameter.requires_grad_(False).add_(random(parameter.shape, torch.float32, "cpu", seed=at, scale=0.5))
        outputs.append(results(tuned, ((), inputs)))
    close(*outputs[::-1])
