"""Tests of `patch` on language models of transformers: Llama and similar models, Falcon, and T5.

They check values, gradients, the KV cache, and torch.compile.
"""

from collections import Counter

import pytest
import torch
from helpers import random

import oxiwarp
from oxiwarp.patching.fusions.transformers import decoder, decoder_attention

SIZES = dict(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
# Maps a model name to the number of calls of each operator. The calls are counted in one forward pass of a
# patched model with two layers.
CALLS = {
    "Llama": dict(add_rms_norm=2, rope=2, silu_and_mul=2),
    "Mistral": dict(add_rms_norm=2, rope=2, silu_and_mul=2),
    "Qwen2": dict(add_rms_norm=2, rope=2, silu_and_mul=2),
    "Qwen3": dict(add_rms_norm=2, qk_norm_rope=2, silu_and_mul=2),
    "Gemma": dict(add_rms_norm=2, rope=2, gelu_tanh_and_mul=2),
    "Gemma2": dict(add_rms_norm=4, rope=2, gelu_tanh_and_mul=2),
    "Gemma3Text": dict(add_rms_norm=4, rope=2, gelu_tanh_and_mul=2),
    "Phi3": dict(add_rms_norm=2, rope=2, silu_and_mul=2),
    "Granite": dict(add_rms_norm=4, rope=2, silu_and_mul=2),
    "Mixtral": dict(add_rms_norm=4, rope=2),
}
IDS = torch.arange(24).view(2, 12)


def build(name, dtype=torch.float32, device="cpu", **options):
    """Build a small seeded model whose norm weights differ from 1."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(SIZES | options))
    model = getattr(transformers, f"{name}Model")(config).eval().requires_grad_(False)
    for seed, (key, parameter) in enumerate(model.named_parameters()):
        if "norm" in key:
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.2))
    return model.to(dtype).to(device)


@pytest.fixture
def calls(monkeypatch):
    """Count how often patched modules call each oxiwarp operator, by operator name."""
    seen = Counter()

    def spy(name, op):
        def call(*args, **kwargs):
            seen[name] += 1
            return op(*args, **kwargs)

        return call

    attentions = (decoder_attention, "rope"), (decoder_attention, "qk_norm_rope")
    for module, name in ((decoder, "add_rms_norm"), (oxiwarp.ops, "add_rms_norm"), *attentions):
        monkeypatch.setattr(module, name, spy(name, getattr(module, name)))
    gated = {key: spy(op.__name__, op) for key, op in decoder.GATED.items()}
    monkeypatch.setattr(decoder, "GATED", gated)
    return seen


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models(name, dtype, device, calls):
    """A patched model calls the expected operators and matches the unpatched model within rounding errors.

    oxiwarp and torch sum the elements of a row in different orders, so rounding errors remain. After
    `unpatch`, the result equals the unpatched model's result bit for bit.
    """
    model, ids = build(name, dtype, device), IDS.to(device)
    stock = model(input_ids=ids).last_hidden_state
    oxiwarp.patch(model, cpu_kernels=True)
    y = model(input_ids=ids).last_hidden_state
    assert calls == CALLS[name]
    off = (y.double() - stock.double()).abs()
    assert off.max() <= (1e-5 if dtype == torch.float32 else 0.13) and off.mean() <= 1e-3
    oxiwarp.unpatch(model)
    assert torch.equal(model(input_ids=ids).last_hidden_state, stock)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2", "Phi3"])
def test_cache(name, device):
    """A patched model computes the same hidden state of the last token with and without a KV cache."""
    model, ids = build(name, device=device), IDS.to(device)
    oxiwarp.patch(model, cpu_kernels=True)
    whole = model(input_ids=ids).last_hidden_state
    prompt = model(input_ids=ids[:, :-1], use_cache=True)
    last = model(input_ids=ids[:, -1:], past_key_values=prompt.past_key_values, use_cache=True)
    assert torch.allclose(last.last_hidden_state, whole[:, -1:], rtol=0, atol=1e-5)


def test_masked_and_partial():
    """With a padding mask, patched Llama and Phi-3 models match the unpatched models.

    In the Phi-3 model of this test, RoPE rotates only half of the columns of each head.
    """
    for model in (build("Llama"), build("Phi3", partial_rotary_factor=0.5)):
        mask = torch.ones_like(IDS)
        mask[0, :4] = 0
        stock = model(input_ids=IDS, attention_mask=mask).last_hidden_state
        report = oxiwarp.patch(model, cpu_kernels=True)
        y = model(input_ids=IDS, attention_mask=mask).last_hidden_state
        assert report.left == 0 and torch.allclose(y, stock, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_compile(name):
    """torch.compile captures a patched model without a graph break, and the result matches eager mode."""
    model = build(name)
    oxiwarp.patch(model, cpu_kernels=True)
    eager = model(input_ids=IDS).last_hidden_state
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    # The results of the compiled model and of eager mode may differ by rounding errors.
    assert torch.allclose(compiled(input_ids=IDS).last_hidden_state, eager, rtol=0, atol=1e-5)


def test_training():
    """The gradients of all parameters of a patched model match the gradients of the unpatched model."""
    stock, patched = (build("Qwen3").requires_grad_(True) for _ in range(2))
    oxiwarp.patch(patched, cpu_kernels=True)
    with torch.enable_grad():
        for model in (stock, patched):
            model(input_ids=IDS).last_hidden_state.square().mean().backward()
    for (name, expected), parameter in zip(stock.named_parameters(), patched.parameters(), strict=True):
        assert torch.allclose(parameter.grad, expected.grad, rtol=1e-3, atol=1e-5), name


def test_left():
    """`patch` skips an MLP whose activation is not supported, and a decoder layer whose source code it does
    not know. The report of `patch` gives the reasons."""
    reasons = {row.reason for row in oxiwarp.patch(build("Llama", hidden_act="relu"), cpu_kernels=True)}
    assert "its activation is ReLU" in reasons
    report = oxiwarp.patch(build("Olmo2"), cpu_kernels=True)
    assert any("is not the one that decoder.layer knows" in row.reason for row in report)


def test_without_its_norm(calls):
    """If the user excludes norms from `patch`, a patched layer calls oxiwarp's operator `rope`, but not
    `add_rms_norm`."""
    model = build("Llama")
    stock = model(input_ids=IDS).last_hidden_state
    oxiwarp.patch(model, skip="*RMSNorm", cpu_kernels=True)
    assert torch.allclose(model(input_ids=IDS).last_hidden_state, stock, rtol=0, atol=1e-5)
    assert calls["add_rms_norm"] == 0 and calls["rope"] == 2


def test_another_norm(calls):
    """If a norm of a patched layer was replaced by a norm of another class, the layer runs its original
    `forward`."""
    stock, model = build("Llama"), build("Llama")
    oxiwarp.patch(model, cpu_kernels=True)
    for layers in (stock.layers, model.layers):
        layers[0].post_attention_layernorm = torch.nn.LayerNorm(64).eval()
    oxiwarp.patch(model.layers[0].post_attention_layernorm, cpu_kernels=True)
    y, right = (x(input_ids=IDS).last_hidden_state for x in (model, stock))
    assert torch.allclose(y, right, rtol=0, atol=1e-5) and calls["add_rms_norm"] == 1


# Maps a variant of Falcon to two values: its configuration options, and the number of `rope` calls. The calls
# are counted in one forward pass of a model with two layers.
FALCONS = {
    "7B": (dict(multi_query=True), 2),
    "40B": (dict(new_decoder_architecture=True, num_kv_heads=2), 2),
    "heads of keys": (dict(multi_query=False, bias=True), 2),
    "RW": (dict(alibi=True, multi_query=False, parallel_attn=False, bias=True), 0),
}


def build_falcon(kind, dtype=torch.float32, device="cpu", **options):
    """Build a small seeded Falcon model with a language-model head."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
    model = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes, **FALCONS[kind][0], **options))
    for seed, parameter in enumerate(model.requires_grad_(False).parameters()):
        parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.1))
    return model.eval().to(dtype).to(device)


