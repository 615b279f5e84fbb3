"""Tests that `oxiwarp.rope` and `rope_3d` give the bits of the functions of diffusers and transformers."""

import pytest
import torch
from helpers import DTYPES, random

import oxiwarp

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed  # noqa: E402
from diffusers.models.transformers import transformer_ltx, transformer_ltx2  # noqa: E402
from diffusers.models.transformers.transformer_flux import FluxPosEmbed  # noqa: E402
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoRotaryPosEmbed  # noqa: E402
from diffusers.models.transformers.transformer_mochi import MochiRoPE  # noqa: E402
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen  # noqa: E402
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed  # noqa: E402
from transformers.models.cohere import modeling_cohere  # noqa: E402
from transformers.models.glm4 import modeling_glm4  # noqa: E402
from transformers.models.gpt_oss import modeling_gpt_oss  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

HALF = (torch.float16, torch.bfloat16)


def pair(dtype, device, *, batch=2, tokens=12, heads=(4, 4), dim=64):
    """Return queries and keys of shape `[B, S, heads, D]`."""
    return tuple(random((batch, tokens, h, dim), dtype, device, seed=i) for i, h in enumerate(heads))


def same(got, wanted):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert torch.equal(got, wanted), f"differs by {(got.double() - wanted.double()).abs().max().item()}"


def nearly(got, wanted):
    """Check that the results differ by at most one float32 rounding."""
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    else:
        assert (got != wanted).double().mean() < 2e-3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unbind_dim", [-1, -2])
