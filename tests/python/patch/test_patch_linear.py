"""Tests of patched models that compute a linear and the operations after it with one kernel, `oxiwarp.linear`.

Tables of measurements in the package decide for which sizes this happens. The tests replace these tables, so that the
CPU executor counts as a measured device. Weights and inputs are small integers. The products are therefore exact, and
have the same bits as those of torch.
"""

import copy
import re

import pytest
import torch
from product_tables import Everything, forget, use_tables
from test_feed_forward import LoRA, Quantised
from torch import nn

import oxiwarp
from oxiwarp.patching.fusions.core import linear
from oxiwarp.patching.fusions.core.linear import DIFFERS, FIRST, SETTINGS, LaterLinear
from oxiwarp.patching.fusions.core.linear_tables import GATED_RESIDUAL, Launch

activations = pytest.importorskip("diffusers.models.activations")
attention = pytest.importorskip("diffusers.models.attention")
ROWS, K, N = 6, 16, 48


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Clear the results of earlier comparisons. Make oxiwarp treat this process as a process outside of a
    distributed job.
    """
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    forget()
    yield
    forget()


@pytest.fixture
def tables(monkeypatch):
    use_tables(monkeypatch)


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of `oxiwarp.linear` in patched methods: the keyword arguments."""
    seen, own = [], linear.ops.linear
    monkeypatch.setattr(linear.ops, "linear", lambda *args, **kw: (seen.append(kw), own(*args, **kw))[1])
    return seen


