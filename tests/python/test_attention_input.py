"""What `oxiwarp.attention` refuses, by kernel and by fake."""

import pytest
import torch
from test_attention import heads

import oxiwarp


def cases(device):
    """Arguments and the beginning of what is said about them, by kernel and fake alike."""
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
        (packed, dict(cu_seqlens=(starts, None)), None),
    )


def test_meta():
    for arguments, options, message in cases("meta"):
        if message is not None:
            with pytest.raises(RuntimeError, match=f"^attention: {message}"):
                oxiwarp.attention(*arguments, **options)
    q, k, v = heads((2, 5, 7, 4, 2, 64), torch.bfloat16, "meta")
    y, lse = oxiwarp.attention(q, k, v, return_lse=True)
    assert y.shape == q.shape and lse.shape == (2, 4, 5) and lse.dtype == torch.float32


def test_bad_input(device):
    for arguments, options, message in cases(device):
        with pytest.raises(
            RuntimeError, match=f"^attention: {message or 'cu_seqlens_q is given without cu_seqlens_k'}"
        ):
            oxiwarp.attention(*arguments, **options)
    q, k, v = heads((2, 5, 7, 4, 2, 64), torch.bfloat16, device)
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    packed = (q[0], k[0], v[0])
    for x, options, message in (
        ((q.transpose(-1, -2), k, v), {}, r"(q of shape|k has shape)"),
        ((q[..., ::2], k[..., :32], v[..., :32]), {}, r"q of shape .* has strides .*: its last dimension"),
        ((q, k, v), dict(mask=torch.ones(2, 7, device=device)), r"mask has shape \[2, 7\], expected one that"),
        ((q, k, v), dict(softcap=-1.0), "softcap is -1, expected a finite number of 0 or more"),
        ((q, k, v), dict(scale=float("nan")), "scale is NaN, expected a finite number"),
        (packed, dict(cu_seqlens=starts.long()), "cu_seqlens_q is i64, expected i32"),
        (packed, dict(cu_seqlens=starts, mask=torch.ones(7, device=device)), "mask has shape .*, expected none"),
        (packed, dict(cu_seqlens=(starts, starts[:1])), r"cu_seqlens_k has shape \[1\], expected \[2\]"),
    ):
        with pytest.raises(RuntimeError, match=f"^attention: {message}"):
            oxiwarp.attention(*x, **options)


def test_bad_options(device):
    q, k, v = heads((1, 2, 2, 1, 1, 64), torch.bfloat16, device)
    for layout in ("bsdh", None, 1, ["bshd"]):
        with pytest.raises(ValueError, match=r"^attention: layout is .*, expected 'bshd' or 'bhsd'$"):
            oxiwarp.attention(q, k, v, layout=layout)
    for window in (-1, (None, -2), (1.5, None)):
        with pytest.raises(
            ValueError, match=r"^attention: window is .*, expected numbers of keys, 0 or more, or None$"
        ):
            oxiwarp.attention(q, k, v, window=window)
    for arguments, name in (((None, k, v), "q"), ((q, [1], v), "k"), ((q, k, 3), "v")):
        with pytest.raises(TypeError, match=f"^attention: {name} is .*, expected a torch.Tensor$"):
            oxiwarp.attention(*arguments)
    with pytest.raises(TypeError, match=r"^attention: mask is float, expected a torch.Tensor$"):
        oxiwarp.attention(q, k, v, mask=1.0)
    with pytest.raises(ValueError, match=r"^attention: cu_seqlens has 1 tensors, expected one, or two of"):
        oxiwarp.attention(q[0], k[0], v[0], cu_seqlens=(torch.tensor([0, 2], dtype=torch.int32, device=device),))


def test_learned_mask(device):
    """A gradient that nobody computes is an error, not None."""
    q, k, v = heads((1, 2, 2, 1, 1, 64), torch.bfloat16, device)
    mask = torch.zeros(2, 2, device=device, requires_grad=True)
    for query in (q, q.detach().requires_grad_()):
        with torch.enable_grad(), pytest.raises(RuntimeError, match=r"^attention: mask requires grad, and there is no"):
            oxiwarp.attention(query, k, v, mask=mask)
    assert torch.equal(oxiwarp.attention(q, k, v, mask=mask), oxiwarp.attention(q, k, v))


def test_no_queries(device):
    """Nothing to do, with gradients of zero for what nobody asked."""
    q, k, v = heads((1, 0, 3, 2, 2, 64), torch.bfloat16, device)
    y, lse = oxiwarp.attention(q, k, v, return_lse=True)
    assert y.shape == q.shape and lse.shape == (1, 2, 0)
    with torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        oxiwarp.attention(*leaves).sum().backward()
    assert all(x.grad.shape == x.shape and not x.grad.any() for x in leaves)
