"""Tests of how `patch` recognises an RMSNorm. `patch` calls the module with a random tensor, and compares the
result with formulas that round in different places."""

import importlib
from types import MethodType

import pytest
import torch
from models import BeforeWeightRMSNorm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import oxiwarp
from oxiwarp.patching import class_swap
from oxiwarp.patching.norms import forward as norms
from oxiwarp.patching.norms import recognise as recognise_module
from oxiwarp.patching.norms.probe import probe
from oxiwarp.patching.norms.recognise import Formula, Unsuitable, recognise

ONCE, OFFSET, BEFORE = Formula(True, 0.0, False), Formula(True, 1.0, False), Formula(True, 0.0, True)
NONE = Formula(False, 0.0, False)
LM = "transformers.models"

# Each entry: module, class, constructor arguments, and the formula that `patch` should recognise in bfloat16.
KNOWN = [
    ("torch.nn", "RMSNorm", (96, 1e-6), ONCE),
    ("torch.nn", "RMSNorm", (96,), ONCE),
    ("torch.nn", "RMSNorm", (96, 1e-6, False), NONE),
    ("diffusers.models.normalization", "RMSNorm", (96, 1e-6), BEFORE),
    ("diffusers.models.normalization", "RMSNorm", (96, 1e-6, False), NONE),
    ("diffusers.models.normalization", "MochiRMSNorm", (96, 1e-6), ONCE),
    (f"{LM}.llama.modeling_llama", "LlamaRMSNorm", (96,), BEFORE),
    (f"{LM}.mistral.modeling_mistral", "MistralRMSNorm", (96,), BEFORE),
    (f"{LM}.qwen2.modeling_qwen2", "Qwen2RMSNorm", (96,), BEFORE),
    (f"{LM}.qwen3.modeling_qwen3", "Qwen3RMSNorm", (96,), BEFORE),
    (f"{LM}.llama4.modeling_llama4", "Llama4TextRMSNorm", (96,), BEFORE),
    (f"{LM}.t5.modeling_t5", "T5LayerNorm", (96,), BEFORE),
    (f"{LM}.umt5.modeling_umt5", "UMT5LayerNorm", (96,), BEFORE),
    (f"{LM}.gemma.modeling_gemma", "GemmaRMSNorm", (96,), OFFSET),
    (f"{LM}.gemma2.modeling_gemma2", "Gemma2RMSNorm", (96,), OFFSET),
    (f"{LM}.gemma3.modeling_gemma3", "Gemma3RMSNorm", (96,), OFFSET),
    (f"{LM}.qwen3_next.modeling_qwen3_next", "Qwen3NextRMSNorm", (96,), OFFSET),
    (f"{LM}.gemma3n.modeling_gemma3n", "Gemma3nRMSNorm", (96,), ONCE),
    (f"{LM}.gemma4.modeling_gemma4", "Gemma4RMSNorm", (96,), ONCE),
    (f"{LM}.gemma4.modeling_gemma4", "Gemma4RMSNorm", (96, 1e-6, False), NONE),
    (f"{LM}.olmo2.modeling_olmo2", "Olmo2RMSNorm", (96,), ONCE),
    (f"{LM}.gpt_oss.modeling_gpt_oss", "GptOssRMSNorm", (96,), ONCE),
    (f"{LM}.llama4.modeling_llama4", "Llama4TextL2Norm", (1e-6,), NONE),
    ("diffusers.models.transformers.transformer_stable_audio3", "StableAudio3RMSNorm", (96,), ONCE),
]


def load(module, name):
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"not in this version: {error}")


@pytest.mark.parametrize(("module", "name", "arguments", "formula"), KNOWN)
def test_known(module, name, arguments, formula):
    formulas, eps_name = recognise(load(module, name)(*arguments))
    weight = None if formula is NONE else torch.bfloat16
    assert (
        formulas[torch.bfloat16, weight] == formula
        and formulas[torch.float16, torch.float16 if weight else None] == formula
    )
    assert (torch.float32, torch.float32 if weight else None) in formulas
    assert eps_name in ("eps", "variance_epsilon")
    # For a float32 weight and a 16-bit input, there is a kernel only if the norm casts its result back to 16
    # bits. There is no kernel for norms that return float32.
    assert ((torch.bfloat16, torch.float32) in formulas) == (formula in (ONCE, OFFSET))


@pytest.mark.parametrize(
    ("module", "name", "arguments", "reason"),
    [
        ("diffusers.models.normalization", "RMSNorm", (96, 1e-6, True, True), "it has bias besides a weight"),
        ("torch.nn", "RMSNorm", ((4, 8), 1e-6), r"its weight has shape \[4, 8\], expected one dimension"),
        ("diffusers.models.normalization", "LuminaRMSNormZero", (96, 1e-6, True), "its forward takes"),
    ],
)
def test_left(module, name, arguments, reason):
    with pytest.raises(Unsuitable, match=reason):
        recognise(load(module, name)(*arguments))


