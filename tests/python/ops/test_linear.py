"""Tests of `oxiwarp.linear`: results against float64, layouts of the operands, and gradients with the bits of
torch."""

import re

import pytest
import torch
import torch.nn.functional as F
from helpers import poisoned_like, random

import oxiwarp

BF16, F16 = torch.bfloat16, torch.float16
DTYPE = pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
BIAS = pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])


def operands(rows, depth, columns, dtype, device):
    """Return `x` of shape `[*rows, depth]`, a weight and a bias."""
    weight = random((columns, depth), dtype, device, 1, depth**-0.5)
    return random((*rows, depth), dtype, device), weight, random((columns,), dtype, device, 2)


def check(x, weight, bias, y):
    """Check a result against float64. The permitted error is the error of one rounding to the dtype of `x`,
    plus the error of a sum in float32.
    """
    right = F.linear(*(None if t is None else t.double() for t in (x, weight, bias)))
    size = x.double().abs() @ weight.double().abs().t() + (0 if bias is None else bias.double().abs())
    assert y.shape == right.shape and y.dtype == x.dtype and y.is_contiguous()
    allowed = 0.51 * torch.finfo(x.dtype).eps * right.abs() + 4 * 2.0**-23 * size + torch.finfo(x.dtype).tiny
    assert ((y.double() - right).abs() <= allowed).all()


@DTYPE
@BIAS
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        ((1,), 8, 8),
        ((3, 5), 64, 24),
        ((130,), 72, 200),
        ((2, 1, 67), 136, 264),
        ((), 96, 16),
        ((40,), 1032, 8),
    ],
    ids=str,
)
def test_values(rows, depth, columns, with_bias, dtype, device):
    x, weight, bias = operands(rows, depth, columns, dtype, device)
    bias = bias if with_bias else None
    check(x, weight, bias, oxiwarp.linear(x, weight, bias))


def test_one_rounding(device):
    """The bias is added before the sum is rounded.

    In bfloat16, 257 is rounded to 256. If the product was rounded first, the result would be 256, not 258.
    """
    x = torch.tensor([[256.0, 1.0, *[0.0] * 6]], device=device, dtype=BF16)
    one = torch.ones(8, device=device, dtype=BF16)
    assert torch.equal(oxiwarp.linear(x, one.expand(8, 8).contiguous(), one), torch.full_like(x, 258.0))


@BIAS
def test_other_layouts(with_bias, device):
    """`x` and `weight` may have any strides. The result has the same bits as for contiguous copies."""
    x, weight, bias = operands((2, 6, 4), 32, 16, BF16, device)
    bias = bias if with_bias else None
    expected = oxiwarp.linear(x, weight, bias)
    wide_x, wide_weight = (
        torch.zeros(2, 6, 4, 64, dtype=BF16, device=device),
        torch.zeros(16, 96, dtype=BF16).to(device),
    )
    inputs = [
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.mT.contiguous().mT,
        wide_x[..., 8:40].copy_(x),
        torch.stack((x, x), -1)[..., 0],
        torch.cat((x, x), 1)[:, :6],
    ]
    for other in inputs:
        assert torch.equal(oxiwarp.linear(other, weight, bias), expected), other.stride()
    for other in (weight.t().contiguous().t(), wide_weight[:, 16:48].copy_(weight), torch.cat((weight, weight))[:16]):
        assert torch.equal(oxiwarp.linear(x, other, bias), expected), other.stride()
    flat = oxiwarp.linear(x.view(48, 32), weight, bias)
    assert torch.equal(flat.view_as(expected), expected)
    assert torch.equal(oxiwarp.linear(x[1, 2, 3], weight, bias), expected[1, 2, 3])


def test_empty(device):
    x, weight, bias = operands((2, 3), 16, 8, BF16, device)
    for rows in (x[:0], x[:, :0]):
        assert oxiwarp.linear(rows, weight, bias).shape == (*rows.shape[:-1], 8)
    odd = torch.empty_strided((0, 3, 16), (3, 1, 7), dtype=BF16, device=device)
    assert oxiwarp.linear(odd, weight, bias).shape == (0, 3, 8)
    assert oxiwarp.linear(x, weight[:0], bias[:0]).shape == (2, 3, 0)
    leaves = [t.clone().requires_grad_() for t in (x, weight[:0], bias[:0])]
    with torch.enable_grad():
        oxiwarp.linear(*leaves).sum().backward()
    assert not leaves[0].grad.any() and leaves[1].grad.shape == (0, 16) and leaves[2].grad.shape == (0,)


