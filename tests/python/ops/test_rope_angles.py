"""Tests of `rope_1d` and `rope_3d` against float64 angles, of `rope`'s gradient, and of invalid arguments."""

import functools
import math
import re

import numpy
import pytest
import torch
from helpers import DTYPES, random

import oxiwarp


def pair(dtype, device, *, tokens=12, heads=(4, 4)):
    """Return queries and keys of shape `[B, S, heads, 64]`."""
    return tuple(random((2, tokens, h, 64), dtype, device, seed=i) for i, h in enumerate(heads))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
def test_1d(interleaved, dtype, device):
    """`rope_1d` equals `rope` with tables whose sines and cosines are computed in float64, for the
    frequencies `theta**(-2i/D)`."""
    q, k = pair(dtype, device, heads=(3, 1))
    for positions in (None, torch.tensor([[0, 1, 5, 4095, 99_999, 123_456, 999_999, 2, 3, 4, 6, 7]], device=device)):
        got = oxiwarp.rope_1d(q, k, theta=500_000.0, positions=positions, interleaved=interleaved)
        at = torch.arange(12, device=device) if positions is None else positions[0]
        frequencies = 1.0 / (500_000.0 ** (torch.arange(0, 64, 2).float() / 64)).to(device)
        angles = (at[:, None].float() * frequencies).double()
        tables = [f(angles).float() for f in (torch.cos, torch.sin)]
        wanted = oxiwarp.rope(q, k, *tables, interleaved=interleaved)
        for y, w in zip(got, wanted, strict=True):
            if dtype == torch.float32:
                torch.testing.assert_close(y, w, rtol=0, atol=2e-6)
            else:
                assert (y != w).double().mean() < 2e-3
                torch.testing.assert_close(y, w, rtol=2**-7, atol=2e-6)
    assert torch.equal(got[0][:, 0], q[:, 0]), "position 0 turns nothing"


def test_1d_is_torch_on_cuda(cuda):
    """On a GPU, the sines and cosines of `rope_1d` equal torch's sines and cosines bit for bit."""
    x = torch.zeros(1, 4096, 1, 64, device=cuda)
    x[..., 0::2] = 1.0
    positions = torch.linspace(0, 105_000, 4096, device=cuda)
    y = oxiwarp.rope_1d(x, positions=positions)
    angles = positions[:, None] * oxiwarp.ops._rope_tables.frequencies(64, 10000.0, cuda)
    assert torch.equal(y[0, :, 0, 0::2], angles.cos())
    assert torch.equal(y[0, :, 0, 1::2], angles.sin())


def test_1d_frequencies_are_not_doubled(device):
    """At position 1, `rope_1d` rotates pair i by the angle `theta**(-2i/D)`, and not by `theta**(-4i/D)`."""
    x = torch.zeros(1, 2, 1, 8, device=device)
    x[..., 0::2] = 1.0
    y = oxiwarp.rope_1d(x)
    wanted = [10000.0 ** (-2 * i / 8) for i in range(4)]
    torch.testing.assert_close(torch.atan2(y[0, 1, 0, 1::2], y[0, 1, 0, 0::2]), torch.tensor(wanted, device=device))