def integers(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def with_integers(module, dtype=torch.bfloat16):
    """Give all parameters small integers."""
    module = module.to(dtype).eval().requires_grad_(False)
    for seed, parameter in enumerate(module.parameters()):
        parameter.copy_(integers(*parameter.shape, seed=seed))
    return module


def gelu(dtype=torch.bfloat16, **options):
    return with_integers(activations.GELU(K, N, approximate="tanh", **options), dtype)


def fused_by(report):
    """Return how often the kernel ran for linears according to a report, and the reasons why it did not run."""
    rows = [row for row in report.ran() if row.op == "linear"]
    reasons = {}
    for row in rows:
        for reason, count in row.fallbacks.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return sum(row.kernels for row in rows), reasons


def patched(module, **options):
    return oxiwarp.patch(module, cpu_kernels=True, **options)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(
    ("kind", "make"),
    {
        "gelu_tanh": lambda: activations.GELU(K, N, approximate="tanh"),
        "gelu": lambda: activations.GELU(K, N, bias=False),
        "gelu_quick": lambda: activations.ApproximateGELU(K, N),
        "geglu": lambda: activations.GEGLU(K, N),
        "swiglu": lambda: activations.SwiGLU(K, N, bias=False),
    }.items(),
)
def test_activation(kind, make, dtype, monkeypatch, calls):
    """If the tables allow it, one kernel computes linear and activation, and the result has the same bits as without
    the tables.
    """
    module, x = with_integers(make(), dtype), integers(2, ROWS, K, dtype=dtype)
    report = patched(module)
    own = module(x)
    assert fused_by(report) == (0, {}) and not calls and "linear" not in str(report.ran())
    use_tables(monkeypatch)
    first, second = module(x), module(x)
    assert torch.equal(first, own) and torch.equal(second, own)
    assert [call["epilogue"] for call in calls] == [kind, kind]
    assert fused_by(report) == (1, {FIRST: 1})
    assert "linear: 1 × kernel" in str(report.ran())


class Gated(nn.Module):
    """A block with a gated residual after a linear, in one statement or in two."""

    def __init__(self, statements=1):
        super().__init__()
        self.out, self.statements = nn.Linear(K, N), statements

    def forward(self, x, h, gate):
        if self.statements == 1:
            return x + gate * self.out(h)
        h = self.out(h)
        x = x + gate * h
        return x


class Gelu(nn.Module):
    """A method with a GELU of a linear."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(K, N), nn.Linear(N, K)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x), approximate="tanh"))


@pytest.mark.parametrize("shape", ((1, 1, N), (2, 1, N), (2, ROWS, N), (N,), (2, 1, 1)), ids=str)
@pytest.mark.parametrize("statements", (1, 2))
def test_rewritten_sum(statements, shape, tables, calls):
    """In a rewritten method, one kernel computes `x + gate * linear(h)`."""
    module, x, h = with_integers(Gated(statements)), integers(2, ROWS, N), integers(2, ROWS, K, seed=1)
    gate = integers(*shape, seed=2)
    own = module(x, h, gate)
    report = patched(module)
    assert torch.equal(module(x, h, gate), own) and torch.equal(module(x, h, gate), own)
    assert [set(call) for call in calls] == [{"residual", "gate", "mode", "out"}] * 2
    assert fused_by(report) == (1, {FIRST: 1})
    assert "linear" in oxiwarp.patched_source(module)


def test_rewritten_gelu(tables, calls):
    module, x = with_integers(Gelu()), integers(ROWS, K)
    report = patched(module)
    assert torch.equal(module(x), module(x))
    assert [call["epilogue"] for call in calls] == ["gelu_tanh"] * 2 and fused_by(report) == (1, {FIRST: 1})


def test_empty_tables(calls):
    """The package's own tables have no entry for the CPU, so each call runs the linear, and the report has no line
    about it.
    """
    module, x = gelu(), integers(ROWS, K)
    own = module(x)
    report = patched(module)
    assert torch.allclose(module(x), own, rtol=1e-2) and not calls and fused_by(report) == (0, {})


def not_faster(monkeypatch, module, x):
    use_tables(monkeypatch, speed=Everything([Launch(1, 1.0, 1.0, None), Launch(100, 1.0, 1.0, None)]))
    return "the launch table does not say that gelu_tanh in the product 6 x 16 x 48 in bf16 with bias is faster"


def not_measured(monkeypatch, module, x):
    use_tables(monkeypatch, equal={})
    return (
        "the bits of the product 6 x 16 x 48 in bf16 with bias were not compared with cuBLAS's "
        f"(cpu, torch {torch.__version__})"
    )


def settings(monkeypatch, module, x):
    monkeypatch.setattr(torch._C, "_get_cublas_allow_bf16_reduced_precision_reduction", lambda: (False, True))
    return SETTINGS


def replaced(monkeypatch, module, x):
    own = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda *args: own(*args))
    return "F.linear was replaced"


def with_hook(monkeypatch, module, x):
    module.proj.register_forward_hook(lambda *args: None)
    return "the linear has hooks, or is compiled by itself"


def with_own_forward(monkeypatch, module, x):
    module.proj.forward = lambda x: nn.functional.linear(x, module.proj.weight, module.proj.bias)
    return "the linear has hooks, or is compiled by itself"


def adapted(monkeypatch, module, x):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["proj"], r=2)
    peft.inject_adapter_in_model(config, module)
    module.to(torch.bfloat16)
    return "the linear is a Linear"


def quantised(monkeypatch, module, x):
    module.proj = with_integers(Quantised(K, N))
    return "the linear is a Quantised"


def with_subclass(monkeypatch, module, x):
    class Own(torch.Tensor):
        pass

    module.proj.weight = nn.Parameter(module.proj.weight.data.as_subclass(Own), requires_grad=False)
    return "a parameter of the linear is a Own"


def shifted(monkeypatch, module, x):
    x.set_(integers(K, ROWS).t())
    return "the input of the linear is empty, not contiguous, or has another width"


def wide(monkeypatch, module, x):
    module.float()
    x.data = x.data.float()
    return "the input of the linear is torch.float32"


def trained(monkeypatch, module, x):
    module.requires_grad_()
    return "a gradient is recorded, or a transform of torch.func is active"


REASONS = (
    *(not_faster, not_measured, settings, replaced, with_hook, with_own_forward, adapted, quantised),
    *(with_subclass, shifted, wide, trained),
)


@pytest.mark.parametrize("change", REASONS, ids=lambda change: change.__name__)
def test_reasons(change, monkeypatch, tables, calls):
    """If a condition for the kernel is not met, the original linear runs, and the report has the reason."""
    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    reason = change(monkeypatch, module, x)
    with torch.enable_grad():
        y = module(x)
    assert not calls and fused_by(report) == (0, {reason: 1})
    monkeypatch.setattr(linear, "SPEED", {})
    assert torch.equal(y, module(x))


def test_hooks_run(tables):
    """A forward hook of the linear runs in each call, and may change the result."""
    module, x = gelu(), integers(ROWS, K)
    patched(module)
    own = module(x)
    module.proj.register_forward_hook(lambda module, args, y: y + 1)
    assert not torch.equal(module(x), own)


def test_adapter(tables, calls):
    """With an adapter at the linear, the patched module gives the result of the unpatched module with this adapter."""
    module, x = gelu(), integers(ROWS, K)
    module.proj = with_integers(LoRA(module.proj))
    own = module(x)
    patched(module)
    assert torch.allclose(module(x), own, rtol=1e-2) and not calls


def test_other_bits(monkeypatch, tables, calls):
    """For each input size, the first call compares the kernel's result with torch's result. If the bits differ,
    this call returns torch's result, and later calls of this size do not run the kernel.
    """
    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    right, own = module(x), linear.ops.linear
    forget()
    monkeypatch.setattr(linear.ops, "linear", lambda *args, **kw: own(*args, **kw) + 1)
    calls.clear()
    assert torch.equal(module(x), right) and torch.equal(module(x), right) and len(calls) == 1
    assert fused_by(report) == (0, {FIRST: 2, f"{DIFFERS}: 6 x 16 x 48 in bf16 with bias": 1})
    module(integers(ROWS + 1, K))  # another size is compared too
    assert len(calls) == 2


def test_distributed(monkeypatch, tables, calls):
    """In a distributed job, the first call runs the kernel without a comparison of the bits, so that all ranks decide
    alike.
    """
    monkeypatch.setenv("WORLD_SIZE", "2")
    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    own = linear.ops.linear
    monkeypatch.setattr(linear.ops, "linear", lambda *args, **kw: own(*args, **kw) + 1)
    module(x), module(x)
    assert len(calls) == 2 and fused_by(report) == (2, {}) and not linear.COMPARED


def test_process_group(monkeypatch):
    """A process group with several ranks is enough for oxiwarp to detect a distributed job. The environment
    variables that torchrun sets are not required.
    """
    group = torch.distributed
    for size, expected in ((1, False), (2, True)):
        monkeypatch.setattr(group, "is_initialized", lambda: True)
        monkeypatch.setattr(group, "get_world_size", lambda size=size: size)
        assert linear.is_distributed() is expected
        assert linear.may_compare(integers(1, K)) is not expected


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU"
)
def test_hopper(monkeypatch, calls):
    """On a Hopper GPU, the result has the bits of the unpatched module. During the capture of a CUDA graph, the bits
    are not compared.
    """
    torch.manual_seed(0)
    module = activations.GELU(3072, 3072, approximate="tanh").bfloat16().cuda().eval().requires_grad_(False)
    x = torch.randn(1, 512, 3072, device="cuda", dtype=torch.bfloat16)
    own = module(x)
    use_tables(monkeypatch, index=0)
    report = oxiwarp.patch(module)
    assert torch.equal(module(x), own) and torch.equal(module(x), own) and len(calls) == 2
    assert fused_by(report) == (1, {FIRST: 1})
    forget()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = module(x)
    graph.replay()
    assert torch.equal(made, own) and not linear.COMPARED and fused_by(report)[0] == 2
    shifted = torch.empty(512 * 3072 + 8, device="cuda", dtype=torch.bfloat16)[8:].view(x.shape).copy_(x)
    module(shifted)
    assert "an address is not a multiple of 256" in fused_by(report)[1]


def test_fast(monkeypatch, calls):
    """Mode "fast" needs no table of equal bits and no comparison."""
    use_tables(monkeypatch, equal={})
    module, x = gelu(), integers(ROWS, K)
    report = patched(module, mode="fast")
    module(x)
    assert fused_by(report) == (1, {}) and calls[0]["mode"] == "fast"


def test_library_epilogue(monkeypatch, calls):
    """In mode "fast", the kernel must also be faster than cuBLASLt with its own epilogue."""
    use_tables(monkeypatch, speed=Everything([Launch(ROWS, 1.0, 2.0, 1.0)]))
    module, x = gelu(), integers(ROWS, K)
    patched(module, mode="fast")
    module(x)
    assert not calls
    patched(module, mode="exact")
    module(x)
    assert len(calls) == 1


def test_rejected_operand(monkeypatch, tables):
    """If `oxiwarp.linear` raises an error, the original operations run, and the report has the message."""

    def refuse(*args, **kw):
        raise RuntimeError("linear: x is odd, expected even\nmore")

    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    right = module(x)
    for compared in (False, True):
        if not compared:
            linear.COMPARED.clear()
        monkeypatch.setattr(linear.ops, "linear", refuse)
        assert torch.equal(module(x), right)
    assert fused_by(report)[1]["linear: x is odd, expected even"] == 2


def test_no_memory_for_comparison(monkeypatch, tables):
    """If the comparison of the bits runs out of memory, the call returns the original result."""

    def fail(*args, **kw):
        raise torch.OutOfMemoryError("no memory")

    module, x = gelu(), integers(ROWS, K)
    patched(module)
    own = linear.ops.linear
    monkeypatch.setattr(linear.ops, "linear", fail)
    right = module(x)
    assert not linear.COMPARED
    monkeypatch.setattr(linear.ops, "linear", own)
    assert torch.equal(module(x), right) and linear.COMPARED


def test_lifecycle(tables, calls):
    """`unpatch` restores a module whose linear and GELU run in one kernel. The state dict of the patched module, its
    copies and its pickled copies do not depend on whether the tables of sizes permit this kernel."""
    module, x = gelu(), integers(ROWS, K)
    own, state = module(x), copy.deepcopy(module.state_dict())
    patched(module)
    fused = [module(x), module(x)][1]
    copied = copy.deepcopy(module)
    assert torch.equal(copied(x), fused) and len(calls) == 3
    assert module.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert oxiwarp.unpatch(module) == 1 and torch.equal(module(x), own) and len(calls) == 3


@pytest.mark.parametrize("make", (gelu, lambda: with_integers(Gelu())), ids=("fusion", "rewritten"))
def test_compile(make, tables, calls):
    """Under torch.compile, the linear and the operations after it run separately, and there is no graph break."""
    module, x = make(), integers(ROWS, K)
    patched(module)
    right = module(x)
    calls.clear()
    torch.compiler.reset()
    made = torch.compile(module, backend="eager", fullgraph=True)(x)
    assert torch.allclose(made, right, rtol=1e-2) and not calls


def test_compiled_sum(tables, calls):
    module, x, h, gate = with_integers(Gated(2)), integers(2, ROWS, N), integers(2, ROWS, K), integers(2, 1, N)
    own = module(x, h, gate)
    patched(module)
    torch.compiler.reset()
    assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x, h, gate), own) and not calls


def test_autocast(tables, calls):
    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    with torch.autocast("cpu", torch.bfloat16):
        module(x)
    assert not calls and fused_by(report) == (0, {})  # the fused method does not run at all


class Sums(nn.Module):
    """Methods in which the linear must not be computed later."""

    def __init__(self, case):
        super().__init__()
        self.out, self.other, self.norm, self.case = nn.Linear(K, K), nn.Linear(K, K), nn.LayerNorm(K), case

    def forward(self, x, h, gate):
        if self.case == "norm":
            x = x + gate * self.out(h)
            return self.norm(x)
        if self.case == "branch":
            if gate is not None:
                x = x + gate * self.out(h)
            return self.norm(x)
        if self.case == "twice":
            y = self.out(h)
            return x + gate * y, y
        if self.case == "gate":
            return x + self.other(h) * self.out(h)
        if self.case == "written":
            y = self.out(h)
            h.add_(1)
            return x + gate * y
        if self.case == "cast":
            return (x.float() + gate.float() * self.out(h).float()).to(x.dtype)
        return None


@pytest.mark.parametrize("case", ("norm", "branch", "twice", "gate", "written", "cast"))
def test_not_deferred(case, tables, calls):
    """The linear is computed separately and in its original place in three cases: the sum has a norm, other code reads
    the linear's result, or other code of the expression may have side effects.
    """
    module = with_integers(Sums(case))
    x, h, gate = integers(2, ROWS, K), integers(2, ROWS, K, seed=1), integers(2, 1, K, seed=2)
    right = module(x.clone(), h.clone(), gate)
    patched(module)
    for _ in range(2):
        made = module(x.clone(), h.clone(), gate)
        pairs = zip(made, right, strict=True) if case == "twice" else [(made, right)]
        assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-2) for a, b in pairs)
    assert not calls


def feed_forward(dim=K):
    return with_integers(attention.FeedForward(dim, activation_fn="gelu-approximate", mult=3))


class FeedForwardSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff = feed_forward()

    def forward(self, x, h, gate):
        h = self.ff(h)
        return x + gate * h


@pytest.mark.parametrize("hooked", (False, True))
def test_feed_forward(hooked, tables, calls):
    """One kernel computes the last linear of a patched `FeedForward` and the sum after it, unless the `FeedForward` has
    a hook.
    """
    module = FeedForwardSum()
    x, h, gate = integers(2, ROWS, K), integers(2, ROWS, K, seed=1) / 4, integers(2, 1, K, seed=2)
    seen = []
    patched(module)
    right = module(x, h, gate)
    if hooked:
        module.ff.register_forward_hook(lambda *args: seen.append(args[0]))
    calls.clear()
    assert torch.equal(module(x, h, gate), right)
    kinds = [call.get("epilogue", GATED_RESIDUAL) for call in calls]
    assert kinds == (["gelu_tanh"] if hooked else ["gelu_tanh", GATED_RESIDUAL]) and len(seen) == hooked


def test_placeholder_is_never_returned(tables):
    """A placeholder is not a tensor, so no module may return it."""
    module = FeedForwardSum()
    patched(module)
    assert type(module.ff(integers(2, ROWS, K))) is torch.Tensor
    assert not issubclass(LaterLinear, torch.Tensor)


def test_report_text(tables):
    module, x = gelu(), integers(ROWS, K)
    report = patched(module)
    module(x), module(x), module(x)
    text = str(report.ran())
    assert re.search(r"GELU: linear: 2 × kernel\n    1 × original: the first call of a size", text), text
    assert "linear" not in report.ops