def norm_class(forward, name="OddRMSNorm", **attributes):
    def init(self):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(64))
        self.eps = 1e-6
        for key, value in attributes.items():
            setattr(self, key, value)

    return type(name, (nn.Module,), {"__init__": init, "forward": forward})


def chain(x, eps):
    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


def good(self, x):
    return (self.weight * chain(x, self.eps)).type_as(x)


class GammaRMSNorm(nn.Module):
    """A norm whose weight is not named `weight`, as in Stable Audio 3."""

    def __init__(self):
        super().__init__()
        self.gamma, self.eps = nn.Parameter(torch.randn(64)), 1e-6

    def forward(self, x):
        return (chain(x, self.eps) * self.gamma.float()).type_as(x)


class GammaHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_norm = GammaRMSNorm()

    def forward(self, q):
        q = self.q_norm(q)
        return q


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cls", [GammaRMSNorm, GammaHeads])
def test_weights_of_another_name(cls, dtype):
    """If a norm has only one parameter, `patch` uses it as the weight, whatever its name is. This also holds
    for norms of queries."""
    model, x = cls().to(dtype), torch.randn(2, 5, 3, 64).to(dtype)
    gamma = dict(model.named_parameters())["gamma" if cls is GammaRMSNorm else "q_norm.gamma"]
    report = oxiwarp.patch(model, cpu_kernels=True)
    for _ in range(2):
        exact = chain(x.double(), 1e-6).double() * gamma.double()
        made = model(x).double()
        assert ((made - exact).abs() <= 2 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()
        gamma.data.normal_()
    assert report.ran().kernels == 2 and report.ran().fallbacks == 0


def test_two_parameters():
    """If a norm has two parameters and neither is named `weight`, `patch` skips the norm, because either
    could be the weight."""
    module = GammaRMSNorm()
    module.delta = nn.Parameter(torch.zeros(64))
    with pytest.raises(Unsuitable, match="it has delta, gamma besides a weight"):
        recognise(module)


def failing(self, x):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("what", "forward"),
    [
        ("another formula", lambda self, x: (chain(x, self.eps) * self.weight.float().square()).type_as(x)),
        (
            "no mean",
            lambda self, x: (x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + self.eps)).type_as(x),
        ),
        ("eps outside", lambda self, x: (x / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + self.eps)).type_as(x)),
        ("a layer norm", lambda self, x: nn.functional.layer_norm(x, (64,))),
        ("float32 out", lambda self, x: chain(x, self.eps).double()),
        ("an error", failing),
        ("no tensor", lambda self, x: (x,)),
        ("another shape", lambda self, x: x.sum(-1)),
        ("a weight without its sign", lambda self, x: (self.weight.abs() * chain(x, self.eps)).type_as(x)),
        ("a clamped weight", lambda self, x: (self.weight.clamp(-3, 3) * chain(x, self.eps)).type_as(x)),
        ("a clamped input", lambda self, x: (self.weight * chain(x.clamp(-1e3, 1e3), self.eps)).type_as(x)),
    ],
)
def test_odd_formulas(what, forward):
    with pytest.raises(Unsuitable, match="rounds in a way that no kernel has"):
        recognise(norm_class(forward)())


@pytest.mark.parametrize("eps", [1e-6, 1e-8, 1e-12])
def test_small_eps_outside(eps):
    """A norm that adds eps outside of the square root is not recognised as an RMSNorm.

    If eps is small, the difference to an RMSNorm is visible in 16 bits only for rows whose values are about
    as small as eps.
    """
    own = lambda self, x: (x.float() / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + self.eps)).type_as(x)  # noqa: E731
    with pytest.raises(Unsuitable, match="rounds in a way that no kernel has"):
        recognise(norm_class(own, eps=eps)())


def channels_first(self, x):
    return good(self, x) if x.dim() < 4 else good(self, x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, x: good(self, x) * (2 if self.training else 1), "between training and evaluation"),
        (channels_first, "for a tensor of rank 4"),
        (lambda self, x: good(self, x) if x.dim() > 2 else x, "for a tensor of rank 1"),
        (lambda self, x: good(self, x) if x.dim() != 2 else x, "for a tensor of rank 2"),
        (lambda self, x: good(self, x) if x.dim() != 5 else x, "for a tensor of rank 5"),
    ],
)
def test_depends_on_more_than_rows(forward, reason):
    with pytest.raises(Unsuitable, match=reason):
        recognise(norm_class(forward)())