@pytest.mark.parametrize("kind", FALCONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_falcon(kind, dtype, device):
    """If the user excludes LayerNorms from `patch`, a patched Falcon returns the hidden states of the
    unpatched model bit for bit.

    If LayerNorms are patched too, Falcon still generates the same tokens as the unpatched model.
    """
    model, ids = build_falcon(kind, dtype, device), IDS.to(device)
    run = lambda: model(input_ids=ids, output_hidden_states=True).hidden_states[-1]  # noqa: E731
    tokens = lambda: model.generate(ids[:1], max_new_tokens=4, do_sample=False)  # noqa: E731
    stock, own_tokens = run(), tokens()
    report = oxiwarp.patch(model, skip="LayerNorm", cpu_kernels=True, allow_empty=True)
    assert torch.equal(run(), stock) and report.ran().kernels == FALCONS[kind][1]
    assert {row.module_class.rpartition(".")[2] for row in report} == {"FalconAttention", "LayerNorm"}
    assert oxiwarp.patch(model, cpu_kernels=True).left == 0
    assert torch.allclose(run(), stock, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.13)
    assert torch.equal(tokens(), own_tokens)
    oxiwarp.unpatch(model)
    assert torch.equal(run(), stock)


def test_falcon_attentions():
    """A patched Falcon calls oxiwarp's `rope` with each attention implementation, and matches the unpatched
    model.

    The test also uses padding and torch.compile.
    """
    eager = build_falcon("7B", attn_implementation="eager")
    model, mask = build_falcon("7B"), torch.ones_like(IDS)
    mask[0, :4] = 0
    inputs = {"input_ids": IDS, "attention_mask": mask}
    expected = eager(**inputs).logits, model(**inputs).logits, model(input_ids=IDS).logits
    for patched, own in ((eager, expected[0]), (model, expected[1])):
        report = oxiwarp.patch(patched, cpu_kernels=True)
        assert torch.allclose(patched(**inputs).logits, own, rtol=0, atol=1e-4)
        assert sum(ran.kernels for ran in report.ran() if "rope" in ran.op) == 2
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(input_ids=IDS).logits, expected[2], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_t5(dtype, device):
    """In T5, `patch` replaces only norms. The hidden states of the encoder match the unpatched model. The
    decoder generates the same tokens as the unpatched model."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).eval().requires_grad_(False).to(dtype).to(device)
    ids = IDS.to(device)
    run = lambda: model.encoder(input_ids=ids).last_hidden_state  # noqa: E731
    tokens = lambda: model.generate(ids, max_new_tokens=4, do_sample=False)  # noqa: E731
    stock, own_tokens = run(), tokens()
    report = oxiwarp.patch(model, cpu_kernels=True)
    assert report.left == 0 and report.ops == {"rms_norm"}
    assert torch.allclose(run(), stock, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.13)
    assert torch.equal(tokens(), own_tokens)
