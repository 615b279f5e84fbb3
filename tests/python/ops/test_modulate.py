"""Tests that `oxiwarp.modulate` has the bits of eager torch."""

import re

import pytest
import torch
from helpers import DTYPES, random
from norms import BF16, F32, FORMS, modulate, operand

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SHIFTS = pytest.mark.parametrize("shifts", [False, True], ids=["scale", "scale and shift"])


def check(x, scale, shift, what):
    """Check that the result of `modulate` equals torch's result bit for bit. The bits are also equal on the CPU,
    because no step is a sum over a row.
    """
    y = oxiwarp.modulate(x, scale, shift)
    assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()
    own = modulate(x, scale, shift)
    assert torch.equal(y, own), f"{what}: {(y != own).sum()} values differ"
    once = x.float() * (1 + scale.float())
    once = (once if shift is None else once + shift.float()).to(x.dtype)
    assert torch.equal(oxiwarp.modulate(x, scale, shift, mode="fast"), once), f"{what}, fast"


@DTYPE
@SHIFTS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2049])
def test_forms(cols, form, shifts, dtype, device):
    shape = (3, 5, cols)
    for single in (False, True):
        own = F32 if single else dtype
        scale, shift = (operand(form, shape, own, device, seed) for seed in (1, 2))
        check(random(shape, dtype, device), scale, shift if shifts else None, f"{form}, float32 {single}")


@DTYPE
def test_other_operands(dtype, device):
    """Scale and shift may have different dtypes and shapes. `x` may be a slice with an unaligned address."""
    wide = random((2, 3, 2 * 40 + 1), dtype, device)
    for x in (wide[..., :40], wide[..., 1:41], wide[:, 1:, 3:]):
        shape = tuple(x.shape)
        batch, token = operand("batch", shape, dtype, device, 1), operand("token", shape, F32, device, 2)
        check(x, batch, token, "float32 shift")
        check(x, token, batch, "float32 scale")
    x, scale = random((2, 3, 4, 8), dtype, device), random((2, 1, 1, 8), dtype, device, 1)
    check(x, scale, random((8,), dtype, device, 2), "four dimensions")
    for empty in ((0, 8), (2, 0, 8)):
        assert oxiwarp.modulate(random(empty, dtype, device), scale[0, 0, 0]).shape == empty


def test_frames(device):
    """Scale and shift may have one vector per video frame, with shape `[B, F, 1, N]`, if `x` is viewed as
    `[B, F, tokens, N]`."""
    x, scale = random((2, 3 * 4, 16), BF16, device), random((2, 3, 1, 16), BF16, device, 1)
    check(x.unflatten(1, (3, 4)), scale, None, "frames")


@DTYPE
@SHIFTS
@pytest.mark.parametrize("form", FORMS)
def test_gradients(form, shifts, dtype, device):
    shape = (3, 5, 40)
    tensors = [random(shape, dtype, device), *(operand(form, shape, dtype, device, seed) for seed in (1, 2))]
    inputs = [tensor.detach().requires_grad_() for tensor in tensors[: 3 if shifts else 2]]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    dy = random(shape, dtype, device, 3)
    with torch.enable_grad():
        ours = torch.autograd.grad(oxiwarp.modulate(*inputs), inputs, dy)
        y = wide[0] * (1 + wide[1])
        right = torch.autograd.grad(y + wide[2] if shifts else y, wide, dy.double())
    for own, double in zip(ours, right, strict=True):
        assert own.dtype == dtype and own.shape == double.shape
        torch.testing.assert_close(own.double(), double, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_operator(device):
    """The torch operator `modulate` passes opcheck. It works with torch.compile (including gradients) and
    with meta tensors."""
    x, scale, shift = (random(s, F32, device, seed) for seed, s in enumerate([(2, 3, 16), (2, 1, 16), (16,)]))
    for shifted in (shift, None):
        torch.library.opcheck(torch.ops.oxiwarp.modulate.default, (x, scale, shifted, None, True))
    torch.compiler.reset()
    inputs = [tensor.requires_grad_() for tensor in (x, scale, shift)]
    with torch.enable_grad():
        compiled = torch.compile(oxiwarp.modulate, fullgraph=True, backend="aot_eager")(*inputs)
        ours = torch.autograd.grad(compiled.square().sum(), inputs)
        own = torch.autograd.grad(modulate(*inputs).square().sum(), inputs)
    for a, b in zip(ours, own, strict=True):
        torch.testing.assert_close(a, b)
    meta = oxiwarp.modulate(*(tensor.detach().to("meta") for tensor in inputs))
    assert meta.shape == x.shape and meta.device.type == "meta"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: oxiwarp.modulate(x, x[:2]), "scale has shape [2, 8], expected one that broadcasts to [3, 8]"),
        (lambda x: oxiwarp.modulate(x, x[0], x[0, :4]), "shift has shape [4], expected one that broadcasts to [3, 8]"),
        (lambda x: oxiwarp.modulate(x, x[0].int()), "scale is int32, expected f32, f16 or bf16"),
        (lambda x: oxiwarp.modulate(x.double(), x[0]), "x is float64, expected f32, f16 or bf16"),
    ],
)
def test_bad_input(call, message, device):
    for x in (random((3, 8), F32, device), torch.empty(3, 8, device="meta")):
        with pytest.raises(RuntimeError, match="^modulate: " + re.escape(message)):
            call(x)
    with pytest.raises(TypeError, match=r"^modulate: shift is int, expected a torch.Tensor$"):
        oxiwarp.modulate(torch.ones(3, 8), torch.ones(8), 3)