@BIAS
def test_out(with_bias, device):
    """The result is written to `out`, which may be a slice. The elements around the slice do not change."""
    x, weight, bias = operands((2, 5), 40, 24, BF16, device)
    bias = bias if with_bias else None
    expected = oxiwarp.linear(x, weight, bias)
    out = poisoned_like(expected)
    version = out._version
    assert oxiwarp.linear(x, weight, bias, out=out) is out and out._version > version
    assert torch.equal(out, expected)
    store = torch.full((2, 5, 64), 77.0, dtype=BF16, device=device)
    oxiwarp.linear(x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias, out=store[..., 16:40])
    assert torch.equal(store[..., 16:40], expected)
    assert (store[..., :16] == 77.0).all() and (store[..., 40:] == 77.0).all()


def test_bad_out(device):
    x, weight, bias = operands((4,), 16, 16, BF16, device)
    before = x.clone()
    with pytest.raises(RuntimeError, match="^linear: out overlaps x$"):
        oxiwarp.linear(x, weight, out=x)
    assert torch.equal(x, before)
    with pytest.raises(RuntimeError, match=r"^linear: out of shape .* its last dimension must be contiguous$"):
        oxiwarp.linear(x, weight, out=torch.empty(16, 4, dtype=BF16, device=device).t())
    rows = torch.empty(2, 4, 16, dtype=BF16, device=device).transpose(0, 1)
    with pytest.raises(RuntimeError, match="^linear: out of shape .* its rows must have one distance"):
        oxiwarp.linear(x.view(4, 1, 16).expand(4, 2, 16), weight, out=rows)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="^linear: an input requires grad, and there is no"):
        oxiwarp.linear(x, weight, bias.requires_grad_(), out=torch.empty_like(x))


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "wide": lambda t: torch.cat((t, t), -1)[..., : t.shape[-1]],
}


@DTYPE
@BIAS
@pytest.mark.parametrize("of_weight", LAYOUTS)
@pytest.mark.parametrize("of_x", LAYOUTS)
@pytest.mark.parametrize("rows", [(48,), (3, 16), ()], ids=str)
def test_gradients(rows, of_x, of_weight, with_bias, dtype, device):
    """The gradients have the bits and the strides of torch's gradients."""
    if not rows and of_x == "transposed":
        pytest.skip("a vector")
    x, weight, bias = operands(rows, 40, 24, dtype, device)
    inputs = [LAYOUTS[of_x](x), LAYOUTS[of_weight](weight), *([bias] if with_bias else [])]
    inputs = [t.detach().requires_grad_() for t in inputs]
    dy = random((*rows, 24), dtype, device, 3)
    with torch.enable_grad():
        ours = torch.autograd.grad(oxiwarp.linear(*inputs), inputs, dy)
        own = torch.autograd.grad(F.linear(*inputs), inputs, dy)
    for a, b in zip(ours, own, strict=True):
        assert a.dtype == dtype and torch.equal(a, b)
        if of_x == "contiguous" or len(rows) == 1:
            assert a.stride() == b.stride()


