"""Tests of activations and gated activations: results compared with eager torch and with float64."""

import pytest
import torch
from activations import ACTIVATIONS, GATED, SHAPES, check_exact, check_once, every_16_bit_value, same_bits
from helpers import DTYPES, random

import oxiwarp

PARAMETERS = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each = pytest.mark.parametrize("name", ACTIVATIONS)
each_gated = pytest.mark.parametrize("name", GATED)


@PARAMETERS
@each
def test_table(name, dtype, device):
    f, eager = getattr(oxiwarp, name), ACTIVATIONS[name]
    for rows, cols in SHAPES:
        x = random((rows, cols), dtype, device, scale=2.0)
        bias = random((cols,), dtype, device, seed=1)
        check_exact(f(x), eager(x), x, f"{rows} x {cols}")
        check_exact(f(x, bias), eager(x + bias), x + bias, f"{rows} x {cols} with a bias")
        for y, v in ((f(x, mode="fast"), x.double()), (f(x, bias, mode="fast"), x.double() + bias.double())):
            check_once(y, eager(v), v.abs().clamp_min(1.0), f"{rows} x {cols}, fast")


@PARAMETERS
@each_gated
def test_gated_table(name, dtype, device):
    f, eager = GATED[name]
    for rows, cols in SHAPES:
        first, second = (random((rows, cols), dtype, device, seed, scale=2.0) for seed in (0, 1))
        bias = random((2 * cols,), dtype, device, seed=2)
        scale = first.abs().clamp_min(1.0) * second.abs().clamp_min(1.0) * 4
        packed = torch.cat([first, second], -1)
        y = f(packed)
        check_exact(y, eager(first, second), scale, f"{rows} x {cols}")
        assert torch.equal(y, f(first, second)), "packed or not"
        sums = (first + bias[:cols], second + bias[cols:])
        check_exact(f(packed, bias=bias), eager(*sums), scale, f"{rows} x {cols} with a bias")
        assert torch.equal(f(packed, bias=bias), f(first, second, bias))
        # Do not compare fatrelu: oxiwarp rounds its threshold to the dtype of x, but the float64 reference
        # does not, so results near the threshold could differ.
        if name != "fatrelu_and_mul":
            right = eager(first.double(), second.double())
            check_once(f(packed, mode="fast"), right, scale, f"{rows} x {cols}, fast")


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@each
def test_every_16_bit_value(name, dtype, device):
    x = every_16_bit_value(dtype, device)
    check_exact(getattr(oxiwarp, name)(x), ACTIVATIONS[name](x), x, "every value")


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@each_gated
def test_gated_every_16_bit_value(name, dtype, device):
    """Gated activations equal torch bit for bit. One operand has every 16-bit value, and the other has random
    values."""
    f, eager = GATED[name]
    x, other = every_16_bit_value(dtype, device), random((2**16,), dtype, device)
    for first, second in ((x, other), (other, x)):
        scale = first.abs().clamp_min(1.0) * second.abs().clamp_min(1.0)
        check_exact(f(first, second), eager(first, second), scale, "every value")


@each
def test_every_f32_value(name, cuda):
    """For all 2^32 float32 values, every activation equals torch bit for bit."""
    f, step = getattr(oxiwarp, name), 2**27
    for start in range(-(2**31), 2**31, step):
        x = (torch.arange(step, dtype=torch.int32, device=cuda) + start).view(torch.float32)
        y, own = f(x), ACTIVATIONS[name](x)
        bad = (y.view(torch.int32) != own.view(torch.int32)) & ~(y.isnan() & own.isnan())
        if bad.any():
            at = bad.nonzero()[0, 0]
            pytest.fail(f"{int(bad.sum())} differ; f({x[at].item()!r}) is {y[at].item()!r}, torch's {own[at].item()!r}")


