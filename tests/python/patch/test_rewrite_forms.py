"""Tests of rewritten methods with a sigmoid gate, a gate with one value per row, or a modulation without a
norm."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, random
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import recipe_of

WIDTH = 24
activations = pytest.importorskip("transformers.activations")


class Sigmoid(nn.Module):
    """The gate after the attention in Krea 2 and Qwen3-Next."""

    def forward(self, x, gate):
        return x * torch.sigmoid(gate)


class FunctionalSigmoid(nn.Module):
    def forward(self, x, gate):
        return F.sigmoid(gate) * x


class MethodSigmoid(nn.Module):
    def forward(self, x, gate):
        x = x * gate.sigmoid()
        return x


class ModuleSigmoid(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.act_fn = act or nn.Sigmoid()

    def forward(self, x, gate):
        return self.act_fn(gate) * x


class RowGate(nn.Module):
    """A module that multiplies `y` by a gate with one value per token, like the gate of the shared expert in
    Qwen3-Next.
    """

    def __init__(self, columns=1):
        super().__init__()
        self.gate = nn.Linear(WIDTH, columns, bias=False)

    def forward(self, x, y):
        y = F.sigmoid(self.gate(x)) * y
        x = x + y
        return x


class NumberGate(nn.Module):
    """A gate that is a single number, as in the cross-attention of Llama 3.2 Vision."""

    def __init__(self):
        super().__init__()
        self.attn_gate, self.norm = nn.Parameter(torch.ones(1)), nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x, y):
        x = x + self.attn_gate.tanh() * y
        return x, self.norm(x) * (1 + y)


class Unnormed(nn.Module):
    """A modulation of a tensor that is not the result of a norm."""

    def forward(self, x, scale, shift):
        return x * (1 + scale) + shift


class WideUnnormed(nn.Module):
    def forward(self, x, scale, shift):
        return (x.float() * (1 + scale) + shift).type_as(x)


class Frames(nn.Module):
    """A modulation with one scale and shift per video frame, as in SANA-WM."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x, scale, shift):
        normed = self.norm1(x).reshape(2, 3, -1, WIDTH)
        return (normed * (1 + scale[:, :, None]) + shift[:, :, None]).reshape(x.shape)


def run(module, *inputs):
    """Return three values: the result without `patch`, the result with `patch`, and the rows of
    `report.ran()` for rewritten code."""
    with torch.no_grad():
        own = module(*inputs)
        report = oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
        made = module(*inputs)
    return own, made, [row for row in report.ran() if row.line]


def close(made, own):
    """Compare results with a tolerance. On the CPU, the exponentials of torch and oxiwarp differ in the
    last bits."""
    for one, other in zip(*((y if isinstance(y, tuple) else (y,)) for y in (made, own)), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=2 * torch.finfo(one.dtype).eps, atol=1e-5)


def kernels(rows):
    return {name: row.kernels for row in rows for name in [row.op.partition(", ")[0]]}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [Sigmoid, FunctionalSigmoid, MethodSigmoid, ModuleSigmoid])
def test_sigmoid_gates(cls, dtype, device):
    module, inputs = cls().to(device), [random((2, 5, WIDTH), dtype, device, seed) for seed in (0, 1)]
    own, made, rows = run(module, *inputs)
    close(made, own)
    assert [(row.kernels, row.fallbacks) for row in rows] == [(1, {})]
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), made)
    with torch.enable_grad():
        wanted = [x.clone().requires_grad_() for x in inputs]
        ours = torch.autograd.grad(module(*wanted).sum(), wanted)
        torch.testing.assert_close(ours, torch.autograd.grad(cls()(*wanted).sum(), wanted), rtol=0.02, atol=0.02)


def test_sigmoid_of_other_operands():
    """The original code runs if the gate has another shape or dtype than `x`, or if the sigmoid module has a
    hook."""
    x = random((2, 5, WIDTH), torch.bfloat16, "cpu")
    for gate in (x.float(), x[..., :1], x[:1]):
        own, made, rows = run(Sigmoid(), x, gate)
        assert torch.equal(made, own) and sum(row.kernels for row in rows) == 0
    module, seen = ModuleSigmoid(), []
    module.act_fn.register_forward_hook(lambda *of: seen.append(1))
    run(module, x, x)
    assert seen == [1, 1]


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (activations.GELUActivation, "gelu_and_mul"),
        (activations.ReLUSquaredActivation, "relu2_and_mul"),
        (nn.Sigmoid, "sigmoid_and_mul"),
        (activations.NewGELUActivation, "gelu_new"),
        (activations.FastGELUActivation, "gelu_fast"),
        (activations.QuickGELUActivation, "gelu_quick"),
        (lambda: activations.GELUActivation(use_gelu_python=True), None),
        (nn.Tanh, None),
    ],
)
def test_activations(act, name):
    """`patch` recognises the activation modules of torch and transformers. It does not recognise a GELU that
    rounds intermediate results."""
    x, gate = (random((2, 5, WIDTH), torch.bfloat16, "cpu", seed) for seed in (0, 1))
    module = ModuleSigmoid(act())
    own, made, rows = run(module, x, gate)
    close(made, own)
    assert sum(row.kernels for row in rows) == (name is not None)
    assert name is None or recipe_of(module).ops == (name,)


def strided(x, dtype):
    """Return a copy of `x` with the same strides, even if the strides leave gaps in memory."""
    size = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return torch.zeros(size, dtype=dtype).as_strided(x.shape, x.stride()).copy_(x)


