"""Tests of `oxiwarp.qk_norm_rope` against the modules of diffusers and transformers that it replaces."""

import pytest
import torch
from helpers import DTYPES, random
from torch import nn

import oxiwarp

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed  # noqa: E402
from diffusers.models.normalization import MochiRMSNorm, RMSNorm  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

MODULES = {
    "layer_norm": lambda n, eps: nn.LayerNorm(n, eps=eps),
    "rms_norm": lambda n, eps: nn.RMSNorm(n, eps=eps),
    "llama_rms_norm": lambda n, eps: RMSNorm(n, eps=eps),
    "mochi_rms_norm": lambda n, eps: MochiRMSNorm(n, eps=eps),
}


def module(norm, columns, dtype, device, *, eps=1e-6, seed=7):
    """Return a module that computes the norm with this name, e.g. "rms_norm". Its parameters are random."""
    made = MODULES[norm](columns, eps).to(device=device, dtype=dtype)
    for i, parameter in enumerate(made.parameters()):
        parameter.data.copy_(random(parameter.shape, dtype, device, seed=seed + i))
    return made.requires_grad_(False)


def heads(dtype, device, *, tokens=9, count=(4, 4), dim=128):
    return tuple(random((2, tokens, h, dim), dtype, device, seed=i) for i, h in enumerate(count))


def tables(tokens, dim, device):
    return get_1d_rotary_pos_embed(dim, torch.arange(tokens, device=device), use_real=True)


def close(got, wanted, *, exact):
    """Check that `got` equals `wanted`. If `exact` is true and the tensors are on CUDA, the bits must be
    equal. Otherwise, rounding errors are allowed.

    On the CPU, torch sums in a different order than oxiwarp, so a float32 mean may differ in its last bits. A
    16-bit result near the midpoint of two representable values may then be rounded to the other value.
    """
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if exact and got.is_cuda:
        assert torch.equal(got, wanted), f"{(got != wanted).double().mean().item():.2%} of the values differ"
    elif got.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert (got != wanted).double().mean() <= 0.02
        unit = {torch.float16: 2**-10, torch.bfloat16: 2**-7}[got.dtype]
        torch.testing.assert_close(got, wanted, rtol=2 * unit, atol=8 * unit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [64, 72, 96, 128, 160, 256])
@pytest.mark.parametrize("norm", MODULES)
def test_per_head(norm, dim, dtype, device):
    """A norm per head, a rotation, and a norm followed by a rotation equal the modules of real models.

    The models are Flux, HunyuanVideo, Qwen, Mochi and CogVideoX, which normalize each head separately.
    """
    q, k = heads(dtype, device, dim=dim)
    of_q, of_k = (module(norm, dim, dtype, device, seed=seed) for seed in (7, 17))
    cos, sin = tables(9, dim, device)
    bias = {"q_bias": of_q.bias, "k_bias": of_k.bias} if norm == "layer_norm" else {}
    options = dict(norm=norm, q_weight=of_q.weight, k_weight=of_k.weight, **bias)
    normed = oxiwarp.qk_norm_rope(q, k, **options)
    close(normed[0], of_q(q), exact=True)
    close(normed[1], of_k(k), exact=True)
    for x, y in zip(normed, oxiwarp.qk_norm_rope(q, k, cos, sin, **options), strict=True):
        assert torch.equal(y, apply_rotary_emb(x, (cos, sin), sequence_dim=1)), "the rotation is not that of the norm"
    plain = oxiwarp.qk_norm_rope(q, k, cos, sin, norm=None)
    assert torch.equal(plain[0], apply_rotary_emb(q, (cos, sin), sequence_dim=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "dim"), [(32, 64), (12, 128), (40, 128)])
