"""Tests of methods whose source code `patch` reads and rewrites, so that kernels replace sequences of
operations."""

import copy
import functools
import inspect
import pickle
import traceback
from collections import Counter

import pytest
import random_methods
import research_models
import torch
from both_ways import first, rewrite_all
from research_models import Adaptive, GatedMLP, PreNorm, Tabled
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import recipe_of, replace
from oxiwarp.patching.fusions.core.source import fingerprint
from oxiwarp.patching.rewrite import calls
from oxiwarp.patching.rewrite.calls import Calls
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe, found_in
from oxiwarp.patching.sites import sites_of

PROGRAMS = 60
"""Number of random methods per test."""
BLOCKS = {
    Tabled: {"ada_norm": 2, "gated_residual_ada_norm": 2, "gated_residual": 2, "silu_and_mul": 2},
    Adaptive: {"ada_norm": 2, "gated_residual_ada_norm": 2, "gated_residual": 2, "silu_and_mul": 2},
    PreNorm: {"add_rms_norm": 2, "gated_residual": 2, "silu_and_mul": 2},
}
"""Maps a block class to the kernels that a model with two such blocks runs."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_random_methods(dtype, tmp_path):
    """After `patch` has rewritten random methods without norms to call kernels, the methods return the same
    bits as before."""
    methods = {f"Random{at}": random_methods.Maker(1000 + at, True, False).method() for at in range(PROGRAMS)}
    module, kernels = random_methods.load(methods, tmp_path), 0
    for name, statements in methods.items():
        cls = vars(module)[name]
        if found_in(cls.forward) == ():
            continue
        own, new = (cls(False, dtype) for _ in range(2))
        replace(new, RewrittenRecipe("forward", "exact", True))
        with torch.no_grad():
            expected, made = (random_methods.call(part, True, dtype)[0] for part in (own, new))
        if isinstance(expected, Exception):
            assert type(made) is type(expected), random_methods.text(statements)
            continue
        for one, other in zip(made, expected, strict=True):
            if not isinstance(other, torch.Tensor):
                assert one == other
                continue
            assert one.dtype == other.dtype, random_methods.text(statements)
            assert torch.equal(one.nan_to_num(), other.nan_to_num()), random_methods.text(statements)
        kernels += sum(site.outcomes["kernel"] for site in sites_of(type(new)))
    assert kernels > PROGRAMS // 2


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_research_models(block, dtype, device):
    """`patch` also rewrites classes that belong to no library, if kernels can replace sequences of their
    operations.

    The kernels give the results of the original code within rounding errors.
    """
    model, inputs = research_models.build(block, dtype)
    model, inputs = model.to(device), tuple(x.to(device) for x in inputs)
    with torch.no_grad():
        stock = model(*inputs)
        report = oxiwarp.patch(model, cpu_kernels=True)
        patched = model(*inputs)
        ran = report.ran()
        kernels = Counter()
        for row in ran:
            if row.line:
                kernels[row.op.partition(", ")[0]] += row.kernels
        assert kernels == BLOCKS[block] and ran.fallbacks == 0, str(ran)
        tolerance = 2e-5 if dtype == torch.float32 else 0.06
        torch.testing.assert_close(patched, stock, rtol=tolerance, atol=tolerance)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(*inputs), patched)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(*inputs), patched)
        oxiwarp.unpatch(model)
        assert torch.equal(model(*inputs), stock)


@pytest.mark.parametrize("block", BLOCKS)
def test_gradients(block):
    model, inputs = research_models.build(block, torch.float32)
    results = []
    for patch in (False, True):
        if patch:
            oxiwarp.patch(model, cpu_kernels=True)
        model.zero_grad()
        model.requires_grad_()
        with torch.enable_grad():
            model(*inputs).square().mean().backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    for own, new in zip(*results, strict=True):
        torch.testing.assert_close(new, own, rtol=1e-4, atol=1e-5)


def test_patched_source():
    """`patched_source` returns the changes to a method as a diff. For a module that is not patched, the
    diff is empty."""
    model = nn.ModuleList([GatedMLP(), nn.Linear(2, 2)])
    assert oxiwarp.patched_source(model[0]) == ""
    oxiwarp.patch(model, cpu_kernels=True)
    lines = oxiwarp.patched_source(model[0]).splitlines()
    assert any(line.startswith("-") and "F.silu(self.lift(tokens)) * self.wing(tokens)" in line for line in lines)
    assert any(line.startswith("+") and "_oxiwarp_gated_activation" in line for line in lines)
    assert oxiwarp.patched_source(model[1]) == ""


def test_ran_names_the_reason():
    """If no kernel supports a call, the original code runs. `patch` returns a report, whose method `ran`
    counts such calls separately for each reason."""
    mlp = GatedMLP().double()
    report = oxiwarp.patch(mlp, cpu_kernels=True)
    mlp(torch.ones(1, 2, research_models.WIDTH, dtype=torch.float64))
    mlp.float()(torch.ones(1, 2, research_models.WIDTH))
    (row,) = report.ran()
    assert (row.kernels, row.fallbacks) == (1, {"an operand is torch.float64": 1})
    assert "1 × original: an operand is torch.float64" in str(report.ran())
    assert copy.deepcopy(report).ran() == ()


def test_a_replaced_function_is_called(monkeypatch):
    """If a helper function is replaced after `patch` has converted its source to a formula, the new function
    runs."""
    model, inputs = research_models.build(Adaptive, torch.float32)
    oxiwarp.patch(model, cpu_kernels=True)
    monkeypatch.setattr(research_models, "modulate", lambda x, shift, scale: x * 0)
    other, _ = research_models.build(Adaptive, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), other(*inputs), rtol=1e-5, atol=1e-5)


class Doubled(nn.Module):
    """A module that calls another module and changes the result: to float64, to a batch of one, or to
    permuted strides."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x):
        y = self.inner(x)
        changes = {
            "dtype": y.double,
            "batch": lambda: y[:1],
            "strides": lambda: y.transpose(1, 2).contiguous().transpose(1, 2),
        }
        return changes[self.how]()


