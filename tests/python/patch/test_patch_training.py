"""Tests of training patched models: gradients, activation checkpointing, adapters, autocast and second derivatives."""

import functools

import pytest
import torch
from helpers import random
from models import NORMS, ltx, ltx_input, net, net_input
from torch import nn
from torch.utils.checkpoint import checkpoint

import oxiwarp
from oxiwarp.patching.fusions import FUSIONS
from oxiwarp.patching.norms import forward as norms

# Tolerance for float32 sums whose terms are added in a different order. It is meant for values around 1 and
# for gradients, which may be smaller.
CLOSE = dict(rtol=1e-4, atol=1e-6)


@pytest.fixture
def ran(monkeypatch):
    """Record the names of fusions (replacement methods) that run, and "norm" for each norm call with gradients."""
    seen = []
    for name, fusion in FUSIONS.items():
        if not fusion.kernels:
            continue
        run = fusion.run
        monkeypatch.setitem(
            fusion.__dict__, "run", lambda *a, run=run, name=name, **k: (seen.append(name), run(*a, **k))[1]
        )
    rms_norm = norms.rms_norm
    monkeypatch.setattr(norms, "rms_norm", lambda *a, **k: (seen.append("norm"), rms_norm(*a, **k))[1])
    return seen


def learning(device="cpu"):
    """Build a small LTX-Video transformer with trainable parameters."""
    return ltx(device=device).requires_grad_()


def gradients(model, inputs):
    """Return the gradients of the input and of every parameter, by name."""
    x = inputs["hidden_states"].clone().requires_grad_()
    with torch.enable_grad():
        model(**{**inputs, "hidden_states": x})[0].square().mean().backward()
    made = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return {"x": x.grad, **made}


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (gradient is None) == (got[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(got[name], gradient, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(dtype, device, ran):
    """Each patched norm class gives the gradients of the unpatched norm, with and without a gradient for the
    norm's weight."""
    stock, model, x = net(dtype, device), net(dtype, device), random((3, 7, 64), dtype, device)
    oxiwarp.patch(model, cpu_kernels=True)
    for learned in (True, False):
        for part in (stock, model):
            part.requires_grad_(learned)
        for name in NORMS:
            results = []
            for part in (stock, model):
                norm, leaf = getattr(part, name), x.clone().requires_grad_()
                with torch.enable_grad():
                    y = norm(leaf)
                    y.backward(random(y.shape, dtype, device, seed=3))
                results.append([leaf.grad, *(parameter.grad for parameter in norm.parameters())])
            for own, ours in zip(*results, strict=True):
                if own is not None or learned:
                    tolerance = CLOSE if dtype == torch.float32 else dict(rtol=0.02, atol=0.02)
                    torch.testing.assert_close(ours, own, **tolerance)
            stock.zero_grad(), model.zero_grad()
    assert ran == ["norm"] * 8


def test_gradients(device, ran):
    """With gradients enabled, patched blocks, processors and feed-forwards run their kernels.

    Every gradient matches the gradient of the unpatched model.
    """
    stock, model = learning(device), learning(device)
    oxiwarp.patch(model, cpu_kernels=True)
    assert_close(gradients(model, ltx_input(device=device)), gradients(stock, ltx_input(device=device)))
    assert {"ltx.block", "ltx.attention", "feed_forward.gelu"} <= set(ran)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant, device, ran):
    """A patched model gives the same gradients with and without activation checkpointing.

    With checkpointing, the backward pass runs the kernels of the blocks again.
    """
    model = learning(device)
    oxiwarp.patch(model, cpu_kernels=True)
    expected = gradients(model, ltx_input(device=device))
    blocks = ran.count("ltx.block")
    model.enable_gradient_checkpointing(functools.partial(checkpoint, use_reentrant=use_reentrant))
    model.train()
    assert_close(gradients(model, ltx_input(device=device)), expected)
    assert ran.count("ltx.block") == 3 * blocks


class LoRA(nn.Module):
    """A LoRA adapter that keeps the linear that it replaces as a submodule.

    The adapters of other libraries are built in the same way.
    """

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Quantised(nn.Linear):
    """A linear with an integer weight, as in quantization libraries. The weight is multiplied by a step
    size before use."""

    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None)
        self.load_state_dict(base.state_dict())
        self.step = self.weight.abs().max() / 7
        self.weight.requires_grad_(False).copy_((self.weight / self.step).round())

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.step, self.bias)


