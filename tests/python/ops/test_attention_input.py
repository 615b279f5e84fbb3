"""Tests of invalid arguments of `oxiwarp.attention`: errors of the kernels and of their fake (meta) kernels."""

import re

import numpy
import pytest
import torch
from helpers import random
from test_attention import heads

import oxiwarp


def cases(device):
    """Return invalid calls of `attention`. Each has positional arguments, keyword arguments, and a regex for
    the start of the error message.

    Kernels and fake (meta) kernels raise the same error.
    """
    q, k, v = heads((2, 5, 7, 4, 2, 64), torch.bfloat16, device)
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    packed = (q[0], k[0], v[0])
    return (
        ((q.float(), k.float(), v.float()), {}, r"q is f32, expected f16 or bf16 \(for f32 there is torch's own"),
        ((q, k.half(), v), {}, "k is f16, expected bf16"),
        ((q, k, v[:, :6]), {}, r"v has shape \[2, 6, 2, 64\], expected \[2, 7, 2, 64\]"),
        ((q, k[..., :32], v), {}, r"k has shape \[2, 7, 2, 32\], expected \[2, 7, 2, 64\]"),
        ((q[0], k[0], v[0]), {}, r"q has shape \[5, 4, 64\], expected four dimensions"),
        ((q, k, v), dict(cu_seqlens=starts), r"q has shape \[2, 5, 4, 64\], expected three dimensions"),
        ((q[:, :, :3], k, v), {}, r"k has shape \[2, 7, 2, 64\], expected heads that divide the 3 of q"),
        ((q, k, v), dict(mask=q[0, :, 0, :7].double()), "mask is (float64|torch.float64), expected bool, f32"),
        ((q.repeat(1, 1, 1, 5),) + (k.repeat(1, 1, 1, 5),) * 2, {}, r"q has shape .*, expected heads of 1 to 256"),
        ((q[0, 0, 0, 0], k, v), {}, r"q has shape \[\], expected four dimensions"),
        ((q[:, :, :0], k, v), {}, r"k has shape \[2, 7, 2, 64\], expected heads that divide the 0 of q"),
        (packed, dict(cu_seqlens=(starts, None)), "cu_seqlens_q is given without cu_seqlens_k"),
        (packed, dict(cu_seqlens=(None, starts)), "cu_seqlens_k is given without cu_seqlens_q"),
        ((q.double(), k, v), {}, r"q is float64, expected f16 or bf16 \(for f32 there is torch's own"),
        ((q.to(torch.complex64), k, v), {}, r"q is complex64, expected f16 or bf16 \(for f32"),
    )


def test_other_layout(device):
    """If the shapes are valid only in the other layout ("bshd" or "bhsd"), the error names that layout. If
    they are valid in both layouts but the other layout is more likely, `attention` warns and names the other
    layout."""
    q, k, v = (torch.zeros(1, heads, 300, 16, dtype=torch.bfloat16, device=device) for heads in (4, 2, 2))
    with pytest.raises(RuntimeError, match="the shapes are valid with layout='bhsd'$"):
        oxiwarp.attention(q[:, :, :5], k, v)
    with pytest.raises(RuntimeError, match="the shapes are valid with layout='bshd'$"):
        oxiwarp.attention(*(x.transpose(1, 2) for x in (q[:, :, :5], k, v)), layout="bhsd")
    with pytest.raises(RuntimeError, match=r"expected heads that divide the 3 of q$"):
        oxiwarp.attention(q[:, :3, :3], k, v, layout="bhsd")
    with pytest.warns(UserWarning, match=r"300 heads and 4 tokens.* pass layout='bhsd'$"):
        oxiwarp.attention(q, q, q)
    with pytest.warns(UserWarning, match=r"300 heads and 4 tokens.* pass layout='bshd'$"):
        oxiwarp.attention(*(q.transpose(1, 2),) * 3, layout="bhsd")
    oxiwarp.attention(q, k, v, layout="bhsd")  # no warning: the tests turn warnings into errors


def test_meta():
    for arguments, options, message in cases("meta"):
        with pytest.raises(RuntimeError, match=f"^attention: {message}"):
            oxiwarp.attention(*arguments, **options)
    q, k, v = heads((2, 5, 7, 4, 2, 64), torch.bfloat16, "meta")
    y, lse = oxiwarp.attention(q, k, v, return_lse=True)
    assert y.shape == q.shape and lse.shape == (2, 4, 5) and lse.dtype == torch.float32