@pytest.mark.parametrize("norm", ["rms_norm", "llama_rms_norm", "layer_norm"])
def test_across_heads(norm, count, dim, dtype, device):
    """A norm over all heads of a token, followed by a rotation, equals the modules of LTX-Video and Wan."""
    q, k = (x.flatten(2) for x in heads(dtype, device, count=(count, count), dim=dim))
    of_q = module(norm, count * dim, dtype, device, eps=1e-5)
    cos, sin = tables(9, dim, device)
    options = dict(norm=norm, eps=1e-5, q_weight=of_q.weight, k_weight=of_q.weight, across_heads=True, head_dim=dim)
    if norm == "layer_norm":
        options |= dict(q_bias=of_q.bias, k_bias=of_q.bias)
    normed = oxiwarp.qk_norm_rope(q, k, **options)
    close(normed[0], of_q(q), exact=True)
    for x, y in zip(normed, oxiwarp.qk_norm_rope(q, k, cos, sin, **options), strict=True):
        wanted = apply_rotary_emb(x.unflatten(2, (count, dim)), (cos, sin), sequence_dim=1)
        assert torch.equal(y, wanted.flatten(2))
    split = oxiwarp.qk_norm_rope(q.unflatten(2, (count, dim)), None, cos, sin, **options | dict(head_dim=None))
    assert torch.equal(split.flatten(2), oxiwarp.qk_norm_rope(q, None, cos, sin, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ltx(dtype, device):
    """A norm and a rotation over all 2048 columns of a token equal the modules of LTX-Video."""
    q = random((2, 9, 2048), dtype, device)
    norm, (cos, sin) = module("rms_norm", 2048, dtype, device), tables(9, 2048, device)
    y = oxiwarp.qk_norm_rope(q, None, cos, sin, q_weight=norm.weight)
    x = oxiwarp.qk_norm_rope(q, q_weight=norm.weight)
    close(x, norm(q), exact=True)
    assert torch.equal(y, apply_rotary_emb(x.unsqueeze(2), (cos, sin), sequence_dim=1).squeeze(2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qwen3(dtype, device):
    """`qk_norm_rope` equals Qwen3's code, which applies a norm, transposes tokens and heads, and rotates.

    Qwen3 has grouped-query attention. It rotates half-split pairs, and its cos and sin tables have the
    model's dtype.
    """
    q, k = heads(dtype, device, count=(8, 2))
    norm = modeling_qwen3.Qwen3RMSNorm(128).to(device, dtype).requires_grad_(False)
    norm.weight.copy_(random((128,), dtype, device, seed=9))
    angles = torch.arange(9, device=device)[:, None] * 1e6 ** -(torch.arange(64, device=device) / 64)
    angles = torch.cat((angles, angles), dim=-1).expand(2, -1, -1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    options = dict(norm="llama_rms_norm", q_weight=norm.weight, k_weight=norm.weight, interleaved=False)
    normed = [x.transpose(1, 2) for x in oxiwarp.qk_norm_rope(q, k, **options)]
    close(normed[0], norm(q).transpose(1, 2), exact=True)
    wanted = modeling_qwen3.apply_rotary_pos_emb(*normed, cos, sin)
    for y, w in zip(oxiwarp.qk_norm_rope(q, k, cos, sin, **options), wanted, strict=True):
        assert torch.equal(y.transpose(1, 2), w)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_modes(dtype, device):
    """For 16-bit inputs, the results of mode "fast" are closer to float64 than the results of mode "exact".

    Mode "fast" rounds once. Mode "exact" rounds after each step.
    """
    q, _ = heads(dtype, device)
    norm, (cos, sin) = module("llama_rms_norm", 128, dtype, device), tables(9, 128, device)
    wide = q.double() * torch.rsqrt(q.double().square().mean(-1, keepdim=True) + 1e-6) * norm.weight.double()
    a, b = wide.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[:, None, 0::2].double(), sin[:, None, 0::2].double()
    wide = torch.stack([a * c - b * s, b * c + a * s], dim=-1).flatten(-2)
    exact, fast = (
        (oxiwarp.qk_norm_rope(q, None, cos, sin, norm="llama_rms_norm", q_weight=norm.weight, mode=mode) - wide).norm()
        for mode in ("exact", "fast")
    )
    assert fast <= exact if dtype == torch.float32 else fast < 0.8 * exact


def test_out(device):
    """`out` may be a slice of a buffer. Two calls, one for text tokens and one for image tokens, can
    therefore fill one buffer without `torch.cat`."""
    (q, k), text = heads(torch.bfloat16, device), heads(torch.bfloat16, device, tokens=5)
    cos, sin = tables(14, 128, device)
    joint = [torch.full((2, 14, 4, 128), float("nan"), dtype=q.dtype, device=device) for _ in range(2)]
    for part, of, at in ((text, slice(0, 5), slice(0, 5)), ((q, k), slice(5, 14), slice(5, 14))):
        out = tuple(buffer[:, at] for buffer in joint)
        assert oxiwarp.qk_norm_rope(*part, cos[of], sin[of], out=out) is out
    for buffer, parts in zip(joint, zip(text, (q, k), strict=True), strict=True):
        whole = oxiwarp.qk_norm_rope(torch.cat(parts, dim=1), None, cos, sin)
        assert torch.equal(buffer, whole)
    with pytest.raises(RuntimeError, match="q_out overlaps q"):
        oxiwarp.qk_norm_rope(q, None, out=q)


@pytest.mark.parametrize("adjacent", ["tensors", "heads"])
def test_out_of_columns(adjacent, device):
    """`out` may consist of column slices of one buffer. An example is a buffer with queries, keys and values,
    which an attention kernel reads.

    Queries and keys may have different numbers of heads.
    """
    counts = (6, 2, 2) if adjacent == "tensors" else (4, 4, 4)
    cos, sin = tables(5, 128, device)
    q, k, v = (torch.randn(2, 5, heads, 128, device=device).bfloat16() for heads in counts)
    if adjacent == "tensors":
        buffer = torch.full((2, 5, sum(counts), 128), float("nan"), dtype=q.dtype, device=device)
        outs = buffer.split(counts, dim=2)
    else:
        buffer = torch.full((2, 5, 4, 3, 128), float("nan"), dtype=q.dtype, device=device)
        outs = buffer.unbind(dim=3)
    outs[2].copy_(v)
    oxiwarp.qk_norm_rope(q, k, cos, sin, out=outs[:2])
    for made, wanted in zip(outs, (*oxiwarp.qk_norm_rope(q, k, cos, sin), v), strict=True):
        assert torch.equal(made, wanted)
    with pytest.raises(RuntimeError, match="k_out overlaps q_out"):
        oxiwarp.qk_norm_rope(q, q, cos, sin, out=(outs[0], outs[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("across_heads", [False, True])
@pytest.mark.parametrize("norm", [None, *MODULES])
def test_gradient(norm, across_heads, dtype, device):
    """The gradients match float64 autograd of the formula."""
    leaves = [x.requires_grad_() for x in heads(dtype, device, count=(4, 2), dim=64)]
    columns = [(4 * 64, 2 * 64) if across_heads else (64, 64)][0]
    if norm:
        leaves += [random((n,), dtype, device, seed=3).requires_grad_() for n in columns]
    if norm == "layer_norm":
        leaves += [random((n,), dtype, device, seed=4).requires_grad_() for n in columns]
    names = ("q_weight", "k_weight", "q_bias", "k_bias")
    angles = random((9, 32), torch.float32, device, seed=5)

    def apply(x, weight=None, bias=None):
        rows = x.flatten(2) if across_heads else x
        if norm == "layer_norm":
            rows = nn.functional.layer_norm(rows, rows.shape[-1:], weight, bias, 1e-6)
        elif norm:
            rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6) * weight
        a, b = rows.reshape(x.shape).chunk(2, dim=-1)
        cos, sin = (f(angles.double())[:, None] for f in (torch.cos, torch.sin))
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    with torch.enable_grad():
        q, k, *rest = leaves
        options = dict(norm=norm, across_heads=across_heads, interleaved=False, **dict(zip(names, rest, strict=False)))
        y, z = oxiwarp.qk_norm_rope(q, k, angles.cos(), angles.sin(), **options)
        g, h = random(y.shape, dtype, device, seed=8), random(z.shape, dtype, device, seed=9)
        ((y * g).sum() + (z * h).sum()).backward()
        wide = [x.detach().double().requires_grad_() for x in leaves]
        q, k, *rest = wide
        y, z = apply(q, *rest[0::2]), apply(k, *rest[1::2])
        ((y * g).sum() + (z * h).sum()).backward()
    bound = 1e-4 if dtype == torch.float32 else 0.03
    for x, w in zip(leaves, wide, strict=True):
        torch.testing.assert_close(x.grad.double(), w.grad, rtol=bound, atol=bound * w.grad.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_invariant(dtype, device):
    q, k = heads(dtype, device, tokens=40)
    cos, sin = tables(40, 128, device)
    whole = oxiwarp.qk_norm_rope(q, k, cos, sin)
    for at in (0, 17, 39):
        one = oxiwarp.qk_norm_rope(q[1:, at : at + 1], k[1:, at : at + 1], cos[at : at + 1], sin[at : at + 1])
        for w, o in zip(whole, one, strict=True):
            assert torch.equal(w[1:, at : at + 1], o)


def test_refused(device):
    q, k = heads(torch.bfloat16, device)
    weight = torch.ones(128, dtype=torch.bfloat16, device=device)
    for options, error, message in (
        (dict(norm="rmsnorm"), ValueError, r"^qk_norm_rope: norm is 'rmsnorm', expected one of None, 'layer_norm'"),
        (dict(q_weight=weight[:64]), RuntimeError, r"^qk_norm_rope: q_weight has shape \[64\], expected \[128\]"),
        (dict(q_weight=weight, across_heads=True), RuntimeError, r"^qk_norm_rope: q_weight .* expected \[512\]"),
        (dict(k_weight=weight.half()), RuntimeError, r"^qk_norm_rope: k_weight is f16, expected bf16"),
        (dict(q_bias=weight), RuntimeError, r"^qk_norm_rope: .*bias is"),
        (dict(eps=-1.0), RuntimeError, r"^qk_norm_rope: eps is -1, expected a finite number of 0 or more"),
        (dict(out=q), ValueError, r"^qk_norm_rope: out has another number"),
        (dict(q_weight=3), TypeError, r"^qk_norm_rope: q_weight is int"),
    ):
        with pytest.raises(error, match=message):
            oxiwarp.qk_norm_rope(q, k, **options)
    with pytest.raises(RuntimeError, match="must lie side by side"):
        oxiwarp.qk_norm_rope(q.transpose(1, 2).contiguous(), None, across_heads=True, heads_first=True)


def test_more_than_2_31_elements(cuda):
    """`qk_norm_rope` of 2.2e9 elements is correct up to the last token, because its kernels compute offsets
    in 64 bits."""
    tokens = 180_001
    if torch.cuda.mem_get_info()[0] < 14 * 2**30:
        pytest.skip("needs 14 GiB of GPU memory")
    q = torch.empty(1, tokens, 96, 128, dtype=torch.bfloat16, device=cuda).normal_()
    cos, sin = tables(tokens, 128, cuda)
    y = oxiwarp.qk_norm_rope(q, None, cos, sin)
    for at in (slice(0, 2), slice(tokens // 2, tokens // 2 + 2), slice(tokens - 2, tokens)):
        assert torch.equal(y[:, at], oxiwarp.qk_norm_rope(q[:, at], None, cos[at], sin[at]))


@pytest.mark.parametrize("shape", [(2, 1, 5, 16), (2, 4, 1, 16)], ids=["one head", "one token"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_gradient_across_heads_with_heads_first(norm, shape, device):
    """With a norm across heads, the layout `[B, H, S, D]` (heads first) gives the same gradients as `[B, S, H, D]`."""
    q, dy = (random(shape, torch.float32, device, seed) for seed in (0, 1))
    weight = random((shape[1] * shape[3],), torch.float32, device, seed=2)
    leaves = [x.clone().requires_grad_() for x in (q, weight)]
    options = dict(norm=norm, across_heads=True)
    with torch.enable_grad():
        first = oxiwarp.qk_norm_rope(leaves[0], q_weight=leaves[1], heads_first=True, **options)
        other = oxiwarp.qk_norm_rope(leaves[0].transpose(1, 2), q_weight=leaves[1], **options).transpose(1, 2)
        for got, right in zip(
            torch.autograd.grad(first, leaves, dy), torch.autograd.grad(other, leaves, dy), strict=True
        ):
            torch.testing.assert_close(got, right)
