"""Tests of patched models whose weights are offloaded per module, component or group, by accelerate or
diffusers."""

import pytest
import torch
from models import ltx, ltx_input, t5

import oxiwarp


@pytest.mark.parametrize("order", ["patch first", "hook first"])
@pytest.mark.parametrize("make", [ltx, t5])
def test_accelerate_offload(make, order):
    """accelerate's CPU offload can be applied before and after `patch`, and its hooks can be removed.

    Between calls, the offloaded weights are on the meta device. A norm with an offload hook is called as a module,
    whereas the kernel of its block computes a norm without a hook. The module may add the elements of a row in a
    different order than this kernel.
    """
    accelerate = pytest.importorskip("accelerate")

    def same(y, expected):
        return torch.allclose(y, expected, rtol=0, atol=4e-6) if make is ltx else torch.equal(y, expected)

    def forward(model):
        if make is ltx:
            return model(**ltx_input())[0]
        return model(input_ids=torch.arange(24).view(2, 12)).last_hidden_state

    reference = make()
    stock = forward(reference)
    full = oxiwarp.patch(reference, cpu_kernels=True)
    expected = forward(reference)

    model = make()
    steps = [lambda: oxiwarp.patch(model, cpu_kernels=True), lambda: accelerate.cpu_offload(model, "cpu")]
    for step in steps if order == "patch first" else reversed(steps):
        step()
    assert any(parameter.is_meta for parameter in model.parameters())
    assert same(forward(model), expected)
    oxiwarp.unpatch(model)
    assert torch.equal(forward(model), stock), "unpatched under the hooks"
    assert oxiwarp.patch(model, cpu_kernels=True).rows == full.rows
    assert same(forward(model), expected), "patched again under the hooks"
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert torch.equal(forward(model), expected), "hooks removed"
    oxiwarp.unpatch(model)
    assert torch.equal(forward(model), stock), "hooks removed, unpatched"


def test_model_cpu_offload(cuda):
    """diffusers' model offloading, which moves a whole model between CPU and GPU, works before and after `patch`."""
    accelerate = pytest.importorskip("accelerate")
    outputs = []
    for order in (0, 1):
        model = ltx()
        if order == 0:
            oxiwarp.patch(model)
        model, hook = accelerate.cpu_offload_with_hook(model, cuda)
        if order == 1:
            oxiwarp.patch(model)
        outputs.append(model(**ltx_input(device=cuda))[0])
        hook.offload()
    reference = ltx(device=cuda)
    oxiwarp.patch(reference)
    for output in outputs:
        assert torch.equal(output, reference(**ltx_input(device=cuda))[0])


def forward(model, device="cpu"):
    return model(**ltx_input(device=device))[0]


@pytest.mark.parametrize("offload_type", ["block_level", "leaf_level"])
@pytest.mark.parametrize("order", ["patch first", "hooks first"])
def test_group_offload(order, offload_type, device):
    """`patch` and `unpatch` work if diffusers' group offloading has set a `forward` on each module instance."""
    hooks = pytest.importorskip("diffusers.hooks")
    reference = ltx(device=device)
    stock = forward(reference, device)
    full = oxiwarp.patch(reference, cpu_kernels=True)
    expected = forward(reference, device)
    model = ltx()
    if order == "patch first":
        oxiwarp.patch(model, cpu_kernels=True)
    groups = {"num_blocks_per_group": 1} if offload_type == "block_level" else {}
    hooks.apply_group_offloading(
        model, onload_device=device, offload_device=torch.device("cpu"), offload_type=offload_type, **groups
    )
    if order == "hooks first":
        report = oxiwarp.patch(model, cpu_kernels=True)
        assert (report.replaced, report.left) == (full.replaced, 0), str(report)
    assert torch.allclose(forward(model, device), expected, rtol=0, atol=4e-6)
    assert oxiwarp.unpatch(model) == full.replaced
    assert torch.equal(forward(model, device), stock), "unpatched under the hooks"


def test_group_offload_counts_on_the_kernels(monkeypatch):
    """If diffusers' block-level group offloading has installed hooks, the patched blocks still run their
    kernels."""
    hooks = pytest.importorskip("diffusers.hooks")
    from oxiwarp.patching.fusions import FUSIONS

    model, seen = ltx(), []
    run = FUSIONS["ltx.block"].run
    monkeypatch.setitem(FUSIONS["ltx.block"].__dict__, "run", lambda *a, **k: (seen.append(1), run(*a, **k))[1])
    cpu = torch.device("cpu")
    hooks.apply_group_offloading(
        model, onload_device=cpu, offload_device=cpu, offload_type="block_level", num_blocks_per_group=1
    )
    oxiwarp.patch(model, cpu_kernels=True)
    forward(model)
    assert len(seen) == 2


@pytest.mark.parametrize("order", ["patch first", "cache first"])
def test_first_block_cache(order):
    """diffusers' first-block cache works on a patched model.

    The cache finds blocks by their class. `patch` gives the blocks a new class, so the cache must accept this
    class.
    """
    hooks = pytest.importorskip("diffusers.hooks")
    model, inputs = ltx(), ltx_input()
    stock = model(**inputs)[0]
    steps = [
        lambda: oxiwarp.patch(model, cpu_kernels=True),
        lambda: hooks.apply_first_block_cache(model, hooks.FirstBlockCacheConfig(threshold=0.1)),
    ]
    for step in steps if order == "patch first" else reversed(steps):
        step()
    with model.cache_context("cond"):
        for _ in range(2):
            assert torch.allclose(model(**inputs)[0], stock, rtol=0, atol=4e-6)