@pytest.mark.parametrize("how", ["dtype", "batch", "strides"])
@pytest.mark.parametrize("block", BLOCKS)
def test_results_of_other_modules(block, how):
    """If a submodule returns another dtype, a batch of 1 or other strides, a patched model matches the
    unpatched model."""
    results = []
    for patch in (False, True):
        model, inputs = research_models.build(block, torch.float32)
        if how == "dtype":
            # Use only one block: a second one would get a float64 input, which torch's linears reject.
            model.blocks = model.blocks[:1]
        for part in model.blocks:
            part.mlp = Doubled(part.mlp, how)
        if patch:
            oxiwarp.patch(model, cpu_kernels=True)
        with torch.no_grad():
            results.append(model(*inputs))
    assert results[0].dtype == results[1].dtype
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


class Modulated(nn.Module):
    """A modulated RMSNorm with a weight."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, scale, shift):
        return self.norm(x) * (1 + scale) + shift


@pytest.mark.parametrize(
    ("norm", "rounding"),
    [(nn.RMSNorm, "once"), (research_models.GainRMSNorm, "before_weight")],
    ids=["once", "before"],
)
def test_weights_of_modulated_rms_norms(norm, rounding, monkeypatch):
    """The operator `ada_norm` rounds before it applies the weight, or only after it. `patch` chooses the rounding of
    the module."""
    called, ada_norm = [], calls.ops.ada_norm

    def run(*args, **options):
        called.append(options["rounding"])
        return ada_norm(*args, **options)

    monkeypatch.setattr(calls.ops, "ada_norm", run)
    width = research_models.WIDTH
    module = Modulated(norm(width)).bfloat16()
    nn.init.normal_(module.norm.weight, mean=1.0, std=0.3)
    x, scale, shift = (torch.randn(2, 40, width).bfloat16() for _ in range(3))
    with torch.no_grad():
        stock = module(x, scale, shift)
        report = oxiwarp.patch(module, cpu_kernels=True)
        assert (module(x, scale, shift) != stock).float().mean() < 0.02
    (ran,) = [row for row in report.ran() if row.line]
    assert ran.kernels == 1 and not ran.fallbacks and called == [rounding]


class Shortened(nn.Module):
    """A method that assigns a slice of a variable to the same variable, and then multiplies the variable."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 0.5

    def forward(self, x):
        y = self.linear(x)
        y = y[..., :3]
        y = y * self.scale
        return y


