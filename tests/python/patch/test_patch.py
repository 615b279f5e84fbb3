"""Tests of `oxiwarp.patch` and `unpatch` on norms: replaced and skipped modules, results, arguments, and
the report."""

import copy
import io
import time
from types import SimpleNamespace

import pytest
import torch
from helpers import DTYPES, random, same_roundings
from image_models import sdxl
from models import NORMS, BeforeWeightRMSNorm, ltx, ltx_input, net, net_input, qwen, t5
from torch import nn

import oxiwarp
from oxiwarp.patching import class_swap
from oxiwarp.patching.fusions import fingerprint
from oxiwarp.patching.fusions.core.registry import found_for
from oxiwarp.patching.norms import forward as norms
from oxiwarp.patching.rewrite.recipe import rewritten_from


@pytest.fixture
def kernel_calls(monkeypatch):
    """Record the input tensor of every kernel call that patched norms make."""
    seen, call = [], norms.call

    def spy(x, *rest):
        seen.append(x)
        return call(x, *rest)

    monkeypatch.setattr(norms, "call", spy)
    return seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_norm(dtype, device, kernel_calls):
    """A patched norm runs oxiwarp's kernel. The result has the dtype, strides and roundings of the original
    `forward`."""
    model, x = net(dtype, device), random((3, 7, 64), dtype, device)
    own = {name: getattr(model, name)(x) for name in NORMS}
    report = oxiwarp.patch(model, cpu_kernels=True)
    assert report.replaced == 4 and report.left == 0
    for name in NORMS:
        y = getattr(model, name)(x)
        assert y.dtype == own[name].dtype and y.stride() == own[name].stride()
        assert same_roundings(y, own[name]), name
    assert len(kernel_calls) == 4


@pytest.mark.parametrize("make", [ltx, qwen, t5])
@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
def test_models(make, dtype, device, kernel_calls):
    """`patch` replaces all norms of LTX-Video, Qwen and T5 models. The output differs only by rounding
    errors.

    After `unpatch`, the output equals the original output bit for bit.
    """
    model = make(dtype, device)

    def forward(model, dtype=dtype):
        if make is ltx:
            return model(**ltx_input(dtype, device))[0]
        return model(input_ids=torch.arange(24, device=device).view(2, 12)).last_hidden_state

    stock = forward(model)
    wider = forward(make(torch.float64 if dtype == torch.float32 else torch.float32, device), model_dtype(dtype))
    report = oxiwarp.patch(model, cpu_kernels=True)
    patched = forward(model)
    norms_found = sum(row.count for row in report if row.op == "rms_norm")
    assert norms_found == {ltx: 12, qwen: 9, t5: 5}[make]
    assert report.left == 0, str(report)
    assert make is ltx or kernel_calls
    own_error = (stock.double() - wider.double()).abs()
    difference = (patched.double() - stock.double()).abs()
    assert difference.mean() <= 2 * own_error.mean() + 1e-7 and difference.max() <= 2 * own_error.max() + 1e-6
    assert oxiwarp.unpatch(model) == report.replaced
    assert torch.equal(forward(model), stock)