def images(memory_format):
    """Return images whose channels are split into two halves."""
    x = random((2, 12, 5, 6), torch.bfloat16, "cpu").contiguous(memory_format=memory_format)
    return x.chunk(2, dim=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("halves", "count"),
    [
        (images(torch.contiguous_format), 1),
        (images(torch.channels_last), 1),
        (random((2, 5, 3, 2 * WIDTH), torch.bfloat16, "cpu").chunk(2, dim=-1), 1),
        ((random((2, 5, WIDTH), torch.bfloat16, "cpu"), random((2, 5, 3, WIDTH), torch.bfloat16, "cpu")[:, :, 1]), 1),
        ((random((2, 5, WIDTH), torch.bfloat16, "cpu"), random((2, WIDTH, 5), torch.bfloat16, "cpu").mT), 0),
        ((images(torch.channels_last)[0], images(torch.contiguous_format)[1]), 0),
        (random((2, 5, WIDTH, 2), torch.bfloat16, "cpu").unbind(-1), 0),
    ],
    ids=["images", "channels last", "heads", "slice", "transposed", "two orders", "pairs"],
)
def test_strides_of_the_factors(halves, count, dtype):
    """For many pairs of factors with different strides, one kernel computes the product. For all pairs, the
    result has the strides of torch's result."""
    gate, up = (strided(x, dtype) for x in halves)
    own, made, rows = run(Sigmoid(), up, gate)
    close(made, own)
    exact = up.double() * torch.sigmoid(gate.double())
    torch.testing.assert_close(made.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    assert sum(row.kernels for row in rows) == count and made.stride() == own.stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_number_per_row(dtype, device):
    inputs = [random((2, 5, WIDTH), dtype, device, seed) for seed in (0, 1)]
    own, made, rows = run(RowGate().to(device, dtype), *inputs)
    close(made, own)
    assert kernels(rows) == {"gated_residual": 1} and not rows[0].fallbacks
    own, made, rows = run(NumberGate().to(device, dtype), *inputs)
    close(made, own)
    assert sum(row.kernels for row in rows) == 1 and not any(row.fallbacks for row in rows)


def test_gates_of_other_widths():
    """If the number of gate columns is neither 1 nor the number of columns of `y`, torch's error is
    raised."""
    x = random((2, 5, WIDTH), torch.float32, "cpu")
    module = RowGate(2)
    oxiwarp.patch(module, cpu_kernels=True)
    with pytest.raises(RuntimeError, match="size of tensor"):
        module(x, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [Unnormed, WideUnnormed])
def test_modulations_without_a_norm(cls, dtype, device):
    x = random((2, 6, WIDTH), dtype, device)
    for shape in ((2, 1, WIDTH), (2, 6, WIDTH), (WIDTH,)):
        scale, shift = (random(shape, dtype, device, seed) for seed in (1, 2))
        own, made, rows = run(cls(), x, scale, shift)
        assert torch.equal(made, own), "the chain has no sum over a row, so the bits are torch's also on the CPU"
        assert kernels(rows) == {"modulate": 1} and not rows[0].fallbacks
    single = random((2, 1, WIDTH), torch.float32, device, 1)
    own, made, rows = run(cls(), x, single, single)
    assert torch.equal(made, own) and made.dtype == own.dtype
    if dtype != torch.float32:
        assert sum(row.kernels for row in rows) == (cls is WideUnnormed), "without a cast, the result is float32"
        own, made, _ = run(cls(), x, x, single)
        assert torch.equal(made, own) and made.dtype == own.dtype


def test_modulation_by_frame(device):
    shapes = [(2, 12, WIDTH), (2, 3, WIDTH), (2, 3, WIDTH)]
    x, scale, shift = (random(shape, torch.float32, device, seed) for seed, shape in enumerate(shapes))
    own, made, rows = run(Frames(), x, scale, shift)
    close(made, own)
    assert kernels(rows) == {"modulate": 1}


class OtherNorm(nn.Module):
    """A norm for which there is no kernel. It returns float64 for some inputs."""

    def __init__(self):
        super().__init__()
        self.calls, self.wide = 0, False

    def forward(self, x):
        self.calls += 1
        y = x / (1 + x.abs().amax(-1, keepdim=True))
        return y.double() if self.wide else y


class ModulatedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = OtherNorm()

    def forward(self, x, scale, shift):
        gate = torch.sigmoid(shift) * shift
        return self.norm(x) * (1 + scale) + shift, gate


class CastNorm(ModulatedNorm):
    def forward(self, x, scale, shift):
        gate = torch.sigmoid(shift) * shift
        return (self.norm(x.float()) * (1 + scale) + shift).type_as(x), gate


@pytest.mark.parametrize("wide", [False, True], ids=["same dtype", "float64"])
@pytest.mark.parametrize("cls", [ModulatedNorm, CastNorm])
def test_modulations_after_other_norms(cls, wide):
    """If there is no kernel for a norm, each call of the rewritten `forward` runs the norm's module once. A
    kernel computes the modulation after the norm, if the dtypes permit this."""
    x, scale, shift = (random((2, 6, WIDTH), torch.float32, "cpu", seed) for seed in range(3))
    module = cls()
    module.norm.wide = wide
    own, made, rows = run(module, x, scale, shift)
    assert torch.equal(made[0], own[0]) and made[0].dtype == own[0].dtype and module.norm.calls == 2
    kernel = cls is ModulatedNorm and not wide
    assert [row.kernels for row in rows if "ada_norm" in row.op] == [int(kernel)], rows


class NotModulated(nn.Module):
    """A method with three expressions that look like modulations: an activation, a product with a weight, and
    the computation of an index."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = 0.5 * x * (1.0 + torch.tanh(x))
        rows, columns = x.shape[:2]
        index = rows * (1 + columns) + columns
        return y * (1 + self.weight) + index


def test_what_is_no_modulation():
    x = random((2, 6, WIDTH), torch.float32, "cpu")
    own, made, rows = run(NotModulated(), x)
    assert torch.equal(made, own) and rows == []