def test_variables_of_their_own_values():
    """If a variable is assigned an expression that reads the same variable, `patch` does not expand the
    expression endlessly. No kernel replaces such an expression."""
    assert found_in(Shortened.forward) == ()


def test_hooks_on_parts_run():
    """A hook on a norm or an activation runs, although a kernel could do the work of this module."""
    model, inputs = research_models.build(Adaptive, torch.float32)
    report, seen = oxiwarp.patch(model, cpu_kernels=True), []
    hook = model.blocks[0].norm1.register_forward_hook(lambda *of: seen.append("norm1"))
    with torch.no_grad():
        model(*inputs)
        assert seen == ["norm1"] and report.ran().fallbacks == 0, "a kernel computes the modulation after the norm"
        hook.remove()
        model(*inputs)
    assert seen == ["norm1"] and report.ran().fallbacks == 0


def test_tracebacks_and_signatures():
    """A rewritten method keeps its name, signature, source and line numbers."""
    block = Adaptive()
    own = Adaptive.forward
    oxiwarp.patch(block, cpu_kernels=True)
    new = type(block).forward
    assert inspect.signature(new) == inspect.signature(own) and new.__qualname__ == own.__qualname__
    assert inspect.getsource(new) == inspect.getsource(own)
    with pytest.raises(RuntimeError) as raised:
        block(torch.ones(2, 5, research_models.WIDTH), torch.ones(2, 3))
    frames = traceback.extract_tb(raised.value.__traceback__)
    lines, first = inspect.getsourcelines(own)
    frame = next(frame for frame in frames if frame.filename == research_models.__file__)
    assert frame.name == "forward" and "self.ada" in lines[frame.lineno - first]


def logged(function):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        self.calls += 1
        return function(self, *args, **kwargs)

    return wrapper


