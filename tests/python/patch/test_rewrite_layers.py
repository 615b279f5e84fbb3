"""Tests of models whose layers return a sum that is not computed yet, so that one kernel computes the sum and the first
norm of the next layer."""

import copy
import pickle

import pytest
import torch
from helpers import random
from torch import nn
from torch.utils.checkpoint import checkpoint

import oxiwarp
from oxiwarp.patching.rewrite.recipe import opened_from, rewritten_from

COLUMNS = 16


class Layer(nn.Module):
    """A layer that starts with a norm and ends with a sum."""

    gradient_checkpointing = False

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(COLUMNS, eps=1e-6), nn.RMSNorm(COLUMNS, eps=1e-6)
        self.mix, self.feed = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)

    def forward(self, x, scale=None):
        residual = x
        x = self.mix(self.norm1(x))
        x = residual + x
        y = self.feed(self.norm2(x))
        x = x + y
        return x


Layer.__call__.__module__ = "transformers.modeling_layers"  # The loop must also accept such a `__call__`.


class Post(Layer):
    """A layer that reads its argument before the norm."""

    def forward(self, x, scale=None):
        y = self.norm1(self.mix(x))
        x = x + y
        residual = x
        x = self.feed(self.norm2(x))
        x = residual + x
        return x


class Early(Layer):
    """A layer that may return its argument."""

    def forward(self, x, scale=None):
        if scale is not None:
            return x
        residual = x
        y = self.norm1(x)
        x = residual + self.mix(y)
        y = self.norm2(x)
        x = x + self.feed(y)
        return x


class Other(Layer):
    """A layer whose second argument is a tensor."""

    def forward(self, x, other=None):
        residual = x
        x = self.mix(self.norm1(x) + other.relu())
        x = residual + x
        y = self.feed(self.norm2(x))
        x = x + y
        return x


class RoundingRMSNorm(nn.Module):
    """An RMSNorm that rounds before it multiplies by the weight, as Llama's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(COLUMNS))
        self.variance_epsilon = 1e-6

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)


class Rounded(Layer):
    """A layer with such norms."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RoundingRMSNorm(), RoundingRMSNorm()


class Model(nn.Module):
    """A model that runs its layers in a loop."""

    def __init__(self, kinds=(Layer, Layer, Layer)):
        super().__init__()
        self.layers = nn.ModuleList(kind() for kind in kinds)
        self.norm = nn.RMSNorm(COLUMNS, eps=1e-6)
        self.seen = None

    def forward(self, x, scales=None):
        for at, layer in enumerate(self.layers[:8]):
            if self.seen is not None:
                self.seen.append(x)
            x = layer(x, scale=None if scales is None else scales[at])
        x = self.norm(x)
        return x


class Twice(Model):
    """A model whose loop calls the layer twice, so the rule does not apply."""

    def forward(self, x, scales=None):
        for layer in self.layers:
            x = layer(x)
            x = layer(x)
        return self.norm(x)


class Branching(Model):
    """A model that reads the result of the last layer before the norm."""

    def forward(self, x, scales=None):
        for layer in self.layers:
            x = layer(x)
        y = x * 2
        return self.norm(x) + y


class Captured(Model):
    """A model with a nested function that reads the variable of the loop."""

    def forward(self, x, scales=None):
        read = lambda: x * 1  # noqa: E731
        for layer in self.layers:
            x = layer(x)
            y = read()
        return self.norm(x) + y


class Again(Model):
    """A model that passes the result of the last layer twice."""

    def forward(self, x, scales=None):
        for layer in self.layers:
            x = layer(x, other=x)
        return self.norm(x)


class Listed(Model):
    """A model whose loop hands the layer to another function."""

    def forward(self, x, scales=None):
        for layer in self.layers:
            x = layer(x)
            self.seen = id(layer)
        return self.norm(x)


def build(cls=Model, dtype=torch.float32, kinds=(Layer, Layer, Layer)):
    """Build a seeded model whose norm weights differ from 1."""
    torch.manual_seed(0)
    model = cls(kinds).eval().requires_grad_(False)
    for seed, (name, parameter) in enumerate(model.named_parameters()):
        if "norm" in name:
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.2))
    return model.to(dtype)


def both(cls=Model, dtype=torch.float32, kinds=(Layer, Layer, Layer)):
    """Return a model, a patched copy, and a patched copy whose loop is not rewritten."""
    stock = build(cls, dtype, kinds)
    made, apart = copy.deepcopy(stock), copy.deepcopy(stock)
    oxiwarp.patch(made, cpu_kernels=True)
    oxiwarp.patch(apart, cpu_kernels=True, skip=["Model", cls.__name__])
    return stock, made, apart


def sums(model, *args, **kwargs):
    """Return the number of calls of `add_rms_norm` in one call of a patched model."""
    report = oxiwarp.patch(model, cpu_kernels=True, skip="none")
    model(*args, **kwargs)
    return sum(ran.kernels for ran in report.ran() if ran.op.startswith("add_rms_norm"))


def rows(dtype=torch.float32):
    """Return the input of a model."""
    return random((2, 5, COLUMNS), dtype, "cpu", seed=3)


