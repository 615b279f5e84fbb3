"""Tests of invalid input to the norms of diffusion transformers. Kernel and fake (meta) kernel raise the same
clear error."""

import re

import pytest
import torch
from helpers import random
from norm_calls import CALLS, op_of, results
from norms import BF16, F32, layer_norm

import oxiwarp

SHAPE = (2, 3, 8)
CALL = pytest.mark.parametrize("name", CALLS)


def refused(name, device, message, changed, error=RuntimeError, **options):
    """Check that the kernel and the fake (meta) kernel raise `error` with `message`, whether or not `x`
    requires grad.

    `changed` maps the name of an operand to a function that makes this operand invalid. A valid call must
    work afterwards.
    """
    for where in (device, torch.device("meta")):
        for grad in (False, True):
            operands = CALLS[name].operands(SHAPE, F32, where)
            for key, make in changed.items():
                operands[key] = make(operands[key])
            if grad:
                operands["x"].requires_grad_(operands["x"].is_floating_point())
            with torch.set_grad_enabled(grad), pytest.raises(error) as caught:
                CALLS[name].ours(**operands, **options)
            text = str(caught.value).splitlines()[0]
            assert re.search(f"^{op_of(name)}: {message}", text), f"{where.type}, gradient {grad}: {text}"
    x = random(SHAPE, F32, device)
    torch.testing.assert_close(oxiwarp.layer_norm(x), layer_norm(x, eps=1e-5))


MIXED = ("layer_norm", "ada_norm", "ada_norm_pair", "gated_residual", "gated_residual_ada_norm", "modulate")
MIXED += ("modulated_rms_norm", "norm_gated_residual")
MIXED += ("residual_tanh_gated_rms_norm", "residual_tanh_gated_rms_norm_modulated")
"""Operators whose operands have any float dtype."""


@CALL
def test_dtypes(name, device):
    for key in CALLS[name].names[1:]:
        # In some operators, an operand must have the dtype of x or float32. Here x is float32, so the error
        # names only f32.
        mixed = name.split(",")[0] in MIXED
        expected = "f32, f16 or bf16$" if mixed else "f32$"
        if not mixed:
            refused(name, device, f"{key} is bf16, expected {expected}", {key: lambda t: t.bfloat16()})
        refused(name, device, f"{key} is float64, expected {expected}", {key: lambda t: t.double()})
        refused(name, device, f"{key} is float8_e5m2, expected {expected}", {key: lambda t: t.to(torch.float8_e5m2)})
    for dtype in (torch.float64, torch.int32, torch.bool, torch.float8_e4m3fn, torch.uint16):
        text = f"x is {str(dtype).removeprefix('torch.')}, expected f32, f16 or bf16$"
        refused(name, device, text, {"x": lambda t, dtype=dtype: t.to(dtype)})


@CALL
def test_shapes(name, device):
    call = CALLS[name]
    for key in call.like_x:
        refused(name, device, rf"{key} has shape \[2, 2, 8\], expected \[2, 3, 8\]$", {key: lambda t: t[:, :2]})
    for key in call.vectors:
        for change, shape in ((lambda t: t[:7], "[7]"), (lambda t: t[None], "[1, 8]"), (lambda t: t[0], "[]")):
            refused(name, device, re.escape(f"{key} has shape {shape}, expected [8]"), {key: change})
    for key in call.modulations:
        for change, shape in (
            (lambda t: t.expand(2, 2, 8), "[2, 2, 8]"),
            (lambda t: t[..., :7], "[2, 1, 7]"),
            (lambda t: t[None], "[1, 2, 1, 8]"),
        ):
            text = f"{key} has shape {shape}, expected one that broadcasts to [2, 3, 8]"
            refused(name, device, re.escape(text), {key: change})
        tabled = any(other.endswith("_table") for other in call.vectors)
        for change, shape in ((lambda t: t[..., :1], "[2, 1, 1]"), (lambda t: t[0, 0, 0], "[]")):
            if not tabled:
                continue  # a modulation without a table may have one column, or no dimension
            text = f"{key} has shape {shape}, expected a last dimension of 8"
            refused(name, device, re.escape(text), {key: change})
    nothing = dict.fromkeys(("x", *call.like_x), lambda t: t[..., :0])
    refused(name, device, r"x has shape \[2, 3, 0\], expected a last dimension", nothing)
    nothing = dict.fromkeys(("x", *call.like_x), lambda t: t[0, 0, 0])
    refused(name, device, r"x has shape \[\], expected", nothing)


@pytest.mark.parametrize("eps", [-1.0, -0.25, float("nan"), -float("inf"), float("inf"), 1e39])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("layer_norm", "gated_residual", "modulate")])
def test_eps(name, eps, device):
    got = "NaN" if eps != eps else "inf" if eps > 1 else f"{eps:g}"  # 1e39 is infinite in float32
    refused(name, device, f"eps is {got}, expected a finite number of 0 or more$", {}, eps=eps)


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, call in CALLS.items() for key in call.vectors if key.endswith("_table")]
)
def test_table_without_its_value(name, key, device):
    """A shift is optional, but a shift table without a shift is an error.

    A gate table without a gate is also an error.
    """
    value = key.removesuffix("_table")
    if value == "scale" or name == "gated_residual":
        pytest.skip("the value is required")
    refused(name, device, f"{key} is given without {value}$", {value: lambda _: None})