class Held:
    """A decorator that stores the decorated method in an attribute."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, module, cls=None):
        return functools.partial(self.function, module)


KEPT = {}


def kept(function):
    """A decorator that stores the decorated method in a global dict."""
    KEPT["method"] = function

    @functools.wraps(function)
    def wrapper(self, *args):
        return KEPT["method"](self, *args)

    return wrapper


class Plain(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8, elementwise_affine=False)

    def forward(self, x, gate):
        return x + gate * self.norm(x)


class Decorated(Plain):
    @logged
    @torch.no_grad()
    def forward(self, x, gate, *, twice=False):
        x = x + gate * self.norm(x)
        return x * 2 if twice else x


class Inherits(Plain):
    def forward(self, x, gate):
        x = super().forward(x, gate)
        return x + gate * self.norm(x)


class Generates(Plain):
    def forward(self, x, gate):
        yield x + gate * self.norm(x)


class Private(Plain):
    __scale = 2.0

    def forward(self, x, gate):
        return x + gate * self.norm(x) * self.__scale


class ByClass(Plain):
    @Held
    def forward(self, x, gate):
        return x + gate * self.norm(x)


class Keeps(Plain):
    @kept
    def forward(self, x, gate):
        return x + gate * self.norm(x)


def closed_over(factor):
    class Closure(Plain):
        def forward(self, x, gate):
            return x + gate * self.norm(x * factor)

    return Closure


@pytest.mark.parametrize(
    "make", [Plain, Decorated, Inherits, closed_over(3)], ids=["plain", "decorated", "super", "closure"]
)
def test_kinds_of_methods(make):
    """Methods with decorators, closures, `super()` and keyword arguments are rewritten, and return the
    original results."""
    x, gate = torch.randn(2, 3, 8), torch.randn(2, 1, 8)
    module = make().eval()
    stock = module(x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True, only=make.__name__)
    assert report.replaced == 1, str(report)
    torch.testing.assert_close(module(x, gate), stock, rtol=1e-5, atol=1e-6)
    assert sum(row.kernels for row in report.ran() if row.line) >= 1, str(report.ran())
    if make is Decorated:
        assert module.calls == 2 and torch.equal(module(x, gate, twice=True), 2 * module(x, gate))


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Generates, "a generator"), (Private, "the private name"), (Keeps, "an unknown decorator"), (ByClass, None)],
    ids=["generator", "private", "decorator", "class"],
)
def test_left_alone(make, reason):
    """If a method cannot be rewritten, it stays unchanged, and the report of `patch` gives the reason."""
    module = make()
    report = oxiwarp.patch(module, cpu_kernels=True, allow_empty=True, only=make.__name__)
    rows = [row for row in report if row.module_class.endswith(make.__name__)]
    assert report.replaced == 0
    if reason is not None:
        (row,) = rows
        assert row.status == "left" and reason in row.reason


def test_without_a_source():
    """If the source code of a class is not available, its methods stay unchanged."""
    space = {"Plain": Plain}
    exec("class Typed(Plain):\n    def forward(self, x, gate):\n        return x + gate * self.norm(x)\n", space)
    module, x, gate = space["Typed"](), torch.randn(2, 3, 8), torch.randn(2, 1, 8)
    stock = module(x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True, allow_empty=True, only="Typed")
    assert report.replaced == 0
    assert torch.equal(module(x, gate), stock)


def test_a_changed_file_is_left(tmp_path):
    """If the file of a method has changed since the import, the method is not rewritten."""
    text = random_methods.source({"Changes": ["x = x + g * self.ff(x)", "return x,"]})
    module = random_methods.load({"Changes": ["x = x + g * self.ff(x)", "return x,"]}, tmp_path)
    path = module.__file__
    with open(path, "w") as file:
        file.write(text.replace("x + g", "x + s"))
    inspect.linecache.checkcache(path)
    assert "changed" in found_in(module.Changes.forward)


def test_a_file_that_is_no_longer_python(tmp_path):
    """If the file of a method was cut off since the import, `patch` says that the source is not available."""
    lines = ["x = x + g * self.ff(x)", "return x,"]
    module = random_methods.load({"Changes": lines}, tmp_path)
    path, text = module.__file__, random_methods.source({"Changes": lines})
    with open(path, "w") as file:
        file.write(text[: text.index("self.ff(x)") + len("self.ff(")])
    inspect.linecache.checkcache(path)
    assert found_in(module.Changes.forward) == "its source is not available"
    assert fingerprint(module.Changes.forward) == "unknown"


def test_options_differ(device):
    """In mode "fast", a kernel rounds only its final result. The error of the model is then smaller than in
    mode "exact"."""
    model, inputs = research_models.build(Adaptive, torch.bfloat16)
    wide, wide_inputs = research_models.build(Adaptive, torch.bfloat16)
    exact = wide.double()(*(x.double() for x in wide_inputs))
    errors = {}
    for mode in ("exact", "fast"):
        report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
        assert {row.exactness for row in report if "gated_residual" in row.op} == {
            "bit-exact" if mode == "exact" else "one rounding"
        }
        with torch.no_grad():
            errors[mode] = (model(*inputs).double() - exact).square().mean()
    assert errors["fast"] < errors["exact"]


def test_functions_are_all_there():
    """Every function that `patch` may insert into a rewritten method exists and can be called."""
    assert all(callable(function) for function in calls.calls(calls.Options("exact", False), []).values())
    assert all(callable(getattr(Calls, name)) for name in calls.METHODS)
    assert recipe_of(nn.Linear(2, 2)) is None


def test_every_model(record_property):
    """Tiny models of other libraries return the same bits with their original methods and with rewritten
    methods that run no kernels."""
    import every_diffusers_model
    import every_transformers_model

    names = (
        "Lumina2Transformer2DModel",
        "ZImageTransformer2DModel",
        "CogView4Transformer2DModel",
        "SanaTransformer2DModel",
    )
    cases = {name: every_diffusers_model.CASES[name] for name in names}
    cases |= {name: every_transformers_model.CASES[name] for name in ("MixtralForCausalLM",)}
    for name, case in cases.items():
        model, arguments = case.build(torch.bfloat16)
        with torch.no_grad():
            torch.manual_seed(0)
            stock = first(model(**arguments))
            assert rewrite_all(model, cpu_kernels=False) > 0, name
            torch.manual_seed(0)
            assert torch.equal(first(model(**arguments)).nan_to_num(), stock.nan_to_num()), name
