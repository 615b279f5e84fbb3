"""Tests of `patch` on every decoder layer and attention class of transformers that it supports."""

import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from decoder_classes import known
from helpers import random
from test_decoder import SIZES
from torch import nn

import oxiwarp
from oxiwarp.patching.fusions.core import registry
from oxiwarp.patching.fusions.transformers.decoder_attention import is_sdpa

CONFIG = dict(
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    attention_dropout=0.0,
    attention_bias=False,
    sliding_window=7,
    layer_types=["sliding_attention"],
    use_sliding_window=True,
    max_window_layers=0,
    query_pre_attn_scalar=16,
    attn_logit_softcapping=5.0,
    rms_norm_eps=1e-6,
    is_decoder=True,
    qkv_bias=False,
    attention_multiplier=0.25,
    use_bidirectional_attention=False,
    _attn_implementation="spy",
    _attn_implementation_internal="sdpa",
    rope_parameters={},
)


@pytest.fixture
def spy():
    """Register an attention implementation named "spy" in transformers.

    The implementation records its calls. Yield the list of these calls.
    """
    interface, seen = pytest.importorskip("transformers").AttentionInterface, []

    def attention(module, query, key, value, mask, **options):
        seen.append(({"query": query, "key": key, "value": value, "mask": mask}, options))
        return query.transpose(1, 2).contiguous(), None

    interface.register("spy", attention)
    yield seen
    del interface._global_mapping["spy"]


def test_attention(spy):
    """A patched attention module passes the same arguments to the attention function as the unpatched module.

    One input is a prompt, and another is a single token.
    """
    for name, cls in known("decoder.attention").items():
        torch.manual_seed(0)
        module = cls(SimpleNamespace(**CONFIG), 0).eval().requires_grad_(False)
        for tokens in (3, 1):
            x, cos, sin = (random((2, tokens, n), torch.float32, "cpu", seed=i) for i, n in enumerate((64, 16, 16)))
            calls = dict(position_embeddings=(cos, sin), attention_mask=None, use_cache=True)
            oxiwarp.unpatch(module)
            module(x, **calls)
            oxiwarp.patch(module, cpu_kernels=True)
            module(x, **calls)
            (own, options), (ours, our_options) = spy[-2:]
            assert our_options == options, name
            assert all(torch.allclose(own[key], ours[key], rtol=0, atol=1e-5) for key in ("query", "key", "value")), (
                name
            )
            assert ours["mask"] is own["mask"] is None
        assert is_sdpa(module, {}) is ("softcap" not in options), name
    assert len(spy) >= 4 * 40


# Configuration values for mixture-of-experts layers, in addition to `SIZES`.
EXPERTS = dict(
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    moe_num_experts=4,
    num_experts_per_tok=2,
    moe_k=2,
    moe_topk=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    mlp_layer_types=["sparse"],
)
# Maps the name of a layer class to the name of its configuration class. It contains only layer classes whose
# constructor annotation and name do not determine the configuration class.
CONFIGS = {
    "Qwen3OmniMoeThinkerTextDecoderLayer": "Qwen3OmniMoeTextConfig",
    "Qwen3OmniMoeTalkerDecoderLayer": "Qwen3OmniMoeTalkerTextConfig",
    "Step3p7DecoderLayer": "Step3p7TextConfig",
}
LEFT = {
    "post_attention_layernorm is of class LayerNorm": {"Starcoder2", "Jais2", "GradiumPhononTTS", "PocketTTS"},
    "post_attention_layernorm is of class OlmoLayerNorm": {"Olmo"},
    "post_attention_layernorm has no weight of its own": {"HrmText", "NanoChat", "AXK2"},
}


def configuration(name, cls):
    """Build a small configuration for a decoder layer.

    Sizes are set as attributes after construction, because the constructors of some configuration classes
    check their arguments and may reject such sizes.
    """
    module = importlib.import_module(cls.__module__.replace("modeling_", "configuration_"))
    annotated = inspect.signature(cls.__init__).parameters["config"].annotation
    annotated = getattr(annotated, "__name__", annotated)
    family = name.removesuffix("DecoderLayer")
    names = (CONFIGS.get(name), annotated, f"{family}Config", f"{family}TextConfig")
    config = next(getattr(module, name) for name in names if name is not None and hasattr(module, name))()
    for key, value in {**SIZES, **EXPERTS}.items():
        setattr(config, key, value)
    return config


class Attention(nn.Module):
    """Stand-in for the attention modules of all layers.

    The original attention modules are not used, because some of them need position embeddings of a different
    size.
    """

    def forward(self, hidden_states, **options):
        """Ignore all arguments except `hidden_states`. Every layer passes all arguments by keyword."""
        return hidden_states * 0.5 + 0.25, None


def test_layers():
    """A patched decoder layer of every supported class matches the unpatched layer within rounding errors.

    For most layers, `patch` replaces `forward` by a prepared method, called a fusion. In the layers that
    `LEFT` lists, the norm after the attention is not an RMSNorm, or it has no weight. In these layers,
    `patch` rewrites the source code of the methods instead.
    """
    left = {}
    for name, cls in known("decoder.layer").items():
        layer = cls(configuration(name, cls), 0).eval().requires_grad_(False)
        layer.self_attn = Attention()
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.2))
        x = random((2, 5, 64), torch.float32, "cpu")
        own = layer(x)
        for row in oxiwarp.patch(layer, cpu_kernels=True):
            if row.module_class.endswith(f".{name}") and row.reason.startswith("its "):
                left.setdefault(row.reason.removeprefix("its "), set()).add(name.removesuffix("DecoderLayer"))
        assert torch.allclose(layer(x), own, rtol=1e-5, atol=1e-5), name
        with torch.enable_grad():
            assert torch.allclose(layer(x), own, rtol=1e-5, atol=1e-5), name
    assert left == LEFT


@pytest.mark.parametrize("name", ["T5EncoderModel", "CLIPTextModel", "CLIPVisionModel", "BertModel", "WhisperModel"])
def test_models_that_are_no_decoders(name):
    """The report of `patch` does not list classes of encoder models as skipped.

    Nevertheless, names such as `T5Attention` and `CLIPMLP` match the patterns by which `patch` finds decoder
    classes.
    """
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    sizes = dict(num_hidden_layers=1, num_layers=1, encoder_layers=1, decoder_layers=1)
    with torch.device("meta"):
        report = oxiwarp.patch(cls(cls.config_class(**sizes)))
    assert report.replaced > 0 and report.left == 0, str(report)


def test_known_models_of_another_version(monkeypatch):
    """If the source code of all supported classes of a model has changed, `patch` reports these classes as
    skipped.

    For example, an update of transformers can change all classes of Qwen2.
    """
    from transformers.models.qwen2 import modeling_qwen2 as source

    config = source.Qwen2Config(**SIZES)
    for cls in (source.Qwen2Attention, source.Qwen2MLP, source.Qwen2DecoderLayer):
        monkeypatch.setattr(cls, "forward", lambda self, x: x)
    registry.found_for.cache_clear()
    with torch.device("meta"):
        report = oxiwarp.patch(source.Qwen2Model(config))
    registry.found_for.cache_clear()
    assert {row.module_class.rpartition(".")[2] for row in report if "is not the one that decoder" in row.reason} == {
        "Qwen2Attention",
        "Qwen2MLP",
        "Qwen2DecoderLayer",
    }
