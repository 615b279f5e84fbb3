"""Tests of `attn_implementation="oxiwarp"` in transformers models, compared with SDPA."""

import pytest
import torch
import torch.nn.functional as F
from helpers import random
from test_decoder import IDS, SIZES, build

import oxiwarp
from oxiwarp import transformers_attention

transformers = pytest.importorskip("transformers")
transformers_attention.register()
IMPLEMENTATIONS = ("sdpa", transformers_attention.NAME)
BF16 = torch.bfloat16


def padding():
    """Return a padding mask that hides the first five tokens of the first sequence."""
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    return mask


@pytest.mark.parametrize("padded", [False, True])
def test_models(padded, device):
    """With oxiwarp's attention, the hidden states of a language model match the hidden states with SDPA.

    The test uses inputs with padding and inputs without padding.
    """
    model, mask = build("Qwen3", BF16, device), padding().to(device) if padded else None
    results = []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        results.append(model(input_ids=IDS.to(device), attention_mask=mask).last_hidden_state.float())
    seen = torch.ones_like(IDS).bool() if mask is None else mask.bool()
    assert (results[0] - results[1])[seen].abs().max() <= 0.08


def test_refused(device):
    """An attention argument that the kernels do not support raises an error if it would change the result."""
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


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_autocast(dtype, device):
    """For a float32 model under autocast, results and gradients match SDPA.

    In such a model, RoPE returns query and key in float32, so oxiwarp's attention has to cast query and key.
    """
    model = build("Llama", torch.float32, device).requires_grad_()
    ids, mask, results = IDS.to(device), padding().to(device), []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with torch.enable_grad(), torch.autocast(device.type, dtype):
            y = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
            (y.float() * random(y.shape, torch.float32, device)).mean().backward()
        results.append([y.float(), *(parameter.grad.float() for parameter in model.parameters())])
    for stock, ours in zip(*results, strict=True):
        assert (stock - ours).abs().max() <= 0.03 * stock.abs().max()


def test_autocast_of_masks(device):
    """Under autocast, oxiwarp's attention also casts masks and biases, and the result has autocast's dtype.

    A float64 input is not cast, but raises an error.
    """
    q, module = random((1, 2, 4, 64), torch.float32, device), torch.nn.Module()
    mask, right = random((1, 1, 4, 4), torch.float16, device), F.scaled_dot_product_attention
    with torch.autocast(device.type, BF16):
        y, _ = transformers_attention.forward(module, q, q.half(), q.to(BF16), mask, position_bias=mask.float())
        own = right(q, q.half(), q.to(BF16), attn_mask=mask + mask.float())
        assert y.dtype == own.dtype == BF16 and (y.transpose(1, 2) - own).abs().max() <= 0.02
        with pytest.raises(RuntimeError, match="q is float64"):
            transformers_attention.forward(module, *[q.double()] * 3, None)
    with torch.autocast(device.type, BF16, enabled=False), pytest.raises(RuntimeError, match="q is f32"):
        transformers_attention.forward(module, q, q, q, None)
    meta = q.to("meta", BF16)
    assert transformers_attention.forward(module, meta, meta, meta, None)[0].shape == (1, 4, 2, 64)


def test_compiled_autocast(device):
    """Under autocast, oxiwarp's attention compiles to one graph and returns the result of eager mode."""
    q, module = random((1, 2, 4, 64), torch.float32, device), torch.nn.Module()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(q, v):
        with torch.autocast(device.type, BF16):
            return transformers_attention.forward(module, q, q, v, None)[0]

    with torch.autocast(device.type, BF16):
        assert torch.equal(block(q, q[..., :32]), transformers_attention.forward(module, q, q, q[..., :32], None)[0])