@CALL
def test_strides(name, device):
    """An operator rejects a vector or a modulation if its last dimension is not contiguous, and rows that need
    more than two strides."""
    call = CALLS[name]
    for key in set(call.names) - {"x", *call.like_x}:
        operands = call.operands(SHAPE, F32, device)
        tensor = operands[key]
        operands[key] = tensor.repeat_interleave(2, -1)[..., ::2]
        with pytest.raises(
            RuntimeError, match=rf"^{op_of(name)}: {key} of shape .* it(s last dimension)? must be cont"
        ):
            call.ours(**operands)
    operands = call.operands((2, 3, 8), F32, device)
    for key in ("x", *call.like_x):
        operands[key] = random((2, 4, 3, 5, 8), F32, device).transpose(0, 2)[:, ::2]
    for key in call.modulations:
        operands[key] = operands[key][0]
    with pytest.raises(RuntimeError, match=rf"^{op_of(name)}: x of shape .* two strides must reach all its rows"):
        call.ours(**operands)


@CALL
def test_broadcasts_between(name, device):
    """All dimensions except the last one are leading dimensions. Scale, shift and gate may broadcast in the
    first or in the last leading dimensions, but not in between and not in both.

    For example, `[2, 1, 4, 8]` does not broadcast to `[2, 3, 4, 8]`, because its dimension of size 1 is in
    the middle.
    """
    call = CALLS[name]
    for key in call.modulations:
        for shape in ((2, 1, 4, 8), (1, 3, 1, 8), (3, 1, 8)):
            text = (
                f"{op_of(name)}: {key} has shape {list(shape)}, expected one that broadcasts to [2, 3, 4, 8] in its "
                "first or in its last leading dimensions, not between or both: use .expand(2, 3, 4, 8).contiguous()"
            )
            for where in (device, torch.device("meta")):
                operands = call.operands((2, 3, 8), F32, where)
                for other in ("x", *call.like_x):
                    operands[other] = random((2, 3, 4, 8), F32, where)
                for other in call.modulations:
                    operands[other] = random((3, 4, 8), F32, where)
                operands[key] = random(shape, F32, where)
                with pytest.raises(RuntimeError, match=f"^{re.escape(text)}"):
                    call.ours(**operands)
                operands[key] = operands[key].expand(2, 3, 4, 8).contiguous()
                call.ours(**operands)


@CALL
def test_layouts_and_types(name):
    call = CALLS[name]
    for key in call.names:
        operands = call.operands(SHAPE, F32, "cpu")
        sparse = {**operands, key: operands[key].to_sparse()}
        with pytest.raises(RuntimeError, match=f"^{op_of(name)}: {key} has layout torch.sparse_coo, expected torch"):
            call.ours(**sparse)
        for bad in ([1.0], 3):
            with pytest.raises(TypeError, match=f"^{op_of(name)}: {key} is {type(bad).__name__}, expected a torch"):
                call.ours(**{**operands, key: bad})


@pytest.mark.parametrize("name", [name for name in CALLS if "RMS" not in name and "norm" in name])
def test_names(name):
    """The arguments `mode` and `norm` reject unknown values."""
    call, operands = CALLS[name], CALLS[name].operands(SHAPE, F32, "cpu")
    if "ada" not in name:
        return
    for bad in ("slow", "", None, True, ["exact"]):
        with pytest.raises(ValueError, match=rf"^{name}: mode is {re.escape(repr(bad))}, expected 'exact' or 'fast'$"):
            call.ours(**operands, mode=bad)
        with pytest.raises(ValueError, match=rf"^{name}: norm is {re.escape(repr(bad))}, expected 'layer_norm' or"):
            call.ours(**operands, norm=bad)


def test_mode_of_gated_residual():
    operands = CALLS["gated_residual"].operands(SHAPE, F32, "cpu")
    with pytest.raises(ValueError, match="^gated_residual: mode is 'slow', expected 'exact' or 'fast'$"):
        oxiwarp.gated_residual(**operands, mode="slow")


@CALL
def test_meta_beside_real(name):
    call = CALLS[name]
    for key in call.names[1:]:
        operands = call.operands(SHAPE, F32, "cpu")
        with pytest.raises(RuntimeError, match=f"^{op_of(name)}: {key} is on meta, expected cpu, the device of x$"):
            call.ours(**{**operands, key: operands[key].to("meta")})


@CALL
def test_other_device(name, cuda):
    call = CALLS[name]
    for key in call.names[1:]:
        operands = call.operands(SHAPE, BF16, cuda)
        with pytest.raises(RuntimeError, match=f"^{op_of(name)}: {key} is on cpu, expected cuda:0, the device of x$"):
            call.ours(**{**operands, key: operands[key].cpu()})
    for y in results(call.ours(**call.operands(SHAPE, BF16, cuda))):
        assert y.isfinite().all()


def test_out_of_memory_cpu():
    """If an output is too large to allocate, the operator raises torch's allocation error."""
    x, vector = torch.ones(1, 64).expand(2**42, 64), torch.ones(64)
    for call in (
        lambda: oxiwarp.ada_norm(x, vector),
        lambda: oxiwarp.ada_norm_pair(x, vector, None, vector, None),
        lambda: oxiwarp.gated_residual(x, x, vector),
        lambda: oxiwarp.gated_residual_ada_norm(x, x, vector, vector),
        lambda: oxiwarp.norm_gated_residual(x, x, vector),
        lambda: oxiwarp.rms_norm_gated(x, x, vector),
        lambda: oxiwarp.residual_tanh_gated_rms_norm(x, x, vector),
        lambda: oxiwarp.residual_tanh_gated_rms_norm_modulated(x, x, vector, vector),
    ):
        with pytest.raises(RuntimeError, match="can't allocate memory|not enough memory"):
            call()