def model_dtype(dtype):
    """Return the dtype in which the reference result is computed, for inputs of `dtype`."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def test_unpatch_is_exact():
    model = net()
    before = {name: (type(module), dict(module.__dict__)) for name, module in model.named_modules()}
    oxiwarp.patch(model, cpu_kernels=True)
    assert oxiwarp.unpatch(model) == 4 and oxiwarp.unpatch(model) == 0
    for name, module in model.named_modules():
        cls, attributes = before[name]
        assert type(module) is cls and module.__dict__.keys() == attributes.keys()


def test_patched_context():
    model, x = net(), net_input()
    stock = model(x)
    with oxiwarp.patched(model, cpu_kernels=True) as report:
        assert report.replaced == 4 and class_swap.is_replaced(model.before)
    assert not class_swap.is_replaced(model.before) and torch.equal(model(x), stock)
    oxiwarp.patch(model.before)
    with pytest.raises(KeyError), oxiwarp.patched(model, cpu_kernels=True):
        raise KeyError
    assert class_swap.is_replaced(model.before) and not model.before._oxiwarp.cpu_kernels
    assert not class_swap.is_replaced(model.offset)


def test_twice():
    """A second call of `patch` on a model changes only the options (`mode` and `cpu_kernels`) of its
    modules."""
    model = net()
    first = oxiwarp.patch(model)
    classes = [type(module).__mro__[1:] for module in model.modules()]
    second = oxiwarp.patch(model, mode="fast", cpu_kernels=True)
    assert [type(module).__mro__[1:] for module in model.modules()] == classes
    assert (first.replaced, second.replaced) == (4, 4) and model.before._oxiwarp.cpu_kernels
    oxiwarp.unpatch(model)
    assert type(model.before) is BeforeWeightRMSNorm


def test_what_runs_the_own_forward(kernel_calls):
    """A patched norm runs its original `forward` for CPU tensors, unless `cpu_kernels=True`.

    It also runs its original `forward` under autocast, in float64 and for mixed dtypes.
    """
    model, x = net(), net_input()
    stock = model(x)
    oxiwarp.patch(model)
    assert torch.equal(model(x), stock), "a CPU tensor"
    oxiwarp.patch(model, cpu_kernels=True)
    with torch.autocast("cpu", torch.bfloat16):
        model.before(x)
    wide = net(torch.float64)
    oxiwarp.patch(wide, cpu_kernels=True)
    wide(net_input(torch.float64))
    assert model.before(x.bfloat16()).dtype == torch.float32, (
        "16-bit input, float32 weight: promotes as its own forward"
    )
    assert not kernel_calls
    assert model.before(x).shape == x.shape and len(kernel_calls) == 1


def test_keyword_argument(kernel_calls):
    model, x = net(), net_input()
    oxiwarp.patch(model, cpu_kernels=True)
    assert torch.equal(model.before(hidden_states=x), model.before(x)) and len(kernel_calls) == 2
    with pytest.raises(TypeError):
        model.before()
    with pytest.raises(TypeError):
        model.before(x, x)


COPIED = "columns not adjacent"


def layouts(dtype, device):
    """Yield the memory layouts that occur in attention code. Each item has a name, an input tensor with this
    layout, and a bool: whether the kernel supports the layout."""
    x = random((2, 4, 6, 64), dtype, device)
    yield "contiguous", x, True
    yield "heads transposed", x.transpose(1, 2), True
    yield "chunk of a fused projection", random((2, 6, 192), dtype, device).chunk(3, dim=-1)[1], True
    yield (
        "chunk, unflattened, transposed",
        random((2, 6, 3 * 4 * 64), dtype, device).chunk(3, -1)[1].unflatten(-1, (4, 64)).transpose(1, 2),
        True,
    )
    yield "cycled", x.permute(2, 0, 1, 3), True
    yield "every other row", x[:, ::2], True
    yield "two of three strides merge", x.transpose(1, 2)[:, ::2, ::2], True
    yield "three strides", x.transpose(1, 2)[:, ::4, :3], False
    yield COPIED, x.transpose(-1, -2).contiguous().transpose(-1, -2), True
    yield "channels first", x.movedim(-1, 1).contiguous().movedim(1, -1)[:, ::2], False
    yield "broadcast", x[:, :1].expand(2, 4, 6, 64), False
    yield "one row", x[0, 0, 0], True
    yield "no rows", x[:0], True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(dtype, device, kernel_calls):
    """For every input layout, the result of a patched norm has the strides and roundings of the original
    result.

    If the kernel supports the layout, the kernel reads the input without a copy, unless its columns are not adjacent.
    """
    model = net(dtype, device)
    for name in NORMS[:3]:
        norm = getattr(model, name)
        oxiwarp.unpatch(model)
        cases = [(case, x, has_kernel, norm(x)) for case, x, has_kernel in layouts(dtype, device)]
        oxiwarp.patch(model, cpu_kernels=True)
        for case, x, has_kernel, own in cases:
            kernel_calls.clear()
            y = norm(x)
            assert bool(kernel_calls) == has_kernel, case
            assert y.shape == own.shape and (y.stride() == own.stride() or y.numel() == 0), case
            # On the CPU executor, `rsqrt` gives the bits of a GPU. On the CPU, `rsqrt` of torch gives other
            # bits.
            units = 2 if device.type == "cpu" else 1
            assert y.numel() == 0 or same_roundings(y.contiguous(), own.contiguous(), units), case
            assert not kernel_calls or (kernel_calls[0].data_ptr() == x.data_ptr()) == (case != COPIED), case


def test_torch_norm_of_columns_that_are_not_adjacent(device, kernel_calls):
    """`torch.nn.RMSNorm` makes one copy itself, so its original `forward` runs."""
    model = net(torch.float32, device)
    x = random((2, 64, 6), torch.float32, device).transpose(1, 2)
    own = model.torch_norm(x)
    oxiwarp.patch(model, cpu_kernels=True)
    assert torch.equal(model.torch_norm(x), own) and not kernel_calls


def test_only_and_skip():
    def replaced(**options):
        model = net()
        report = oxiwarp.patch(model, **options)
        return {name for name, status in report.names.items() if status == "replaced"}

    assert replaced(only="before") == {"before"}
    assert replaced(only=["*RMSNorm"], skip=["RMSNorm", "bare"]) == {"before", "offset"}
    assert replaced(skip="o*") == {"before", "bare", "torch_norm"}
    left = oxiwarp.patch(net(), only="before")
    assert left.left == 3 and all("excluded" in row.reason for row in left if row.status == "left")


def test_pipelines():
    """`patch` accepts a pipeline, which is an object with `.components` or `.model`.

    For any other object that is not an `nn.Module`, `patch` raises a TypeError.
    """
    transformer, encoder = ltx(), t5()
    pipe = SimpleNamespace(components={"transformer": transformer, "text_encoder": encoder, "scheduler": object()})
    report = oxiwarp.patch(pipe)
    assert "transformer.transformer_blocks.0.norm1" in report.names
    assert "text_encoder.encoder.final_layer_norm" in report.names
    assert oxiwarp.unpatch(pipe) == report.replaced
    assert oxiwarp.patch(SimpleNamespace(model=encoder)).replaced >= 5
    for bad in (None, 3, "model", [encoder]):
        with pytest.raises(TypeError, match="expected a pipeline or an nn.Module"):
            oxiwarp.patch(bad)


def test_nothing_to_replace():
    model = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="nothing to replace in Linear"):
        oxiwarp.patch(model)
    assert oxiwarp.patch(model, allow_empty=True).rows == []
    with pytest.raises(ValueError, match="mode is 'best'"):
        oxiwarp.patch(model, mode="best")


def test_shared_module_counts_once():
    norm = nn.RMSNorm(8)
    assert oxiwarp.patch(nn.Sequential(norm, norm)).replaced == 1


@pytest.mark.parametrize(
    ("options", "replaced"), [({"only": "b"}, True), ({"skip": "b"}, False), ({"skip": "c"}, True)]
)
def test_patterns_take_every_name_of_a_module(options, replaced):
    model = nn.Module()
    model.a = model.b = nn.RMSNorm(64)
    oxiwarp.patch(model, allow_empty=True, **options)
    assert class_swap.is_replaced(model.a) is replaced


def test_unpatch_reaches_processors_that_a_model_keeps_for_later():
    model = sdxl()
    oxiwarp.patch(model, cpu_kernels=True)
    assert any(map(class_swap.is_replaced, model.attn_processors.values()))
    model.fuse_qkv_projections()
    oxiwarp.unpatch(model)
    model.unfuse_qkv_projections()
    assert not any(map(class_swap.is_replaced, model.attn_processors.values()))


class Wrapped:
    """A user's attention processor that calls another processor."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, attn, *args, **kwargs):
        return self.inner(attn, *args, **kwargs)