@pytest.mark.parametrize("trained", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_some_gradients(trained, device):
    """Autograd saves only the tensors that the wanted gradients need.

    For example, a frozen weight needs no `x`. This saves memory in the training of LoRA.
    """
    inputs = operands((6,), 16, 8, BF16, device)
    inputs = [t.requires_grad_(wanted) for t, wanted in zip(inputs, trained, strict=True)]
    saved = []
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = oxiwarp.linear(*inputs)
    (wanted,) = (t for t in inputs if t.requires_grad)
    needed = {0: [inputs[1]], 1: [inputs[0]], 2: []}[trained.index(True)]
    assert len(saved) == len(needed) and all(a.data_ptr() == b.data_ptr() for a, b in zip(saved, needed, strict=True))
    with torch.enable_grad():
        (ours,) = torch.autograd.grad(y, wanted, torch.ones_like(y))
        (own,) = torch.autograd.grad(F.linear(*inputs), wanted, torch.ones_like(y))
    assert torch.equal(ours, own)


def test_operator(device):
    """The torch operators pass opcheck. `linear` works with torch.compile (including gradients and changing
    sizes) and with meta tensors."""
    x, weight, bias = operands((2, 3), 16, 24, BF16, device)
    for given in (bias, None):
        torch.library.opcheck(torch.ops.oxiwarp.linear.default, (x, weight, given))
        out = torch.empty(2, 3, 24, dtype=BF16, device=device)
        torch.library.opcheck(torch.ops.oxiwarp.linear_out.default, (x, weight, given, out))
    torch.compiler.reset()
    compiled = torch.compile(oxiwarp.linear, fullgraph=True, backend="aot_eager")
    with torch.enable_grad():
        for rows in (6, 10, 11):
            for layout in LAYOUTS.values():
                inputs = [layout(random((rows, 16), BF16, device)), weight, bias]
                inputs = [t.detach().requires_grad_() for t in inputs]
                y, right = compiled(*inputs), oxiwarp.linear(*inputs)
                assert torch.equal(y, right)
                ours, own = (torch.autograd.grad(t.float().square().sum(), inputs) for t in (y, right))
                assert all(torch.equal(a, b) for a, b in zip(ours, own, strict=True))
    meta = oxiwarp.linear(*(t.detach().to("meta") for t in (x, weight, bias)))
    assert meta.shape == (2, 3, 24) and meta.device.type == "meta" and meta.dtype == BF16


K = "expected [..., K] with K a positive multiple of 8"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w, b: oxiwarp.linear(x.float(), w), "x is f32, expected f16 or bf16"),
        (lambda x, w, b: oxiwarp.linear(x, w.half()), "weight is f16, expected bf16"),
        (lambda x, w, b: oxiwarp.linear(x, w.double()), "weight is float64, expected bf16"),
        (lambda x, w, b: oxiwarp.linear(x, w, b.float()), "bias is f32, expected bf16"),
        (lambda x, w, b: oxiwarp.linear(x, w, out=x.float()), "out is f32, expected bf16"),
        (lambda x, w, b: oxiwarp.linear(x[..., :12], w[:, :12]), f"x has shape [3, 12], {K}"),
        (lambda x, w, b: oxiwarp.linear(x[..., :0], w[:, :0]), f"x has shape [3, 0], {K}"),
        (lambda x, w, b: oxiwarp.linear(x[0, 0], w), f"x has shape [], {K}"),
        (lambda x, w, b: oxiwarp.linear(x, w[0]), "weight has shape [16], expected [N, 16]"),
        (lambda x, w, b: oxiwarp.linear(x, w[None]), "weight has shape [1, 24, 16], expected [N, 16]"),
        (lambda x, w, b: oxiwarp.linear(x, w[:, :8]), "weight has shape [24, 8], expected [24, 16]"),
        (
            lambda x, w, b: oxiwarp.linear(x, w[:20]),
            "weight has shape [20, 16], expected [N, 16] with N a multiple of 8",
        ),
        (lambda x, w, b: oxiwarp.linear(x, w, b[:8]), "bias has shape [8], expected [24]"),
        (lambda x, w, b: oxiwarp.linear(x, w, b[None]), "bias has shape [1, 24], expected [24]"),
        (lambda x, w, b: oxiwarp.linear(x, w, b, out=x.clone()), "out has shape [3, 16], expected [3, 24]"),
    ],
)
def test_bad_input(call, message, device):
    for where in (device, "meta"):
        x, weight, bias = (t.to(where) for t in operands((3,), 16, 24, BF16, device))
        with pytest.raises(RuntimeError, match="^linear: " + re.escape(message) + "$"):
            call(x, weight, bias)


def test_bad_bias_and_types(device):
    x, weight, bias = operands((3,), 16, 24, BF16, device)
    with pytest.raises(RuntimeError, match=r"^linear: bias of shape .* must be contiguous: call bias.contiguous\(\)$"):
        oxiwarp.linear(x, weight, torch.stack((bias, bias), 1)[:, 0])
    with pytest.raises(TypeError, match=r"^linear: bias is float, expected a torch.Tensor$"):
        oxiwarp.linear(x, weight, 1.0)
    with pytest.raises(RuntimeError, match="^linear: called in forward-mode AD"):
        torch.func.jvp(lambda t: oxiwarp.linear(t, weight), (x,), (x,))


@DTYPE
@BIAS
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(512, 3072, 3072), (4608, 3072, 9216), (4096, 12288, 3072), (8064, 2048, 2048), (4600, 3080, 1032)],
    ids=str,
)
def test_bits_of_torch(rows, depth, columns, with_bias, dtype, cuda):
    """On a Hopper GPU, `linear` has the bits of cuBLAS, if this is the cuBLAS of CUDA 13.0 and there are at
    least 512 rows."""
    if torch.cuda.get_device_capability(cuda) != (9, 0) or torch.version.cuda != "13.0":
        pytest.skip("no Hopper GPU, or another cuBLAS")
    x, weight, bias = operands((rows,), depth, columns, dtype, cuda)
    bias = bias if with_bias else None
    assert torch.equal(oxiwarp.linear(x, weight, bias), F.linear(x, weight, bias))