def test_bad_input(device):
    for arguments, options, message in cases(device):
        with pytest.raises(RuntimeError, match=f"^attention: {message}"):
            oxiwarp.attention(*arguments, **options)
    q, k, v = heads((2, 5, 7, 4, 2, 64), torch.bfloat16, device)
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    packed = (q[0], k[0], v[0])
    for x, options, message in (
        ((q.transpose(-1, -2), k, v), {}, r"(q of shape|k has shape)"),
        ((q, k, v), dict(mask=torch.ones(2, 7, device=device)), r"mask has shape \[2, 7\], expected one that"),
        ((q, k, v), dict(softcap=-1.0), "softcap is -1, expected a finite number of 0 or more"),
        ((q, k, v), dict(scale=float("nan")), "scale is NaN, expected a finite number"),
        (packed, dict(cu_seqlens=starts.long()), "cu_seqlens_q is i64, expected i32"),
        (packed, dict(cu_seqlens=starts, mask=torch.ones(7, device=device)), "mask has shape .*, expected none"),
        (packed, dict(cu_seqlens=(starts, starts[:1])), r"cu_seqlens_k has shape \[1\], expected \[2\]"),
    ):
        with pytest.raises(RuntimeError, match=f"^attention: {message}"):
            oxiwarp.attention(*x, **options)


def test_devices(device):
    """`attention` rejects any tensor argument that is not on the device of `q`."""
    q, k, v = heads((1, 5, 5, 2, 1, 64), torch.bfloat16, device)
    mask = torch.ones(5, 5, dtype=torch.bool, device="meta")
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    there = starts.to("meta")
    for arguments, options, name in (
        ((q, k.to("meta"), v), {}, "k"),
        ((q, k, v.to("meta")), {}, "v"),
        ((q, k, v), dict(mask=mask), "mask"),
        ((q[0], k[0], v[0]), dict(cu_seqlens=there), "cu_seqlens_q"),
        ((q[0], k[0], v[0]), dict(cu_seqlens=(starts, there)), "cu_seqlens_k"),
    ):
        with pytest.raises(
            RuntimeError, match=rf"^attention: {name} is on meta, expected {device}.*, the device of q$"
        ):
            oxiwarp.attention(*arguments, **options)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="^attention: mask is on meta"):
        oxiwarp.attention(q.requires_grad_(), k, v, mask=mask)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layouts_without_kernels(device):
    """`attention` rejects sparse and nested tensors. The error names the argument: `q`, `k` or `v`."""
    q = random((2, 3, 2, 64), torch.bfloat16, device)
    nested, jagged = (torch.nested.nested_tensor(list(q), layout=x) for x in (torch.strided, torch.jagged))
    for x, message in (
        (q.to_sparse(), "has layout torch.sparse_coo, expected torch.strided"),
        (jagged, "has layout torch.jagged, expected torch.strided"),
        (nested, "is a nested tensor, expected a plain one"),
    ):
        for at, name in enumerate("qkv"):
            with pytest.raises(RuntimeError, match=f"^attention: {name} {message}$"):
                oxiwarp.attention(*(x if i == at else q for i in range(3)))