def test_narrow_values(device):
    """If the values V have fewer columns than the keys K, oxiwarp's attention matches SDPA.

    This holds with a mask, with causal attention, and with unused slots in the KV cache. Each gradient has as
    many columns as its input.
    """
    module = torch.nn.Module()
    q, k, v = (random((2, 4, 6, d), BF16, device, seed=d).requires_grad_() for d in (48, 49, 32))
    k, mask = k.detach()[..., 1:].requires_grad_(), random((2, 1, 6, 6), torch.float32, device) > -0.5
    for seen, causal in ((None, False), (None, True), (mask, False)):
        with torch.enable_grad():
            y, _ = transformers_attention.forward(module, q, k, v, seen, is_causal=causal)
            # The reference needs aligned keys, and `k + 0` makes an aligned copy. SDPA of torch 2.11 on a GPU
            # returns a different result if two conditions hold: the keys are not aligned to 16 bytes, and the
            # values have fewer columns than the keys.
            right = F.scaled_dot_product_attention(q, k + 0, v, attn_mask=seen, is_causal=causal).transpose(1, 2)
            assert y.shape == right.shape and y.is_contiguous() and (y - right).abs().max() <= 0.02
            dy = random(y.shape, BF16, device, seed=5)
            gradients = (torch.autograd.grad(x, (q, k, v), dy) for x in (y, right))
        for ours, stock in zip(*gradients, strict=True):
            assert (ours - stock).abs().max() <= 0.03 * stock.abs().max()
    longer = [torch.cat((x, x), 2).detach() for x in (k, v)]
    y, _ = transformers_attention.forward(module, q, *longer, None, is_causal=True)
    assert torch.equal(y, transformers_attention.forward(module, q, k, v, None, is_causal=True)[0])


def test_latent_attention(device):
    """With oxiwarp's attention, a DeepSeek model matches SDPA. Its keys have 24 columns per head, and its
    values have 16 columns."""
    sizes = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16)
    experts = dict(n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32)
    shared = {name: size for name, size in SIZES.items() if name not in ("head_dim", "num_key_value_heads")}
    config = transformers.DeepseekV3Config(**shared, **sizes, **experts, num_key_value_heads=4, first_k_dense_replace=2)
    torch.manual_seed(0)
    model, results = transformers.DeepseekV3Model(config).eval().to(device, BF16), []
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        results.append(model(input_ids=IDS.to(device)).last_hidden_state.float())
    assert (results[0] - results[1]).abs().max() <= 0.08


def test_sinks():
    """With GPT-OSS, oxiwarp's attention raises an error, because it does not support this model's attention sinks."""
    config = transformers.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.GptOssModel(config).eval().to(BF16)
    model.set_attn_implementation(transformers_attention.NAME)
    with pytest.raises(RuntimeError, match="no sinks"):
        model(input_ids=IDS)


@pytest.mark.parametrize("padded", [False, True])
def test_position_bias(padded, device):
    """With T5's position biases, oxiwarp's attention matches SDPA in the encoder and in the causal decoder,
    with and without a KV cache."""
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
    """For each kind of mask, oxiwarp's attention combines position bias and mask as transformers does for SDPA."""
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
    """With a KV cache, oxiwarp's attention matches SDPA in patched and unpatched models.

    The model gets a prompt in two calls, and then one more token. oxiwarp's attention ignores unused slots of
    a static cache.
    """
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
    """oxiwarp's causal attention without a mask matches SDPA if there are more, fewer, or as many keys as
    queries."""
    q, long = (random((1, 2, tokens, 16), BF16, device, seed=tokens) for tokens in (5, 9))
    for query, key in ((q, long), (long, q), (q, q)):
        y, _ = transformers_attention.forward(torch.nn.Module(), query, key, key, None, is_causal=True)
        right = F.scaled_dot_product_attention(query, key, key, is_causal=True)
        assert (y.transpose(1, 2) - right).abs().max() <= 0.02


@pytest.mark.parametrize("padded", [False, True])
def test_generate(padded, device):
    """With a static KV cache that is longer than needed, oxiwarp's attention gives the same tokens as SDPA,
    and logits that match."""
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