@each_gated
def test_gated_random_f32(name, cuda):
    f, eager = GATED[name]
    x = random((2, 2**20), torch.float32, cuda, scale=4.0)
    assert same_bits(f(x[0], x[1]), eager(x[0], x[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threshold_is_rounded(dtype, cuda):
    """`fatrelu_and_mul` rounds its threshold to the dtype of `x`, as torch's CUDA kernel does.

    The rounding matters for the threshold 0.3, which 16-bit dtypes cannot represent. torch's CPU kernel
    compares with the unrounded 0.3.
    """
    x, up = torch.linspace(0.29, 0.31, 1000).to(dtype).to(cuda), random((1000,), dtype, cuda)
    own = torch.nn.functional.threshold(x, 0.3, 0.0) * up
    assert same_bits(oxiwarp.fatrelu_and_mul(x, up, threshold=0.3), own)


@pytest.mark.parametrize("shape", [(), (8,), (2, 3, 8), (2, 2, 2, 2, 2, 8), (0,), (0, 3, 8), (3, 0), (2, 0, 8)])
def test_ranks(shape, device):
    x = random(shape, torch.float32, device)
    y = oxiwarp.silu(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y, torch.nn.functional.silu(x))
    if x.numel() and x.dim():
        torch.testing.assert_close(oxiwarp.swiglu(x), torch.nn.functional.silu(x[..., 4:]) * x[..., :4])
    if not x.numel():
        assert oxiwarp.geglu(x, x).shape == x.shape


@PARAMETERS
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2048])
def test_strided(cols, dtype, device):
    """Activations accept slices, chunks, expanded rows, and base addresses that are not aligned to 16 bytes."""
    wide = random((4, 3, 4 * cols), dtype, device)
    for x in (
        wide[..., :cols],
        wide[..., cols : 2 * cols],
        wide[1:3, ::2, -cols:],
        wide[:, 1, :cols],
        wide[0, 0, :cols],
    ):
        check_exact(oxiwarp.gelu(x), torch.nn.functional.gelu(x), x, "slice")
    row = random((1, cols), dtype, device).expand(5, cols)
    check_exact(oxiwarp.silu(row), torch.nn.functional.silu(row), row, "repeated")
    flat = wide.flatten()
    for offset in (1, 2, 3):
        x = flat[offset : offset + 8 * cols]
        check_exact(oxiwarp.gelu_tanh(x), ACTIVATIONS["gelu_tanh"](x), x, f"offset {offset}")
        x = x.view(4, 2 * cols)
        first, second = x.chunk(2, -1)
        own = first * torch.nn.functional.gelu(second)
        check_exact(oxiwarp.geglu(x), own, x[..., :cols].abs() + 4, f"offset {offset}")
    for x in (wide[..., : 2 * cols], wide[:, 1:, cols : 3 * cols]):
        first, second = x.chunk(2, -1)
        own = torch.nn.functional.silu(first) * second
        check_exact(oxiwarp.silu_and_mul(x), own, second.abs() + 4, "packed slice")
        check_exact(oxiwarp.silu_and_mul(first, second), own, second.abs() + 4, "two slices")


@PARAMETERS
@pytest.mark.parametrize("cols", [40, 129, 2560])
def test_batch_invariant(cols, dtype, device):
    """The bits of a row's result do not depend on the number of rows in the tensor or on the index of the
    row."""
    x, bias = random((1037, 2 * cols), dtype, device), random((2 * cols,), dtype, device, seed=1)
    for f in (lambda x: oxiwarp.geglu(x), lambda x: oxiwarp.geglu(x, bias=bias), lambda x: oxiwarp.gelu(x, bias)):
        y = f(x)
        for row in (0, 17, 1036):
            assert torch.equal(f(x[row : row + 1])[0], y[row])
        assert torch.equal(f(x[1:8]), y[1:8])


@pytest.mark.parametrize(("rows", "cols"), [(16128, 8192), (8192, 14336), (300001, 7168)])
def test_large(rows, cols, cuda):
    """`gelu` and `geglu` equal torch bit for bit on large tensors, one of which has more than 2^31
    elements."""
    if torch.cuda.mem_get_info()[0] < 8 * rows * cols:
        pytest.skip("needs more GPU memory")
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device=cuda).normal_()
    y, z = oxiwarp.gelu(x), oxiwarp.geglu(x)
    for at in (slice(0, 5), slice(rows // 2, rows // 2 + 5), slice(rows - 5, rows)):
        first, second = x[at].chunk(2, -1)
        assert same_bits(y[at], torch.nn.functional.gelu(x[at]))
        assert same_bits(z[at], first * torch.nn.functional.gelu(second))
    for y_part, x_part in zip(y.chunk(64), x.chunk(64), strict=True):
        assert same_bits(y_part, torch.nn.functional.gelu(x_part))


def test_fast_silu_of_the_smallest_exponentials(device):
    """In mode "fast", `silu(x)` returns a small number instead of 0 if 1 + e^-x exceeds 2^126.

    `silu_and_mul(x, inf)` is therefore infinite, as in torch. If `silu(x)` was 0, the product would be NaN.
    """
    x = torch.tensor([-86.0, -87.0, -87.5, -88.0, -88.5], device=device)
    expected = x.double() / (1 + torch.exp(-x.double()))
    assert (oxiwarp.silu(x, mode="fast").double() / expected - 1).abs().max() < 1e-4
    gate = torch.tensor([-88.0, -88.0, -88.0, -88.0], device=device)
    up = torch.tensor([torch.inf, -torch.inf, 1.0, 3e38], device=device)
    by_torch = torch.nn.functional.silu(gate) * up
    assert torch.allclose(oxiwarp.silu_and_mul(gate, up, mode="fast"), by_torch, rtol=1e-4, atol=0)
