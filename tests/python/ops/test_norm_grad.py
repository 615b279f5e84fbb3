"""Tests of the norms' gradients with respect to every operand, against float64 autograd of the eager formula."""

import pytest
import torch
from helpers import DTYPES, random
from norm_calls import CALLS, op_of, results
from norms import F32, doubles

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
CALL = pytest.mark.parametrize("name", CALLS)
SHAPE = (2, 5, 24)
# Permitted error of an operand's gradient in units of eps, relative to the largest element of this gradient.
# It is large enough for about a dozen roundings in 16 bits.
UNITS = {torch.float32: 64, torch.float16: 8, torch.bfloat16: 8}


def gradients(f, operands, seeds):
    """Return two values: the results of `f`, and its gradients with respect to all operands. The incoming
    gradients are random numbers from `seeds`."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in operands.items()}
    with torch.enable_grad():
        outputs = results(f(**leaves))
        found = torch.autograd.grad(
            outputs,
            list(leaves.values()),
            [random(y.shape, y.dtype, y.device, s) for y, s in zip(outputs, seeds, strict=False)],
        )
    return outputs, dict(zip(leaves, found, strict=True))


def check(name, operands, **options):
    call = CALLS[name]
    outputs, ours = gradients(lambda **leaves: call.ours(**leaves, **options), operands, (50, 51))
    _, right = gradients(call.formula, doubles(operands), (50, 51))
    for key, gradient in ours.items():
        assert gradient.dtype == operands[key].dtype and gradient.shape == operands[key].shape
        dtype = operands["x"].dtype
        off = (gradient.double() - right[key]).abs().max() / right[key].abs().max()
        assert off <= UNITS[dtype] * torch.finfo(dtype).eps, f"{name}, {key}: {off / torch.finfo(dtype).eps:.1f} units"
    plain = results(call.ours(**operands, **options))
    for y, kernel in zip(outputs, plain, strict=True):
        assert y.dtype == kernel.dtype and y.requires_grad and not kernel.requires_grad
        assert torch.equal(y, kernel), name


@DTYPE
@CALL
def test_every_operand(name, dtype, device):
    check(name, CALLS[name].operands(SHAPE, dtype, device))


@DTYPE
@CALL
def test_operands_in_float32(name, dtype, device):
    """The gradients match float64 if scale, shift, gate, weight and bias are float32, as in Wan and FP32LayerNorm."""
    names = CALLS[name].modulations + CALLS[name].vectors
    check(name, CALLS[name].operands(SHAPE, dtype, device, single=names))


@DTYPE
@pytest.mark.parametrize("name", [name for name in CALLS if "ada" in name or name == "gated_residual"])
def test_one_rounding(name, dtype, device):
    """The gradients in mode "fast" meet the same error bound as the gradients in mode "exact"."""
    check(name, CALLS[name].operands(SHAPE, dtype, device), mode="fast")


@CALL
def test_only_what_is_asked_for(name, device):
    """A single operand may require grad. It then gets a gradient of its shape.

    If grad mode is off, the result does not require grad.
    """
    operands = CALLS[name].operands(SHAPE, F32, device)
    for key in CALLS[name].names:
        leaf = operands[key].clone().requires_grad_()
        with torch.enable_grad():
            outputs = results(CALLS[name].ours(**{**operands, key: leaf}))
            sum(y.sum() for y in outputs).backward()
        assert leaf.grad.isfinite().all() and leaf.grad.shape == leaf.shape
        assert not results(CALLS[name].ours(**{**operands, key: leaf}))[0].requires_grad


def test_absent_operands(device):
    """Gradients can be computed if the optional operands weight, bias, shift and gate are absent."""
    x = random(SHAPE, F32, device).requires_grad_()
    scale = random((24,), F32, device, 1).requires_grad_()
    with torch.enable_grad():
        outputs = [
            oxiwarp.layer_norm(x),
            oxiwarp.ada_norm(x, scale),
            *oxiwarp.ada_norm_pair(x, scale, None, scale, None),
            *oxiwarp.gated_residual_ada_norm(x, x, None, scale, clip=True),
        ]
        torch.autograd.grad(sum(y.square().sum() for y in outputs), (x, scale))


def test_clipped_values_have_no_gradient(device):
    x = torch.tensor([[6e4, 1.0, -6e4, 2.0]], device=device).half().requires_grad_()
    gate = torch.ones(4, device=device).half()
    with torch.enable_grad():
        oxiwarp.gated_residual(x, x.detach(), gate, clip=True).sum().backward()
    assert x.grad.tolist() == [[0.0, 1.0, 0.0, 1.0]]


@CALL
def test_forward_mode_is_refused(name, device):
    """Forward-mode AD with respect to any operand is an error. Later calls still work."""
    operands = CALLS[name].operands(SHAPE, F32, device)
    plain = results(CALLS[name].ours(**operands))
    op = op_of(name)
    for key, tensor in operands.items():
        rest = {other: of for other, of in operands.items() if other != key}
        with pytest.raises(RuntimeError, match=f"^{op}: called in forward-mode AD .* no derivative for it"):
            torch.func.jvp(
                lambda t, key=key, rest=rest: CALLS[name].ours(**rest, **{key: t}),
                (tensor,),
                (torch.ones_like(tensor),),
            )
    for y, again in zip(plain, results(CALLS[name].ours(**operands)), strict=True):
        assert torch.equal(y, again)