@pytest.mark.parametrize(
    ("eps", "reason"),
    [
        ("1e-6", "its eps is a str, expected a number"),
        (torch.tensor(1e-6), "its eps is a Tensor, expected a number"),
        ([1e-6], "its eps is a list, expected a number"),
        (-1e-7, "its eps is -1e-07, expected a finite number of 0 or more"),
        (float("inf"), "its eps is inf, expected a finite number of 0 or more"),
    ],
)
def test_eps_that_the_operator_refuses(eps, reason):
    """`patch` skips a norm whose eps the operator `rms_norm` rejects.

    The original `forward` accepts this eps, but a call of the operator would raise an error.
    """
    with pytest.raises(Unsuitable, match=reason):
        recognise(norm_class(lambda self, x: (self.weight * chain(x, float(self.eps))).type_as(x), eps=eps)())


def test_weights_of_other_widths():
    with pytest.raises(Unsuitable, match="its weight is a single number"):
        recognise(norm_class(good, weight=nn.Parameter(torch.ones(1)))())
    bare = norm_class(lambda self, x: chain(x, self.eps).type_as(x), weight=None, normalized_shape=64)
    assert recognise(bare())[0][torch.bfloat16, None] == NONE
    # under ZeRO-3, a weight is empty between calls
    module = norm_class(good, weight=nn.Parameter(torch.ones(0)))()
    oxiwarp.patch(module, cpu_kernels=True)
    module.weight.data = torch.randn(96)
    x = torch.randn(3, 96)
    assert torch.equal(module(x), oxiwarp.rms_norm(x, module.weight))


def test_forward_replaced_in_the_class():
    """`patch` recognises a new `forward` that third-party code, such as a kernel library, has assigned to a
    norm class.

    For calls without a kernel, the patched module runs the new `forward`.
    """
    cls = norm_class(good)
    oxiwarp.patch(cls(), cpu_kernels=True)
    cls.forward = lambda self, x: ((1.0 + self.weight.float()) * chain(x, self.eps)).type_as(x)
    module, x = cls(), torch.randn(3, 64)
    own = module(x)
    oxiwarp.patch(module, cpu_kernels=True)
    torch.testing.assert_close(module(x), own)
    with torch.autocast("cpu", torch.bfloat16):  # autocast runs the original forward
        assert torch.equal(module(x), own)


def test_rounded_offset_is_float32_only():
    """The kernel computes `1 + weight` in float32.

    Some norms round `1 + weight` to the dtype of the weight. `patch` recognises such a norm only if its
    weight is float32.
    """
    cls = norm_class(lambda self, x: (chain(x, self.eps) * (1.0 + self.weight).float()).type_as(x))
    formulas, _ = recognise(cls())
    assert formulas[torch.float32, torch.float32] == OFFSET and (torch.bfloat16, torch.bfloat16) not in formulas
    with pytest.raises(Unsuitable, match="for torch.bfloat16 weights"):
        recognise(cls().bfloat16())
    report = oxiwarp.patch(nn.Sequential(cls()))
    assert [row.reason for row in report] == ["its own forward for bfloat16, float16"]


def test_other_reasons():
    with pytest.raises(Unsuitable, match="neither eps nor variance_epsilon"):
        module = norm_class(good)()
        del module.eps
        recognise(module)
    with pytest.raises(Unsuitable, match="made of other modules"):
        recognise(norm_class(good, child=nn.Identity())())
    with pytest.raises(Unsuitable, match="it has gamma besides a weight"):
        recognise(norm_class(good, gamma=nn.Parameter(torch.ones(4)))())
    with pytest.raises(Unsuitable, match="its forward takes"):
        recognise(norm_class(lambda self, *rows: rows)())
    with pytest.raises(Unsuitable, match="neither a parameter nor a buffer"):
        module = norm_class(good)()
        del module.weight
        module.weight = torch.ones(64)
        recognise(module)


def test_probe_only_reads():
    """While `patch` recognises a norm, it does not change the state of random generators and calls no hook.

    `patch` also recognises a norm whose weight is on the meta device.
    """
    state = torch.random.get_rng_state()
    with torch.device("meta"):
        module = nn.RMSNorm(48, eps=1e-6)
        assert recognise(module)[0][torch.bfloat16, torch.bfloat16] == ONCE
    assert module.weight.is_meta and torch.equal(state, torch.random.get_rng_state())
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        assert recognise(nn.RMSNorm(40, eps=1e-6))[0][torch.float32, torch.float32] == ONCE
    seen = []
    module.register_forward_hook(lambda *_: seen.append(1))
    recognise(module)
    assert not seen, "a probe is not a call"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_default_dtype(dtype):
    """torch's default dtype does not affect the recognition."""
    usual = recognise(nn.RMSNorm(56, eps=1e-6))
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # Use a width that no earlier test used, so that no cache has a result for it.
        found = recognise(nn.RMSNorm(88, eps=1e-6, dtype=torch.float32))
    finally:
        torch.set_default_dtype(before)
    assert found == usual


