"""Tests of `rope` and `qk_norm_rope` whose tables are chosen by positions, and of `rope` in place.

With positions, the results must have the bits of a call with the chosen rows of the tables. In place, they must have
the bits of a call that returns new tensors.
"""

import pytest
import torch
from helpers import DTYPES, random

import oxiwarp
from oxiwarp.ops._checks.heads import Rotation

OPS = torch.ops.oxiwarp
ROWS = 7


def inputs(dtype, device, *, dim=64, width=None, table_dtype=torch.float32):
    """Return queries and keys of shape `[2, 5, heads, dim]`, and tables of shape `[ROWS, width]`."""
    q, k = (random((2, 5, heads, dim), dtype, device, seed=heads) for heads in (4, 2))
    angles = random((ROWS, width or dim // 2), torch.float32, device, seed=9)
    return q, k, angles.cos().to(table_dtype), angles.sin().to(table_dtype)


def places(device, dtype=torch.int64, batched=True):
    at = torch.tensor([[0, 6, 3, 3, 1], [5, 2, 0, 4, 6]], device=device, dtype=dtype)
    return at if batched else at[0]


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and torch.equal(a, b)


def packed(device):
    """Return the offsets of three packed sequences with 12 tokens, and the position of each token in its
    sequence."""
    cu_seqlens = torch.tensor([0, 5, 6, 12], dtype=torch.int32, device=device)
    tokens = torch.arange(12, device=device)
    return cu_seqlens, tokens - cu_seqlens[torch.searchsorted(cu_seqlens, tokens, right=True) - 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [10, 64, 128, 256])
@pytest.mark.parametrize("interleaved", [True, False])
def test_rows_of_tables(interleaved, dim, dtype, device):
    for width in (dim, dim // 2):
        for table_dtype in {dtype, torch.float32}:
            q, k, cos, sin = inputs(dtype, device, dim=dim, width=width, table_dtype=table_dtype)
            for at in (places(device), places(device, torch.int32), places(device, batched=False)):
                got = oxiwarp.rope(q, k, cos, sin, positions=at, interleaved=interleaved)
                same(got, oxiwarp.rope(q, k, cos[at], sin[at], interleaved=interleaved))


@pytest.mark.parametrize("norm", ["rms_norm", "llama_rms_norm", "mochi_rms_norm", "layer_norm", None])
def test_with_a_norm(norm, device):
    for dim in (64, 72, 128, 192):
        q, k, cos, sin = inputs(torch.bfloat16, device, dim=dim)
        weight = None if norm is None else random((dim,), torch.bfloat16, device, seed=3)
        how = dict(norm=norm, q_weight=weight, k_weight=weight, interleaved=False)
        at = places(device)
        got = oxiwarp.qk_norm_rope(q, k, cos, sin, positions=at, **how)
        same(got, oxiwarp.qk_norm_rope(q, k, cos[at], sin[at], **how))
        outs = torch.empty_like(q), torch.empty_like(k)
        oxiwarp.qk_norm_rope(q, k, cos, sin, positions=at, out=outs, **how)
        same(outs, got)


def test_layouts_and_offsets(device):
    q, k, cos, sin = inputs(torch.bfloat16, device)
    at = places(device)
    wanted = oxiwarp.rope(q, k, cos[at], sin[at])
    got = oxiwarp.rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, positions=at, heads_first=True)
    same([x.transpose(1, 2) for x in got], wanted)
    same(oxiwarp.rope(q, k, cos, sin, positions=at.t().contiguous().t()), wanted)
    same(oxiwarp.rope(q, k, cos, sin, positions=at[0].expand(2, 5)), oxiwarp.rope(q, k, cos[at[0]], sin[at[0]]))
    got = oxiwarp.rope(q, k, cos, sin, positions=at[:, 1:3], offset=2)
    same(got, oxiwarp.rope(q, k, cos[at[:, 1:3]], sin[at[:, 1:3]], offset=2))
    turn = torch.complex(cos, sin)
    same(oxiwarp.rope(q, k, turn, positions=at), oxiwarp.rope(q, k, turn[at]))


def test_positions_without_a_row(device):
    """A negative position, or one that is too large, names the last row."""
    q, k, cos, sin = inputs(torch.float32, device)
    for dtype in (torch.int32, torch.int64):
        at = torch.tensor([-1, 7, 0, 1 << 30, -(1 << 31)], dtype=dtype, device=device)
        rows = torch.tensor([6, 6, 0, 6, 6], device=device)
        same(oxiwarp.rope(q, k, cos, sin, positions=at), oxiwarp.rope(q, k, cos[rows], sin[rows]))
    at = torch.tensor([1 << 32, (1 << 32) + 1, 2, -(1 << 40), 6], device=device)
    rows = torch.tensor([6, 6, 2, 6, 6], device=device)
    same(oxiwarp.rope(q, k, cos, sin, positions=at), oxiwarp.rope(q, k, cos[rows], sin[rows]))


@pytest.mark.parametrize("call", [oxiwarp.rope, oxiwarp.qk_norm_rope])
@pytest.mark.parametrize("width", [32, 64])
def test_gradient(width, call, device):
    q, k, cos, sin = inputs(torch.float32, device, width=width)
    at, found = places(device), []
    for tables in (dict(cos=cos, sin=sin, positions=at), dict(cos=cos[at], sin=sin[at])):
        leaves = [x.clone().requires_grad_() for x in (q, k)]
        with torch.enable_grad():
            y, z = call(*leaves, **tables)
            found.append(torch.autograd.grad((y * 2).sum() + (z * z).sum(), leaves))
    same(*found)


def test_packed_sequences(device):
    """The recipe of the documentation gives each packed sequence the angles of a sequence of its own."""
    cu_seqlens, positions = packed(device)
    q = random((1, 12, 2, 64), torch.bfloat16, device, seed=1)
    angles = random((20, 32), torch.float32, device, seed=2)
    cos, sin = angles.cos(), angles.sin()
    got = oxiwarp.rope(q, None, cos, sin, positions=positions)
    for first, last in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        tokens = last - first
        wanted = oxiwarp.rope(q[:, first:last], None, cos[:tokens], sin[:tokens])
        assert torch.equal(got[:, first:last], wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
def test_in_place(interleaved, dtype, device):
    for dim, rotary_dim in ((10, None), (64, None), (64, 32), (128, None), (192, 64)):
        q, k, cos, sin = inputs(dtype, device, dim=dim, width=(rotary_dim or dim) // 2)
        for how in (dict(positions=places(device)), {}):
            how |= dict(interleaved=interleaved, rotary_dim=rotary_dim)
            tables = (cos, sin) if "positions" in how else (cos[:5], sin[:5])
            wanted, x, y = oxiwarp.rope(q, k, *tables, **how), q.clone(), k.clone()
            version = x._version
            assert oxiwarp.rope(x, y, *tables, out=(x, y), **how)[0] is x
            same((x, y), wanted)
            assert x._version > version
            x = q.clone()
            assert oxiwarp.rope(x, None, *tables, out=x, **how) is x
            assert torch.equal(x, wanted[0])


def test_slices_in_place(device):
    """Queries and keys are slices of one projection, whose values stay unchanged."""
    qkv = random((2, 5, 3, 4, 64), torch.bfloat16, device, seed=1)
    _, _, cos, sin = inputs(torch.bfloat16, device)
    cos, sin = cos[:5], sin[:5]
    before, (q, k, v) = qkv.clone(), qkv.unbind(2)
    wanted = oxiwarp.rope(q, k, cos, sin)
    oxiwarp.rope(q, k, cos, sin, out=(q, k))
    same((q, k), wanted)
    assert torch.equal(v, before[:, :, 2])
    heads = before.transpose(1, 3)[:, :, 0]  # [B, heads, S, D]
    wanted = oxiwarp.rope(heads, None, cos, sin, heads_first=True)
    oxiwarp.rope(heads, None, cos, sin, heads_first=True, out=heads)
    assert torch.equal(heads, wanted)


def test_refused(device):
    q, k, cos, sin = inputs(torch.float32, device)
    at = places(device)

    def refused(match, *args, error=RuntimeError, call=oxiwarp.rope, **how):
        with pytest.raises(error, match=match):
            call(*args, **how)

    for wrong, match in (
        (at.float(), "positions is f32, expected int64 or int32"),
        (at.short(), "positions is (?:int16|torch.int16), expected int64 or int32"),
        (at[:, :4], r"positions has shape \[2, 4\], expected 5 tokens"),
        (at.expand(3, 2, 5)[:, 0], r"positions has shape \[3, 5\], expected one for 2 batches"),
        (at[None], r"positions has shape \[1, 2, 5\], expected \[S\] or \[B, S\]"),
    ):
        refused(f"^rope: {match}", q, k, cos, sin, positions=wrong)
        refused(f"^rope: {match}", *(x.to("meta") for x in (q, k, cos, sin)), positions=wrong.to("meta"))
        refused(f"^qk_norm_rope: {match}", q, k, cos, sin, positions=wrong, call=oxiwarp.qk_norm_rope)
    refused("^rope: cos has shape .*expected two dimensions, because", q, k, cos[None], sin[None], positions=at)
    refused(r"^rope: cos has shape \[0, 32\], expected between 1 and", q, k, cos[:0], sin[:0], positions=at)
    refused("^rope: positions is list", q, k, cos, sin, positions=[1], error=TypeError)
    refused("cos is None", q, positions=at, error=ValueError, call=oxiwarp.qk_norm_rope)
    cos, sin = cos[:5], sin[:5]
    memory = random((2, 5, 4, 96), torch.float32, device, seed=1)
    x, shifted = memory[..., :64], memory[..., 16:80]
    refused("^rope: q_out overlaps q", x, None, cos, sin, out=shifted)
    other = q.clone()
    refused("^rope: q_out overlaps k", q, other, cos, sin, out=(other, q))
    refused("^rope: out has another number", q, k, cos, sin, out=q, error=ValueError)
    refused("^rope: out is int", q, None, cos, sin, out=1, error=TypeError)
    with torch.enable_grad():
        refused("requires grad", q.clone().requires_grad_(), None, cos, sin, out=torch.empty_like(q))
    refused("^qk_norm_rope: q_out overlaps q", q, out=q, call=oxiwarp.qk_norm_rope)


def test_opcheck(device):
    q, k, cos, sin = inputs(torch.bfloat16, device)
    how = Rotation(cos, sin, places(device), 0, 0, True, -1, True, False, False, 0)
    weight = random((64,), torch.bfloat16, device, seed=1)
    norm = (weight, weight, None, None, 2, False, 1e-6)
    outs = torch.empty_like(q), torch.empty_like(k)
    opcheck = torch.library.opcheck
    opcheck(OPS.rope.default, (q, *how))
    opcheck(OPS.rope_pair.default, (q, k, *how))
    opcheck(OPS.rope_out.default, (q, k, *how, *outs))
    opcheck(OPS.rope_out.default, (q, None, *how, outs[0], None))
    opcheck(OPS.qk_norm_rope.default, (q, k, *norm, *how))
    opcheck(OPS.qk_norm_rope_out.default, (q, k, *norm, *how, *outs))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(backend, device):
    q, k, cos, sin = inputs(torch.bfloat16, device)
    at = places(device)

    def chosen(q, k, at):
        return oxiwarp.rope(q + 1, k, cos, sin, positions=at)

    def in_place(q, k):
        q, k = q + 1, k + 1
        oxiwarp.rope(q, k, cos[:5], sin[:5], out=(q, k))
        return q, k

    for function, arguments in ((chosen, (q, k, at)), (in_place, (q, k))):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        same(compiled(*arguments), function(*arguments))
