"""Every class of transformers that a fusion of decoders knows by its source, whatever its name."""

from types import SimpleNamespace

import pytest
import torch
from decoder_classes import known
from helpers import random

import oxiwarp
from oxiwarp.fusions.decoder_attention import is_sdpa

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
    """What attentions are called with: an implementation of the name "spy"."""
    interface, seen = pytest.importorskip("transformers").AttentionInterface, []

    def attention(module, query, key, value, mask, **options):
        seen.append(({"query": query, "key": key, "value": value, "mask": mask}, options))
        return query.transpose(1, 2).contiguous(), None

    interface.register("spy", attention)
    yield seen
    del interface._global_mapping["spy"]


def test_attention(spy):
    """Gives the attention the same arguments, by name, as the own method, of a prompt and of a token."""
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