def replace_linears(model, by):
    """Replace every linear in the model's blocks by `by(linear)`, and return the model."""
    torch.manual_seed(1)
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name.startswith("transformer_blocks"):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, by(module))
    return model


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("order", ["linears first", "patch first"])
@pytest.mark.parametrize("linear", [LoRA, Quantised])
def test_other_linears(linear, order, mode, ran):
    """If adapters or quantized linears replace every linear, a patched model calls and trains these modules.

    The modules may be inserted before or after `patch`.
    """
    stock, model = replace_linears(ltx(), linear), ltx()
    steps = [
        lambda model: replace_linears(model, linear),
        lambda model: oxiwarp.patch(model, mode=mode, cpu_kernels=True),
    ]
    for step in steps if order == "linears first" else reversed(steps):
        step(model)
    assert_close(gradients(model, ltx_input()), gradients(stock, ltx_input()))
    assert ran.count("ltx.block") == 2 and ran.count("feed_forward.gelu") == 2


@pytest.mark.parametrize("order", ["adapters first", "patch first"])
def test_peft(order, ran):
    """On a patched model, adapters of diffusers (peft) can be added, disabled, enabled, fused and unfused."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v", "to_out.0", "proj"])

    def add(model):
        torch.manual_seed(2)
        model.add_adapter(config)

    stock, model = ltx(), ltx()
    add(stock)
    steps = [add, lambda model: oxiwarp.patch(model, cpu_kernels=True)]
    for step in steps if order == "adapters first" else reversed(steps):
        step(model)

    def same():
        ours, own = model(**ltx_input())[0], stock(**ltx_input())[0]
        torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-5)
        return own

    made = [same()]
    for change in ("disable_adapters", "enable_adapters", "fuse_lora", "unfuse_lora"):
        getattr(model, change)(), getattr(stock, change)()
        made.append(same())
    assert not torch.equal(made[0], made[1])
    assert_close(gradients(model, ltx_input()), gradients(stock, ltx_input()))
    assert "ltx.block" in ran and "feed_forward.gelu" in ran


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device, ran):
    """Under autocast, patched blocks and norms run their original code.

    All gradients equal the unpatched model's gradients bit for bit.
    """
    stock, model = learning(device), learning(device)
    oxiwarp.patch(model, cpu_kernels=True)
    with torch.autocast(device.type, dtype):
        got, expected = gradients(model, ltx_input(device=device)), gradients(stock, ltx_input(device=device))
    assert not ran
    for name, gradient in expected.items():
        assert gradient is got[name] is None or torch.equal(gradient, got[name]), name


def test_inference_mode(ran):
    """In inference mode, patched blocks run their kernels and return the same result as outside of inference
    mode.

    The blocks must work although inference tensors have no version counters.
    """
    model = learning()
    oxiwarp.patch(model, cpu_kernels=True)
    expected = model(**ltx_input())[0]
    with torch.inference_mode():
        assert torch.equal(model(**ltx_input())[0], expected)
    model.requires_grad_(False)
    with torch.inference_mode():
        assert torch.equal(model(**ltx_input())[0], expected)
    assert ran.count("ltx.block") == 6


def test_second_derivatives():
    """Computing a second derivative of a patched model raises RuntimeError.

    After `unpatch`, the second derivative works.
    """
    model, x = net().requires_grad_(), net_input().requires_grad_()
    oxiwarp.patch(model, cpu_kernels=True)

    def penalty():
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    with torch.enable_grad():
        with pytest.raises(RuntimeError, match="differentiate twice"):
            penalty()
        oxiwarp.unpatch(model)
        penalty()
    assert (model.before.weight.grad != 0).any()


def test_steps_of_an_optimizer():
    """In three optimizer steps, the losses of a patched model match the losses of the unpatched model."""
    losses = []
    for patched in (False, True):
        model = learning()
        if patched:
            oxiwarp.patch(model, cpu_kernels=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        made = []
        for _ in range(3):
            with torch.enable_grad():
                loss = model(**ltx_input())[0].square().mean()
                loss.backward()
            optimizer.step(), optimizer.zero_grad()
            made.append(loss.item())
        losses.append(made)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[0][2] < losses[0][0]
