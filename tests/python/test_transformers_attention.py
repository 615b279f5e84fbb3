"""`oxiwarp.attention` as an attention implementation of transformers."""

import pytest
import torch
from helpers import random
from test_decoder import IDS, SIZES, build

import oxiwarp
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


def test_refused(device):
    """What the kernels do not have and what would change the result."""
    q, module = random((1, 2, 4, 64), BF16, device), torch.nn.Module()
    bias = torch.zeros(1, 2, 4, 4, device=device)
    transformers_attention.forward(module, q, q, q, None, s_aux=None, cache=None, position_ids=q, position_bias=bias)
    for name, value, reason in (
        ("dropout", 0.5, "attention_dropout is 0.5"),
        ("s_aux", q[0, :, 0, 0], "the model gives s_aux, and the attention has no sinks"),
        ("cache", object(), "the model gives cache, and the attention has no paged cache"),
        ("position_bias", bias.requires_grad_(), "position_bias needs a gradient"),
    ):
        with pytest.raises(RuntimeError, match=reason), torch.enable_grad():
            transformers_attention.forward(module, q, q, q, None, **{name: value})


def test_sinks():
    """Of GPT-OSS: refused, not left out."""
    config = transformers.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.GptOssModel(config).eval().to(BF16)
    model.set_attn_implementation(transformers_attention.NAME)
    with pytest.raises(RuntimeError, match="no sinks"):
        model(input_ids=IDS)


@pytest.mark.parametrize("padded", [False, True])
def test_position_bias(padded, device):
    """T5: of the encoder, and causal ones of the decoder, with and without keys of earlier tokens."""
    sizes = dict(vocab_size=64, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    model = transformers.T5Model(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()
    for seed, (name, parameter) in enumerate(model.named_parameters()):
        if "relative" in name:
            parameter.data = random(parameter.shape, torch.float32, "cpu", seed=seed, scale=3)
    model, ids = model.to(device, BF16), IDS.to(device)
    mask, states = padding().to(device) if padded else None, []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        encoded = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        seen = dict(encoder_outputs=(encoded,), attention_mask=mask)
        whole = model(**seen, decoder_input_ids=ids, use_cache=False).last_hidden_state
        kept = model(**seen, decoder_input_ids=ids[:, :7], use_cache=True).past_key_values
        parts = [
            model(**seen, decoder_input_ids=part, past_key_values=kept, use_cache=True).last_hidden_state
            for part in ids[:, 7:].split([4, 1], 1)
        ]
        encoded = encoded[torch.ones_like(ids).bool() if mask is None else mask.bool()]
        states.append([x.float() for x in (encoded, whole, *parts)])
    for stock, ours in zip(*states, strict=True):
        assert (stock - ours).abs().max() <= 0.03 * stock.abs().max()


def test_masks_and_bias(device):
    """As transformers puts them together, for each kind of mask."""
    sdpa = pytest.importorskip("transformers.integrations.sdpa_attention").sdpa_attention_forward
    q, k, module = *(random((1, 2, tokens, 16), BF16, device, seed=tokens) for tokens in (5, 9)), torch.nn.Module()
    bias, more = (random((1, 2, 5, 9), BF16, device, seed=seed, scale=2) for seed in (1, 2))
    for mask in (None, more > -1, more):
        for causal in (False, True):
            options = dict(is_causal=causal, position_bias=bias)
            y, _ = transformers_attention.forward(module, q, k, k, mask, **options)
            right, _ = sdpa(module, q, k, k, mask, **options)
            assert (y - right).abs().max() <= 0.02


@pytest.mark.parametrize("cache", ["StaticCache", "DynamicCache"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_caches(name, cache, device):
    """A prompt in two parts and a token after it see those before them, and no slot that is free; patched too."""
    model, ids, states = build(name, BF16, device), IDS.to(device), []
    size = {"max_cache_len": 32} if cache == "StaticCache" else {}
    for implementation, patched in zip((*IMPLEMENTATIONS, *IMPLEMENTATIONS), (False, False, True, True), strict=True):
        oxiwarp.patch(model, cpu_kernels=True) if patched else None
        model.set_attn_implementation(implementation)
        kept = getattr(transformers, cache)(config=model.config, **size)
        parts = [model(input_ids=part, past_key_values=kept, use_cache=True)[0] for part in ids.split([5, 6, 1], 1)]
        states.append(torch.cat(parts, 1).float())
    assert all((states[0] - other).abs().max() <= 0.08 for other in states[1:])


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