def test_diffusers(unbind_dim, dtype, device):
    """`rope` equals diffusers' rotation for interleaved pairs and for half-split pairs.

    diffusers' option `use_real_unbind_dim` selects the pairs. The option is -1 (interleaved) in Flux,
    HunyuanVideo and CogVideoX, and -2 (half-split) in StableAudio, OmniGen and Cosmos.
    """
    q, k = pair(dtype, device, dim=128)
    cos, sin = get_1d_rotary_pos_embed(
        128, torch.arange(12, device=device), use_real=True, repeat_interleave_real=unbind_dim == -1
    )
    interleaved = unbind_dim == -1
    got = oxiwarp.rope(q, k, cos, sin, interleaved=interleaved)
    for x, y in zip((q, k), got, strict=True):
        same(y, apply_rotary_emb(x, (cos, sin), use_real_unbind_dim=unbind_dim, sequence_dim=1))
        x, y = (
            x.transpose(1, 2),
            oxiwarp.rope(x.transpose(1, 2), None, cos, sin, interleaved=interleaved, heads_first=True),
        )
        same(y, apply_rotary_emb(x, (cos, sin), use_real_unbind_dim=unbind_dim, sequence_dim=2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flux_tables(dtype, device):
    ids = torch.randint(0, 64, (12, 3), generator=torch.Generator().manual_seed(0)).to(device)
    cos, sin = FluxPosEmbed(10000, [16, 56, 56])(ids)
    q, _ = pair(dtype, device, heads=(24, 24), dim=128)
    same(oxiwarp.rope(q, None, cos, sin), apply_rotary_emb(q, (cos, sin), sequence_dim=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_projection(dtype, device):
    """Queries and keys may be slices of one projection."""
    qkv = random((2, 12, 3, 4, 64), dtype, device)
    cos, sin = get_1d_rotary_pos_embed(64, torch.arange(12, device=device), use_real=True)
    for x, y in zip(qkv.unbind(2)[:2], oxiwarp.rope(qkv[:, :, 0], qkv[:, :, 1], cos, sin), strict=True):
        same(y, apply_rotary_emb(x, (cos, sin), sequence_dim=1))
    side_by_side = qkv.flatten(2)[..., 256:512]
    y = oxiwarp.rope(side_by_side, None, cos, sin, head_dim=64)
    same(y, apply_rotary_emb(qkv[:, :, 1], (cos, sin), sequence_dim=1).flatten(2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_text_tokens_pass(dtype, device):
    """`rope` rotates only a range of tokens, and copies all others (text tokens) unchanged.

    Text tokens are the first tokens in CogVideoX, and the last tokens in HunyuanVideo.
    """
    q, k = pair(dtype, device, tokens=20)
    cos, sin = get_1d_rotary_pos_embed(64, torch.arange(13, device=device), use_real=True)
    wanted = q.clone()
    wanted[:, 7:] = apply_rotary_emb(q[:, 7:], (cos, sin), sequence_dim=1)
    same(oxiwarp.rope(q, k, cos, sin, offset=7)[0], wanted)
    wanted = torch.cat([apply_rotary_emb(q[:, :13], (cos, sin), sequence_dim=1), q[:, 13:]], dim=1)
    same(oxiwarp.rope(q, None, cos, sin, offset=0), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_complex_tables(dtype, device):
    """With a complex table, as in Lumina and Qwen-Image, `rope` equals diffusers. On CUDA, the bits are
    equal. On the CPU, the results may differ by one rounding error.

    The bits differ on the CPU, because torch's complex product uses a fused multiply-add only on CUDA.
    """
    q, k = pair(dtype, device, dim=128)
    table = get_1d_rotary_pos_embed(128, torch.arange(12, device=device))
    assert table.dtype == torch.complex64
    y = oxiwarp.rope(q, k, table)[1]
    wanted = apply_rotary_emb_qwen(k, table, use_real=False)
    if device.type == "cuda":
        same(y, wanted)
    else:
        nearly(y, wanted)
    same(oxiwarp.rope(k, None, table.expand(2, 12, 64)), y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ltx(dtype, device):
    """`rope` and `rope_3d` equal LTX-Video's rotation, which treats all 2048 columns of a token as one head.

    LTX-Video leaves the first few columns of a token unchanged.
    """
    rope = transformer_ltx.LTXVideoRotaryPosEmbed(dim=2048, base_num_frames=20, base_height=2048, base_width=2048)
    q = random((2, 24, 2048), dtype, device)
    cos, sin = rope(q, 2, 3, 4, (1 / 25, 32, 32))
    assert cos.shape == (2, 24, 2048)
    wanted = transformer_ltx.apply_rotary_emb(q, (cos, sin))
    same(oxiwarp.rope(q, None, cos, sin), wanted)
    # `rope_3d` computes the tables of the module from coordinates.
    coordinates = rope._prepare_video_coords(2, 2, 3, 4, (1 / 25, 32, 32), device)
    same(oxiwarp.rope_3d(q, grid=(2, 3, 4), coordinates=coordinates), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ltx2(dtype, device):
    q = random((2, 6, 4 * 64), dtype, device)
    angles = random((2, 4, 6, 32), torch.float32, device, seed=3)
    cos, sin = angles.cos(), angles.sin()
    wanted = transformer_ltx2.apply_split_rotary_emb(q, (cos, sin))
    tables = cos.transpose(1, 2), sin.transpose(1, 2)
    y = oxiwarp.rope(q, None, *tables, interleaved=False, head_dim=64)
    # `addcmul` in diffusers may use a fused multiply-add, but oxiwarp rounds product and sum separately. On
    # CUDA, this difference changes the last bit of float32 results, but no 16-bit result.
    if device.type == "cuda" and dtype != torch.float32:
        same(y, wanted)
    else:
        nearly(y, wanted)
    wide = angles.transpose(1, 2).flatten(2).repeat_interleave(2, dim=-1)
    wanted = transformer_ltx2.apply_interleaved_rotary_emb(q, (wide.cos(), wide.sin()))
    same(oxiwarp.rope(q, None, wide.cos(), wide.sin()), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wan(dtype, device):
    """`rope` and `rope_3d` equal the rotation in Wan's attention processor, which computes even and odd
    columns separately.

    Wan's cos and sin tables have shape `[1, S, 1, D]`.
    """
    video = torch.empty(1, 16, 2, 6, 4, device=device)
    cos, sin = WanRotaryPosEmbed(128, (1, 2, 2), 1024).to(device)(video)
    q, k = pair(dtype, device, batch=1, heads=(5, 5), dim=128)

    def apply(x):
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.empty_like(x)
        out[..., 0::2] = a * cos[..., 0::2] - b * sin[..., 1::2]
        out[..., 1::2] = a * sin[..., 1::2] + b * cos[..., 0::2]
        return out.type_as(x)

    for x, y in zip((q, k), oxiwarp.rope(q, k, cos, sin), strict=True):
        same(y, apply(x))
    for y, z in zip(oxiwarp.rope_3d(q, k, grid=(2, 3, 2)), oxiwarp.rope(q, k, cos, sin), strict=True):
        same(y, z)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hunyuan_splits(dtype, device):
    video = torch.empty(1, 16, 2, 4, 6, device=device)
    cos, sin = HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56], 256.0)(video)
    q, _ = pair(dtype, device, batch=1, dim=128)
    same(oxiwarp.rope(q, None, cos, sin), apply_rotary_emb(q, (cos, sin), sequence_dim=1))
    # diffusers computes the angles in float32, but oxiwarp computes them in float64. The results are
    # therefore not equal bit for bit.
    y = oxiwarp.rope_3d(q, grid=(2, 2, 3), splits=(16, 56, 56), theta=256.0)
    torch.testing.assert_close(
        y, oxiwarp.rope(q, None, cos, sin), rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # the module requests float32
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mochi(dtype, device):
    """`rope` equals Mochi's rotation. Its cos and sin tables have separate angles for each head, and one
    entry per pair of columns."""
    frequencies = random((3, 24, 64), torch.float32, device)
    cos, sin = MochiRoPE()(frequencies, 1, 3, 4, device, torch.float32)
    q, k = pair(dtype, device, heads=(24, 24), dim=128)
    even, odd = q[..., 0::2].float(), q[..., 1::2].float()
    real, imaginary = (even * cos - odd * sin).to(dtype), (even * sin + odd * cos).to(dtype)
    same(oxiwarp.rope(q, k, cos[None], sin[None])[0], torch.stack([real, imaginary], dim=-1).flatten(-2))


def llama_tables(dtype, device, *, dim, interleaved=False):
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)).to(device)
    angles = torch.arange(12, device=device).expand(2, -1)[..., None].float() * frequencies
    angles = angles.repeat_interleave(2, dim=-1) if interleaved else torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_llama(dtype, device):
    """`rope` equals LLaMA's rotation, with grouped-query attention and transposed views.

    For 16-bit inputs, LLaMA's code rounds both products and their sum. Mode "fast" rounds only the sum, so
    its results differ from LLaMA's.
    """
    cos, sin = llama_tables(dtype, device, dim=128)
    q, k = (x.transpose(1, 2) for x in pair(dtype, device, heads=(8, 2), dim=128))
    wanted = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    for y, w in zip(oxiwarp.rope(q, k, cos, sin, interleaved=False, heads_first=True), wanted, strict=True):
        same(y, w)
    if dtype in HALF:
        fast = oxiwarp.rope(q, None, cos, sin, interleaved=False, heads_first=True, mode="fast")
        assert not torch.equal(fast, wanted[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gpt_oss(dtype, device):
    """`rope` equals gpt-oss's rotation of half-split pairs. Its cos and sin tables have one entry per pair of
    columns."""
    cos, sin = (table[..., :32] for table in llama_tables(dtype, device, dim=64))
    q, k = (x.transpose(1, 2) for x in pair(dtype, device, heads=(8, 1)))
    wanted = modeling_gpt_oss.apply_rotary_pos_emb(q, k, cos, sin)
    for y, w in zip(oxiwarp.rope(q, k, cos, sin, interleaved=False, heads_first=True), wanted, strict=True):
        same(y, w)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_glm4(dtype, device):
    """`rope` equals GLM-4's rotation, which rotates only the first 32 columns, in interleaved pairs.

    GLM-4's cos and sin tables have the layout for half-split pairs, but the rotation uses only the first half
    of each table row.
    """
    cos, sin = llama_tables(dtype, device, dim=32)
    q, k = (x.transpose(1, 2) for x in pair(dtype, device, heads=(4, 2)))
    wanted = modeling_glm4.apply_rotary_pos_emb(q, k, cos, sin)
    got = oxiwarp.rope(q, k, cos[..., :16], sin[..., :16], rotary_dim=32, heads_first=True)
    for y, w in zip(got, wanted, strict=True):
        same(y, w)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cohere(dtype, device):
    """`rope` in mode "fast" equals Cohere's rotation, which computes in float32 and rounds once."""
    cos, sin = llama_tables(dtype, device, dim=64, interleaved=True)
    q, k = (x.transpose(1, 2) for x in pair(dtype, device, heads=(4, 2)))
    wanted = modeling_cohere.apply_rotary_pos_emb(q, k, cos, sin)
    for y, w in zip(oxiwarp.rope(q, k, cos, sin, heads_first=True, mode="fast"), wanted, strict=True):
        same(y, w)