def test_bad_options(device):
    q, k, v = heads((1, 2, 2, 1, 1, 64), torch.bfloat16, device)
    for layout in ("bsdh", None, 1, ["bshd"]):
        with pytest.raises(ValueError, match=r"^attention: layout is .*, expected 'bshd' or 'bhsd'$"):
            oxiwarp.attention(q, k, v, layout=layout)
    number = torch.tensor(3)
    for window in (
        -1,
        (None, -2),
        (1.5, None),
        5.0,
        True,
        (1, False),
        "ab",
        "abc",
        (),
        (1,),
        (1, 2, 3),
        {1: 2},
        number,
    ):
        with pytest.raises(
            ValueError, match=r"^attention: window is .*, expected numbers of keys, 0 or more, or None$"
        ):
            oxiwarp.attention(q, k, v, window=window)
    for arguments, name in (((None, k, v), "q"), ((q, [1], v), "k"), ((q, k, 3), "v")):
        with pytest.raises(TypeError, match=f"^attention: {name} is .*, expected a torch.Tensor$"):
            oxiwarp.attention(*arguments)
    with pytest.raises(TypeError, match=r"^attention: mask is float, expected a torch.Tensor$"):
        oxiwarp.attention(q, k, v, mask=1.0)
    for name, values, expected in (
        ("causal", (None, 1, "yes", 2.5, [True], torch.tensor(True)), "bool"),
        ("scale", ("x", 1j, [1.0], torch.tensor(0.1), torch.tensor(0.1, requires_grad=True)), "number"),
        ("softcap", ("", "x", [], [1.0], torch.tensor(5.0)), "number"),
    ):
        for value in values:
            kind = re.escape(f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins."))
            kind = kind if name == "causal" else type(value).__name__
            with pytest.raises(TypeError, match=f"^attention: {name} is {kind}, expected a {expected}$"):
                oxiwarp.attention(q, k, v, **{name: value})


def test_bad_starts(device):
    q = random((2, 1, 64), torch.bfloat16, device)
    starts = torch.tensor([0, 2], dtype=torch.int32, device=device)
    for bad, kind in ((3, "int"), ("02", "str"), ([0, 2], "int"), ([0, 1, 2], "int"), ((starts, 2.0), "float")):
        with pytest.raises(TypeError, match=f"^attention: cu_seqlens is {kind}, expected a torch.Tensor$"):
            oxiwarp.attention(q, q, q, cu_seqlens=bad)
    for bad in ((starts,), [starts] * 3, ()):
        with pytest.raises(
            ValueError, match=rf"^attention: cu_seqlens has {len(bad)} tensors, expected one, or two of"
        ):
            oxiwarp.attention(q, q, q, cu_seqlens=bad)
    pair = [oxiwarp.attention(q, q, q, cu_seqlens=kind((starts, starts))) for kind in (tuple, list)]
    assert torch.equal(*pair) and torch.equal(pair[0], oxiwarp.attention(q, q, q, cu_seqlens=starts))


def test_odd_options(device):
    """`attention` accepts windows of any size. The scale may be a Python number or a numpy number."""
    q, k, v = heads((1, 6, 9, 1, 1, 64), torch.bfloat16, device)
    y = oxiwarp.attention(q, k, v)
    for window in (9, 2**31 - 1, 2**31, 2**63, 2**100, (2**64, None), [9, 9], (None, None)):
        assert torch.equal(oxiwarp.attention(q, k, v, window=window), y), window
    assert torch.equal(oxiwarp.attention(q, k, v, window=[2, 3]), oxiwarp.attention(q, k, v, window=(2, 3)))
    one = oxiwarp.attention(q, k, v, scale=1.0)
    for number in (1, numpy.float32(1), numpy.int64(1)):
        assert torch.equal(oxiwarp.attention(q, k, v, scale=number), one)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_options(dynamic, device):
    """`torch.compile` traces `attention`'s checks of its options without a graph break, even if the options
    are inputs of the graph."""

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=dynamic)
    def block(q, scale, softcap, window, starts):
        y = oxiwarp.attention(q + 0, q, q, scale=scale, softcap=softcap, window=window)
        return y + oxiwarp.attention(q[0], q[0], q[0], causal=True, cu_seqlens=starts)

    q = random((1, 6, 2, 64), torch.bfloat16, device)
    starts = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)
    tried = ((0.5, 3.0, 2, starts), (0.25, None, (3, None), [starts] * 2), (None, 2.0, None, (starts,) * 2))
    for scale, softcap, window, pair in (*tried, (0.125, 4.0, 3, starts)):
        right = oxiwarp.attention(q, q, q, scale=scale, softcap=softcap, window=window)
        packed = oxiwarp.attention(q[0], q[0], q[0], causal=True, cu_seqlens=pair)
        assert torch.equal(block(q, scale, softcap, window, pair), right + packed)


def test_learned_mask(device):
    """In grad mode, a mask that requires grad is an error, because `attention` computes no gradient for it."""
    q, k, v = heads((1, 2, 2, 1, 1, 64), torch.bfloat16, device)
    mask = torch.zeros(2, 2, device=device, requires_grad=True)
    for query in (q, q.detach().requires_grad_()):
        with torch.enable_grad(), pytest.raises(RuntimeError, match=r"^attention: mask requires grad, and there is no"):
            oxiwarp.attention(query, k, v, mask=mask)
    assert torch.equal(oxiwarp.attention(q, k, v, mask=mask), oxiwarp.attention(q, k, v))


def test_no_queries(device):
    """Without queries, the result is empty and all gradients are zero."""
    q, k, v = heads((1, 0, 3, 2, 2, 64), torch.bfloat16, device)
    y, lse = oxiwarp.attention(q, k, v, return_lse=True)
    assert y.shape == q.shape and lse.shape == (1, 2, 0)
    with torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        oxiwarp.attention(*leaves).sum().backward()
    assert all(x.grad.shape == x.shape and not x.grad.any() for x in leaves)