def test_3d_axes(device):
    """Each axis of a `rope_3d` grid rotates only its own columns."""
    splits, grid = (4, 8, 4), (2, 3, 4)
    x = torch.zeros(1, 24, 1, 16, device=device)
    x[..., 0::2] = 1.0
    y = oxiwarp.rope_3d(x, grid=grid, splits=splits).view(2, 3, 4, 16)
    assert torch.equal(oxiwarp.rope_3d(x, grid=list(grid), splits=list(splits)).view_as(y), y)
    angle = torch.atan2(y[..., 1::2], y[..., 0::2]).cpu()
    for axis, columns in enumerate((slice(0, 2), slice(2, 6), slice(6, 8))):
        for other in range(3):
            moved = angle.select(other, 1) - angle.select(other, 0)
            if other == axis:
                base = torch.tensor([10000.0 ** (-2 * i / splits[axis]) for i in range(splits[axis] // 2)])
                torch.testing.assert_close(
                    moved[..., columns], base.expand_as(moved[..., columns]), rtol=1e-5, atol=1e-6
                )
            else:
                assert (moved[..., columns] == 0).all()
    assert math.isclose(angle[1, 0, 0, 0].item(), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
def test_gradient(interleaved, dtype, device):
    """The gradients of `rope` match float64 autograd of the formula."""
    q, k = (x.requires_grad_() for x in pair(dtype, device, heads=(4, 2)))
    angles = random((12, 32), torch.float32, device, seed=5)
    g = random((2, 12, 4, 64), dtype, device, seed=6)
    with torch.enable_grad():
        y, z = oxiwarp.rope(q, k, angles.cos(), angles.sin(), interleaved=interleaved)
        ((y * g).sum() + z.sum()).backward()
        wide_q, wide_k = (x.detach().double().requires_grad_() for x in (q, k))

        def apply(x):
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
            cos, sin = (f(angles.double())[:, None] for f in (torch.cos, torch.sin))
            turned = a * cos - b * sin, b * cos + a * sin
            return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)

        ((apply(wide_q) * g.double()).sum() + apply(wide_k).sum()).backward()
    bound = 1e-5 if dtype == torch.float32 else 2**-7
    for x, wide in ((q, wide_q), (k, wide_k)):
        torch.testing.assert_close(x.grad.double(), wide.grad, rtol=bound, atol=bound)


@pytest.mark.parametrize("heads_first", [False, True], ids=["tokens first", "heads first"])
@pytest.mark.parametrize("columns", [64, 24])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half-split"])
@pytest.mark.parametrize("normed", [False, True], ids=["rope", "qk_norm_rope"])
def test_gradient_of_two_angles(normed, interleaved, columns, heads_first, device):
    """The gradient is also right if a table has two angles per pair of columns, as in ERNIE-Image."""
    order = (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
    own = [x.permute(order) for x in pair(torch.float32, device, heads=(4, 2))]
    angles = random((12, columns), torch.float32, device, seed=5)
    g = random(own[0].shape, torch.float32, device, seed=6)
    options = dict(interleaved=interleaved, rotary_dim=columns, heads_first=heads_first)

    def gradients(run, dtype):
        q, k = (x.to(dtype).detach().requires_grad_() for x in own)
        y, z = run(q, k, angles.to(dtype).cos(), angles.to(dtype).sin())
        return torch.autograd.grad((y * g).sum() + (z * z.detach()).sum(), (q, k))

    def formula(x, cos, sin):
        cos, sin = (table if heads_first else table[:, None] for table in (cos, sin))
        x = torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6) if normed else x
        part = x[..., :columns]
        a, b = part.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else part.chunk(2, dim=-1)
        moved = torch.stack((-b, a), dim=-1).flatten(-2) if interleaved else torch.cat((-b, a), dim=-1)
        return torch.cat((part * cos + moved * sin, x[..., columns:]), dim=-1)

    op = functools.partial(oxiwarp.qk_norm_rope, eps=1e-6) if normed else oxiwarp.rope
    with torch.enable_grad():
        ours = gradients(lambda *args: op(*args, **options), torch.float32)
        wanted = gradients(lambda q, k, *tables: (formula(q, *tables), formula(k, *tables)), torch.float64)
    for made, right in zip(ours, wanted, strict=True):
        torch.testing.assert_close(made.double(), right, rtol=1e-4, atol=1e-5)


def test_empty(device):
    q, k = pair(torch.float32, device, tokens=0)
    cos = torch.empty(0, 64, device=device)
    assert oxiwarp.rope(q, k, cos, cos)[0].shape == q.shape


def test_refused(device):
    q, k = pair(torch.bfloat16, device)
    angles = random((12, 64), torch.float32, device)
    cos, sin = angles.cos(), angles.sin()
    for arguments, options, error, message in (
        ((q, k, cos[:11], sin[:11]), {}, RuntimeError, r"^rope: cos has shape \[11, 64\], expected .*12 tokens"),
        ((q, k, cos[:, :30], sin[:, :30]), {}, RuntimeError, r"^rope: cos has shape \[12, 30\]"),
        ((q, k, cos, sin[:, :32]), {}, RuntimeError, r"^rope: sin has shape \[12, 32\], expected \[12, 64\]"),
        ((q, k.float(), cos, sin), {}, RuntimeError, r"^rope: k is f32, expected bf16"),
        ((q, k[:, :11], cos, sin), {}, RuntimeError, r"^rope: k has shape"),
        ((q, k, cos.half(), sin.half()), {}, RuntimeError, r"^rope: cos is (torch\.float16|f16), expected bf16"),
        ((q.double(), None, cos, sin), {}, RuntimeError, r"^rope: q is (torch\.)?float64, expected f32, f16 or bf16"),
        ((q, k, cos, sin), {"rotary_dim": 66}, RuntimeError, r"^rope: rotary_dim is 66, expected an even number"),
        ((q, k, cos, sin), {"rotary_dim": 63}, RuntimeError, r"^rope: rotary_dim is 63, expected an even number"),
        ((q, k, cos, sin), {"offset": 1}, RuntimeError, r"^rope: "),
        ((q, k, cos, sin), {"offset": -1}, ValueError, r"^rope: offset is -1, expected 0 or more"),
        ((q, k, cos, sin), {"mode": "exakt"}, ValueError, r"^rope: mode is 'exakt', expected 'exact' or 'fast'"),
        ((q, k, cos, None), {}, ValueError, r"^rope: sin is None, .*without keys, pass k=None$"),
        ((q, cos, sin), {}, ValueError, r"^rope: sin is None, .*without keys, pass k=None$"),
        ((q, k, None, None), {}, TypeError, r"^rope: cos is NoneType"),
        ((q, 3, cos, sin), {}, TypeError, r"^rope: k is int, expected a torch\.Tensor or None"),
        ((q[0, 0], None, cos, sin), {}, RuntimeError, r"^rope: q has shape \[4, 64\], expected four dimensions"),
    ):
        with pytest.raises(error, match=message):
            oxiwarp.rope(*arguments, **options)
    for call in (oxiwarp.rope_1d, lambda q: oxiwarp.rope_3d(q, grid=(1, 3, 4))):
        with pytest.raises(RuntimeError, match=r"^rope: q has shape \[\], expected four dimensions"):
            call(q[0, 0, 0, 0])
    with torch.enable_grad(), pytest.raises(RuntimeError, match="a table requires grad"):
        oxiwarp.rope(q, None, cos.requires_grad_(), sin)


THREE = "expected three numbers: frames, height and width"
EVEN = "expected three even numbers whose sum is 64"
PLACES = "expected [12, 3] or [2, 12, 3]"
ABOVE = "expected a finite number above 0"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"theta": 0.0}, ValueError, f"theta is 0.0, {ABOVE}"),
        ({"theta": -10000.0}, ValueError, f"theta is -10000.0, {ABOVE}"),
        ({"theta": math.inf}, ValueError, f"theta is inf, {ABOVE}"),
        ({"theta": math.nan}, ValueError, f"theta is nan, {ABOVE}"),
        ({"theta": "10000"}, TypeError, "theta is str, expected a number"),
        ({"inv_freq": torch.ones(33)}, RuntimeError, "inv_freq has shape [33], expected [32]"),
        ({"inv_freq": torch.ones(32), "rotary_dim": 32}, RuntimeError, "inv_freq has shape [32], expected [16]"),
        ({"inv_freq": torch.ones(32).half()}, RuntimeError, "inv_freq is f16, expected f32"),
        ({"rotary_dim": "8"}, TypeError, "rotary_dim is str, expected an integer or None"),
        ({"rotary_dim": 8.0}, TypeError, "rotary_dim is float, expected an integer or None"),
        ({"rotary_dim": 0}, ValueError, "rotary_dim is 0, expected 1 or more"),
        ({"head_dim": "64"}, TypeError, "head_dim is str, expected an integer or None"),
        ({"positions": torch.arange(11)}, RuntimeError, "positions has shape [11], expected 12 tokens"),
        ({"positions": torch.arange(12).expand(3, 12)}, RuntimeError, "positions has shape [3, 12], expected one for"),
        ({"positions": torch.tensor(3)}, RuntimeError, "positions has shape [], expected [S] or [B, S]"),
    ],
)
def test_refused_by_1d(options, error, message, device):
    q, _ = pair(torch.float32, device)
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with pytest.raises(error, match="^rope: " + re.escape(message)):
        oxiwarp.rope_1d(q, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grid": (1, 3, 5)}, ValueError, "grid is (1, 3, 5) of 15 tokens, expected the 12 tokens of q"),
        (
            {"grid": (1, 3, 4), "offset": 1},
            ValueError,
            "grid is (1, 3, 4) of 12 tokens, the first of them token 1, exp",
        ),
        ({"grid": (1, -3, -4)}, ValueError, f"grid is (1, -3, -4), {THREE}"),
        ({"grid": (1.0, 3, 4)}, ValueError, f"grid is (1.0, 3, 4), {THREE}"),
        ({"grid": (1, 3, None)}, ValueError, f"grid is (1, 3, None), {THREE}"),
        ({"grid": (3, 4)}, ValueError, f"grid is (3, 4), {THREE}"),
        ({"grid": None}, TypeError, "grid is NoneType, expected three integers"),
        ({"grid": 12}, TypeError, "grid is int, expected three integers"),
        ({"splits": (40, 42, 42)}, ValueError, f"splits is (40, 42, 42), {EVEN}"),
        ({"splits": (20.0, 22, 22)}, ValueError, f"splits is (20.0, 22, 22), {EVEN}"),
        ({"splits": (84, -10, -10)}, ValueError, f"splits is (84, -10, -10), {EVEN}"),
        ({"splits": (21, 21, 22)}, ValueError, f"splits is (21, 21, 22), {EVEN}"),
        ({"splits": (32, 32)}, ValueError, f"splits is (32, 32), {EVEN}"),
        ({"splits": 64}, TypeError, "splits is int, expected three integers"),
        ({"theta": 0}, ValueError, f"theta is 0, {ABOVE}"),
        ({"theta": math.nan}, ValueError, f"theta is nan, {ABOVE}"),
        ({"theta": 1.0, "at": (12, 3)}, ValueError, f"theta is 1.0, {ABOVE} that is not 1"),
        ({"theta": None, "at": (12, 3)}, TypeError, "theta is NoneType, expected a number"),
        ({"at": (12, 3), "splits": (20, 22, 22)}, ValueError, "splits is (20, 22, 22), expected None beside coord"),
        ({"at": (12, 3), "grid": (9, 9, 9)}, ValueError, "grid is (9, 9, 9) of 729 tokens, expected the 12 tokens"),
        ({"at": (12, 2)}, RuntimeError, f"coordinates has shape [12, 2], {PLACES}"),
        ({"at": (11, 3)}, RuntimeError, f"coordinates has shape [11, 3], {PLACES}"),
        ({"at": (2, 3, 12)}, RuntimeError, f"coordinates has shape [2, 3, 12], {PLACES}"),
        ({"at": (3, 12, 3)}, RuntimeError, f"coordinates has shape [3, 12, 3], {PLACES}"),
        ({"at": (3,)}, RuntimeError, f"coordinates has shape [3], {PLACES}"),
        ({"offset": "1"}, TypeError, "offset is str, expected an integer or None"),
        ({"head_dim": "8"}, TypeError, "head_dim is str, expected an integer or None"),
    ],
)
def test_refused_by_3d(options, error, message, device):
    """`rope_3d` rejects invalid options. If `options` has the key `at`, its value is a shape, and the test
    passes a tensor of this shape as `coordinates`."""
    q = pair(torch.float32, device)[0][:, :, 0]
    options = dict(options)
    if "at" in options:
        options["coordinates"] = torch.rand(options.pop("at"), device=device)
    else:
        options = {"grid": (1, 3, 4)} | options
    with pytest.raises(error, match="^rope: " + re.escape(message)):
        oxiwarp.rope_3d(q, **options)


def test_what_a_grid_may_be(device):
    """A `grid` for `rope_3d` may be a list, a `torch.Size` or a numpy array.

    A call with `coordinates` needs no `grid`.
    """
    q = pair(torch.float32, device)[0][:, :, 0]
    y = oxiwarp.rope_3d(q, grid=(1, 3, 4))
    for grid in ([1, 3, 4], torch.Size((1, 3, 4)), numpy.array([1, 3, 4])):
        assert torch.equal(oxiwarp.rope_3d(q, grid=grid), y)
    coordinates = torch.rand(12, 3, device=device)
    y = oxiwarp.rope_3d(q, grid=(1, 3, 4), coordinates=coordinates)
    assert torch.equal(oxiwarp.rope_3d(q, coordinates=coordinates), y)