class GainRMSNorm(nn.Module):
    """A norm whose result depends on a private attribute and on a method that `forward` calls."""

    def __init__(self, gain=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))
        self.eps = 1e-6
        self._gain = gain

    def scale(self):
        return self.weight.float() + self._gain

    def forward(self, x):
        return (self.scale() * chain(x, self.eps)).type_as(x)


def assert_own(module, x):
    """Check that a `GainRMSNorm` is patched and returns the result of its original `forward`."""
    assert class_swap.is_replaced(module)
    torch.testing.assert_close(module(x), GainRMSNorm.forward(module, x))


def test_private_attributes_make_another_formula():
    x, model = torch.randn(5, 64), nn.ModuleList([GainRMSNorm(), GainRMSNorm(1.0)])
    assert oxiwarp.patch(model, cpu_kernels=True).replaced == 2
    for module in model:
        assert_own(module, x)


def test_methods_on_the_instance_make_another_formula():
    x, model = torch.randn(5, 64), nn.ModuleList([GainRMSNorm(), GainRMSNorm()])
    model[1].scale = MethodType(lambda self: 1.0 + self.weight.float(), model[1])
    assert oxiwarp.patch(model, cpu_kernels=True).replaced == 2
    for module in model:
        assert_own(module, x)


def test_methods_replaced_in_the_class_between_two_patches(monkeypatch):
    x, first, second = torch.randn(5, 64), GainRMSNorm(), GainRMSNorm()
    oxiwarp.patch(first, cpu_kernels=True)
    monkeypatch.setattr(GainRMSNorm, "scale", lambda self: 1.0 + self.weight.float())
    oxiwarp.patch(second, cpu_kernels=True)
    assert_own(second, x)
    oxiwarp.patch(first, cpu_kernels=True)
    assert_own(first, x)


def test_patching_again_probes_again():
    x, module = torch.randn(5, 64), GainRMSNorm()
    oxiwarp.patch(module, cpu_kernels=True)
    module._gain = 1.0
    oxiwarp.patch(module, cpu_kernels=True)
    assert_own(module, x)


def test_equal_norms_are_probed_once(monkeypatch):
    probed = []
    monkeypatch.setattr(recognise_module, "probe", lambda *args: probed.append(args) or probe(*args))
    oxiwarp.patch(nn.ModuleList([GainRMSNorm() for _ in range(4)]), cpu_kernels=True)
    assert len(probed) == 1


def test_ranks_that_are_not_probed_keep_the_own_forward(monkeypatch):
    module = GainRMSNorm()
    oxiwarp.patch(module, cpu_kernels=True)
    calls, call = [], norms.call
    monkeypatch.setattr(norms, "call", lambda x, *rest: calls.append(x.dim()) or call(x, *rest))
    with torch.no_grad():
        for rank in range(1, 9):
            module(torch.ones([1] * (rank - 1) + [64]))
    assert calls == [1, 2, 3, 4, 5]


def test_the_callers_modes_do_not_take_part():
    """`patch` also recognises a norm if the user calls `patch` under FakeTensorMode.

    To recognise a norm, `patch` calls the norm. For this call, `patch` leaves FakeTensorMode, because fake
    tensors have no values.
    """
    with FakeTensorMode():
        module = GainRMSNorm()
        oxiwarp.patch(module, cpu_kernels=True)
    assert class_swap.is_replaced(module)


def test_a_probe_changes_neither_the_module_nor_the_random_state():
    def forward(self, x):
        self.seen.append(x.shape)
        self.last["x"] = nn.functional.dropout(x, 0.5)
        return good(self, x)

    module = norm_class(forward, seen=[], last={})()
    state = torch.get_rng_state()
    oxiwarp.patch(module, cpu_kernels=True)
    assert class_swap.is_replaced(module)
    assert module.seen == [] and module.last == {} and torch.equal(torch.get_rng_state(), state)


def test_a_norm_that_fsdp2_holds():
    """`patch` replaces a norm on which FSDP2's `fully_shard` was called.

    `fully_shard` gives the norm a new class, which cannot be instantiated without the arguments of
    `__init__`.
    """
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        module, x = BeforeWeightRMSNorm(64), torch.randn(5, 64)
        weight = nn.init.normal_(module.weight).clone()
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        oxiwarp.patch(module, cpu_kernels=True)
        assert class_swap.is_replaced(module)
        torch.testing.assert_close(module(x), oxiwarp.rms_norm(x, weight, 1e-6))
    finally:
        torch.distributed.destroy_process_group()