def test_unpatch_reaches_processors_within_processors():
    model = ltx()
    attention = model.transformer_blocks[0].attn1
    own = type(attention.processor)
    oxiwarp.patch(model, cpu_kernels=True)
    attention.processor = Wrapped(attention.processor)
    assert class_swap.is_replaced(attention.processor.inner)
    oxiwarp.unpatch(model)
    assert type(attention.processor.inner) is own


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(64, elementwise_affine=False), lambda: nn.RMSNorm(64)])
def test_another_width_raises_as_the_own_forward(make):
    module, x = make(), torch.randn(2, 32)
    with pytest.raises(RuntimeError) as own:
        module(x)
    oxiwarp.patch(module, cpu_kernels=True)
    with pytest.raises(RuntimeError) as got:
        module(x)
    assert str(got.value) == str(own.value)


def test_a_weight_that_broadcasts():
    module, x = BeforeWeightRMSNorm(64), torch.randn(5, 1)
    own = module(x)
    oxiwarp.patch(module, cpu_kernels=True)
    assert torch.equal(module(x), own) and own.shape == (5, 64)


@pytest.mark.parametrize(
    ("module", "name"),
    [(BeforeWeightRMSNorm(64), "variance_epsilon"), (nn.LayerNorm(64), "eps"), (nn.RMSNorm(64), "eps")],
)
@pytest.mark.parametrize("eps", [-1e-9, float("inf"), float("nan")])
def test_an_eps_that_the_operator_refuses_runs_the_own_forward(module, name, eps):
    module = copy.deepcopy(module)
    oxiwarp.patch(module, cpu_kernels=True)
    setattr(module, name, eps)
    x = torch.randn(5, 64)
    y = module(x)
    oxiwarp.unpatch(module)
    assert torch.equal(y, module(x)) or (eps != eps and y.isnan().all() and module(x).isnan().all())


