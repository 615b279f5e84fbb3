"""Tests of the operators for Mochi against float64. On a GPU, their results must also equal diffusers and
eager torch bit for bit."""

import pytest
import torch
from activations import check_once, every_16_bit_value, same_bits
from helpers import DTYPES, random
from norms import BF16, EPS, FORMS, WIDTHS, check_chain, doubles, mochi_modulated, mochi_residual, operand
from torch import nn

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
modulated, residual = oxiwarp.modulated_rms_norm, oxiwarp.residual_tanh_gated_rms_norm
chained = oxiwarp.residual_tanh_gated_rms_norm_modulated


def make(form, shape, dtype, device):
    """Return `[x, x_res, gate, scale]`."""
    sides = [operand(form, shape, dtype, device, seed, 1.0) for seed in (2, 3)]
    return [random(shape, dtype, device), random(shape, dtype, device, 1), *sides]


def check(arguments, what, *, bits):
    """Check the gated residual and the modulated norm of Mochi against eager torch and float64.

    A third operator fuses these two. It must give the same bits as the two operators one after the other.
    """
    x, x_res, gate, scale = arguments
    out = residual(x, x_res, gate)
    check_chain(out, mochi_residual(x, x_res, gate), mochi_residual(*doubles([x, x_res, gate])), what, bits=bits)
    normed = modulated(out, scale)
    right = mochi_modulated(out.double(), scale.double())
    check_chain(normed, mochi_modulated(out, scale), right, what, bits=bits)
    check_once(normed, right, right.abs() + mochi_modulated(out.double(), torch.zeros_like(scale).double()).abs(), what)
    both = chained(x, x_res, gate, scale)
    assert torch.equal(both[0], normed) and torch.equal(both[1], out), f"{what}: chained"


@DTYPE
@pytest.mark.parametrize("cols", WIDTHS)
def test_bits_of_torch(cols, dtype, device):
    shape = (2, 16 if device.type == "cuda" else 2, cols)
    check(make("batch slice", shape, dtype, device), f"{cols} {dtype}", bits=True)


@DTYPE
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 25000])
def test_forms(cols, form, dtype, device):
    arguments = make(form, (2, 3, cols), dtype, device)
    check(arguments, f"{form} {cols}", bits=False)
    # With a float32 gate, tanh(gate) is not rounded to 16 bits.
    check([*arguments[:2], *(side.float() for side in arguments[2:])], f"{form} {cols}, float32", bits=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_gate(dtype, device):
    """If `x_res` is 1 and `x` is -0.0, `residual_tanh_gated_rms_norm` returns tanh(gate). The test checks
    every 16-bit value of the gate.

    The operator computes `x + rms_norm(x_res) * tanh(gate)`. The norm of a row of ones is 1, and the addition
    of -0.0 changes nothing.
    """
    gate = every_16_bit_value(dtype, device)
    ones = torch.ones(1, 1, 2**16, dtype=dtype, device=device)
    assert same_bits(residual(-0.0 * ones, ones, gate, eps=0.0)[0, 0], torch.tanh(gate.float()).to(dtype))


@DTYPE
def test_modules_of_diffusers(dtype, device):
    """The operators for Mochi equal diffusers' classes MochiRMSNormZero and MochiModulatedRMSNorm, as
    MochiTransformerBlock calls them.

    A gate or scale of shape `[B, D]` acts like a gate or scale of shape `[B, 1, D]`.
    """
    mochi = pytest.importorskip("diffusers.models.transformers.transformer_mochi")
    x, x_res, *_ = make("vector", (2, 16, 3072), dtype, device)
    emb = random((2, 4 * 3072), dtype, device, 4)
    zero = mochi.MochiRMSNormZero(3072, 4 * 3072, eps=EPS)
    zero.linear = zero.silu = nn.Identity()
    scale_msa, gate_msa, scale_mlp, _ = emb.chunk(4, dim=1)
    own = zero(x, emb)[0]
    check_chain(modulated(x, scale_msa), own, mochi_modulated(x.double(), scale_msa[:, None].double()), "norm1")

    norm = mochi.MochiModulatedRMSNorm(eps=EPS)
    out = x + norm(x_res, torch.tanh(gate_msa).unsqueeze(1))
    own = norm(out, 1 + scale_mlp.unsqueeze(1).to(torch.float32))
    right = mochi_residual(x.double(), x_res.double(), gate_msa[:, None].double())
    normed, total = chained(x, x_res, gate_msa, scale_mlp)
    check_chain(total, out, right, "norm2")
    if total.is_cuda:
        assert torch.equal(normed, own), "norm3"
    assert torch.equal(total, residual(x, x_res, gate_msa[:, None])), "[B, D] is [B, 1, D]"
    assert torch.equal(normed, modulated(total, scale_mlp[:, None]))


@DTYPE
def test_modulated_rounds_once(dtype, device):
    """For 16-bit inputs, `modulated_rms_norm` rounds once.

    Its results therefore differ from the results of `ada_norm`, which rounds after every step.
    """
    x, _, _, scale = make("batch", (2, 16, 640), dtype, device)
    differ = (modulated(x, scale) != oxiwarp.ada_norm(x, scale, norm="rms_norm")).double().mean()
    assert differ == 0 if dtype == torch.float32 else differ > 0.05


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4, 8), (0, 8), (2, 0, 8)], ids=str)
def test_ranks_and_no_rows(shape, device):
    x, vector = random(shape, BF16, device), random((8,), BF16, device, 1)
    out = mochi_residual(x, x, vector)
    assert residual(x, x, vector).shape == modulated(x, vector).shape == shape
    normed, total = chained(x, x, vector, vector)
    assert torch.equal(total, residual(x, x, vector)) and normed.shape == shape
    torch.testing.assert_close(total, out, rtol=1e-2, atol=1e-2)


@DTYPE
@pytest.mark.parametrize("cols", [129, 3072, 25000])
def test_batch_invariant(cols, dtype, device):
    x, x_res, gate, scale = make("vector", (1, 37, cols), dtype, device)
    normed, out = chained(x, x_res, gate, scale)
    for row in (slice(0, 1), slice(17, 18), slice(30, 37)):
        alone = chained(x[:, row], x_res[:, row], gate, scale)
        assert torch.equal(alone[0], normed[:, row]) and torch.equal(alone[1], out[:, row])


@DTYPE
def test_strided_and_unaligned(dtype, device):
    arguments = make("token", (2, 3, 64), dtype, device)
    packed = chained(*arguments)
    for name, tensor in enumerate(arguments):
        for start in (0, 1, 64):
            view = random((2, 3, 130), dtype, device)[..., start : start + 64].copy_(tensor)
            normed, out = chained(*arguments[:name], view, *arguments[name + 1 :])
            assert torch.equal(normed, packed[0]) and torch.equal(out, packed[1]), f"operand {name} from {start} on"


@DTYPE
def test_extremes(dtype, device):
    """Mochi's operators give NaN and infinities in the same elements as torch."""
    x, x_res, gate, scale = make("batch", (1, 6, 72), dtype, device)
    x_res[0, 0, 3], x_res[0, 1, 5], x[0, 2, 7], x[0, 3, 9] = float("nan"), float("inf"), float("nan"), -float("inf")
    gate[0, 0, 11] = float("nan")
    y, own = residual(x, x_res, gate), mochi_residual(x, x_res, gate)
    assert torch.equal(y.isnan(), own.isnan()) and torch.equal(y.isinf(), own.isinf())
    normed, own = chained(x, x_res, gate, scale)[0], mochi_modulated(y, scale)
    assert torch.equal(normed.isnan(), own.isnan())