@pytest.mark.parametrize("kind", [Layer, Rounded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_joined(dtype, kind):
    """One kernel computes the last sum of a layer and the next norm. No bit of the result changes."""
    stock, made, apart = both(dtype=dtype, kinds=(kind, kind, kind))
    y = made(rows(dtype))
    assert torch.equal(y, apart(rows(dtype)))
    torch.testing.assert_close(y, stock(rows(dtype)), rtol=0, atol=1e-5 if dtype == torch.float32 else 0.1)
    assert sums(made, rows(dtype)) == 6
    assert oxiwarp.unpatch(made) and torch.equal(made(rows(dtype)), stock(rows(dtype)))


@pytest.mark.parametrize(
    ("cls", "kinds", "count"),
    [
        (Model, (Post, Post, Post), 4),
        (Model, (Layer, Post, Layer), 5),
        (Model, (Layer, nn.Identity, Layer), 3),
        (Model, (Early, Early), 4),
        (Twice, (Layer, Layer), 4),
        (Branching, (Layer, Layer), 2),
        (Captured, (Layer, Layer), 2),
        (Listed, (Layer, Layer), 2),
        (Again, (Other, Other), 2),
    ],
)
def test_kinds(cls, kinds, count):
    """A sum is computed early if the next layer or the loop reads it."""
    if nn.Identity in kinds:
        kinds = tuple(Plain if kind is nn.Identity else kind for kind in kinds)
    stock, made, apart = both(cls, kinds=kinds)
    assert torch.equal(made(rows()), apart(rows()))
    torch.testing.assert_close(made(rows()), stock(rows()), rtol=0, atol=1e-5)
    assert sums(made, rows()) == count


class Plain(nn.Module):
    """A layer that `patch` does not change."""

    def forward(self, x, scale=None):
        assert type(x) is torch.Tensor
        return x * 2


def test_returned_argument():
    """A layer may return the placeholder that it got."""
    stock, made, _ = both(kinds=(Early, Early, Early))
    scales = [None, torch.ones(1), None]
    torch.testing.assert_close(made(rows(), scales), stock(rows(), scales), rtol=0, atol=1e-5)
    assert sums(made, rows(), scales) == 4


def test_read_in_the_loop():
    """Code in the loop that reads the result of a layer gets a tensor. If it does not run, nothing changes."""
    stock, made, _ = both()
    for model in (stock, made):
        model.seen = []
        model(rows())
    assert all(type(x) is torch.Tensor for x in made.seen) and len(made.seen) == 3
    for own, ours in zip(stock.seen, made.seen, strict=True):
        torch.testing.assert_close(ours, own, rtol=0, atol=1e-5)
    made.seen = None
    assert sums(made, rows()) == 6


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooks(kind, at):
    """A hook on a layer gets the tensors that it gets in the unpatched model."""
    stock, made, _ = both()
    seen = []
    for model in (stock, made):
        each = []
        seen.append(each)
        getattr(model.layers[at], f"register_{kind}")(lambda module, *args, each=each: each.append(tensors(args)))
        x = rows().requires_grad_()
        with torch.enable_grad():
            model(x).square().sum().backward()
    for own, ours in zip(*seen, strict=True):
        assert len(own) == len(ours) > 0
        for one, other in zip(own, ours, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def tensors(args):
    """Return the tensors in nested tuples."""
    return [x for one in args for x in (tensors(one) if isinstance(one, tuple) else [one])]


def test_global_hooks():
    """With a hook for all modules, the layers return tensors, and the norms run."""
    _, made, _ = both()
    seen, norms = [], []

    def hook(module, args, y):
        seen.extend((type(args[0]), type(y)))
        norms.append(isinstance(module, nn.RMSNorm))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        made(rows())
    finally:
        handle.remove()
    assert set(seen) == {torch.Tensor} and sum(norms) == 7


def test_gradients():
    """The gradients of all parameters equal those of the unpatched model, also with gradient checkpointing."""
    stock, made, _ = both()
    found = []
    for model, saves in ((stock, False), (made, False), (made, True)):
        model.requires_grad_(True).train().zero_grad()
        for layer in model.layers:
            layer.gradient_checkpointing = saves
            if saves:
                own = type(layer).forward
                layer.forward = lambda x, scale=None, layer=layer, own=own: checkpoint(
                    own, layer, x, scale, use_reentrant=False
                )
        with torch.enable_grad():
            model(rows()).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for gradients in found[1:]:
        for own, ours in zip(found[0], gradients, strict=True):
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-4)


def test_checkpointed_layers():
    """A layer that checkpoints its call gets a tensor."""
    _, made, _ = both()
    made.train()
    for layer in made.layers:
        layer.gradient_checkpointing = True
    assert sums(made, rows()) == 3
    made.eval()
    assert sums(made, rows()) == 6


def test_changed_layers():
    """A layer with its own `forward`, a compiled layer, and a layer of a derived class get tensors."""
    stock, made, _ = both()
    seen = []
    first = made.layers[0]
    first.forward = lambda *args, **kwargs: seen.append(type(args[0])) or type(first).forward(first, *args, **kwargs)
    second = made.layers[1]
    second.compile(backend="eager")
    third = made.layers[2]
    third.__class__ = type("Derived", (type(third),), {"__module__": __name__})
    torch.testing.assert_close(made(rows()), stock(rows()), rtol=0, atol=1e-5)
    assert seen == [torch.Tensor]


def test_compile():
    """torch.compile captures the model in one graph, and the result is the same."""
    _, made, _ = both()
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(rows()), made(rows()), rtol=0, atol=1e-5)


def test_pickle():
    """A copied and a pickled model still join the sums."""
    _, made, _ = both()
    for model in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(model(rows()), made(rows())) and sums(model, rows()) == 6


def test_sources():
    """The rewritten method of a layer that others call does not change. A second version accepts placeholders."""
    assert "later_sum" not in rewritten_from(Layer.forward).source
    assert "later_sum" in opened_from(Layer.forward).source
    assert "_oxiwarp_opened(layer, x)" in rewritten_from(Model.forward).source
    for cls in (Twice, Captured, Listed):
        source = rewritten_from(cls.forward)
        assert isinstance(source, str) or "opened" not in source.source