def test_attention_by_itself():
    """If the user calls `patch` on an attention module, the processor of this module is replaced too.

    The names in the report are relative to the attention module.
    """
    attention = ltx().transformer_blocks[0].attn1
    report = oxiwarp.patch(attention)
    assert {"processor", "norm_q", "norm_k"} <= set(report.names)
    assert [row.reason for row in report if row.op == "rms_norm"] == ["used where ltx.attention runs its own"]
    oxiwarp.unpatch(attention)
    assert oxiwarp.patch(attention, only="processor").replaced == 1


def test_report():
    """The report has one row per class and status, e.g. "replaced".

    The report as plain text and the report as a table of the library rich contain the same rows.
    """
    from rich.console import Console

    model = net()
    model.odd_RMSNorm = type("OddRMSNorm", (nn.Module,), {"forward": lambda self, x, scale: x})()
    model.requires_grad_()
    report = oxiwarp.patch(model)
    assert [(row.count, row.status) for row in report] == [(1, "replaced")] * 4 + [(1, "left")]
    assert {row.op for row in report if row.status == "replaced"} == {"rms_norm"}
    assert {row.exactness for row in report if row.status == "replaced"} == {"same roundings"}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report)
    for text in (str(report), console.export_text()):
        for part in ("4 modules replaced, 1 left", "BeforeWeightRMSNorm × 1", "its forward takes (x, scale)"):
            assert part in text, part
    assert "oxiwarp" in repr(model.before)


def test_time_of_patch():
    """`patch` of FLUX.1 at its published size takes at most 0.3 s of CPU time, although nothing is cached."""
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        model = diffusers.FluxTransformer2DModel(guidance_embeds=True)
    times = []
    for _ in range(3):
        for cached in (rewritten_from, found_for, fingerprint):
            cached.cache_clear()
        started = time.process_time()
        oxiwarp.patch(model)
        times.append(time.process_time() - started)
        oxiwarp.unpatch(model)
    assert min(times) <= 0.3, times
