"""`oxiwarp.attention` as an attention implementation of transformers."""

import pytest
import torch
from helpers import random
from test_decoder import IDS, SIZES, build

from oxiwarp import transformers_attention

transformers = pytest.importorskip("transformers")
transformers_attention.register()
IMPLEMENTATIONS = ("sdpa", transformers_attention.NAME)
BF16 = torch.bfloat16


def padding():
    """Of the first row's five tokens."""
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    return mask


@pytest.mark.parametrize("padded", [False, True])
def test_models(padded, device):
    """A language model, with and without padding, against SDPA."""
    model, mask = build("Qwen3", BF16, device), padding().to(device) if padded else None
    results = []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        results.append(model(input_ids=IDS.to(device), attention_mask=mask).last_hidden_state.float())
    seen = torch.ones_like(IDS).bool() if mask is None else mask.bool()
    assert (results[0] - results[1])[seen].abs().max() <= 0.08


def test_dropout(device):
    """There is none."""
    with pytest.raises(RuntimeError, match="attention_dropout is 0.5"):
        q = random((1, 2, 4, 64), BF16, device)
        transformers_attention.forward(torch.nn.Module(), q, q, q, None, dropout=0.5)


@pytest.mark.parametrize("cache", ["StaticCache", "DynamicCache"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_caches(name, cache, device):
    """A prompt in two parts and a token after it see those before them, and no slot that is free."""
    model, ids, states = build(name, BF16, device), IDS.to(device), []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        size = {"max_cache_len": 32} if cache == "StaticCache" else {}
        kept = getattr(transformers, cache)(config=model.config, **size)
        parts = [model(input_ids=part, past_key_values=kept, use_cache=True)[0] for part in ids.split([5, 6, 1], 1)]
        states.append(torch.cat(parts, 1).float())
    assert (states[0] - states[1]).abs().max() <= 0.08


def test_shapes_of_causal(device):
    """Causal without a mask is SDPA's, with more keys than queries and with fewer."""
    q, long = (random((1, 2, tokens, 16), BF16, device, seed=tokens) for tokens in (5, 9))
    for query, key in ((q, long), (long, q), (q, q)):
        y, _ = transformers_attention.forward(torch.nn.Module(), query, key, key, None, is_causal=True)
        right = torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)
        assert (y.transpose(1, 2) - right).abs().max() <= 0.02


@pytest.mark.parametrize("padded", [False, True])
def test_generate(padded, device):
    """With a static cache, which is longer than what is in it."""
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)).to(device, BF16).eval()
    mask = padding() if padded else torch.ones_like(IDS)
    options = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, cache_implementation="static")
    made = []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        made.append(
            model.generate(
                IDS.to(device),
                attention_mask=mask.to(device),
                output_logits=True,
                return_dict_in_generate=True,
                disable_compile=True,
                **options,
            )
        )
    assert torch.equal(made[0].sequences, made[1].sequences)
    for stock, ours in zip(made[0].logits, made[1].logits, strict=True):
        assert (stock - ours).abs().max() <= 0.02
