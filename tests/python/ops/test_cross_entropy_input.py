"""Tests of invalid arguments of `oxiwarp.cross_entropy`: errors of the kernels and of their fake (meta) kernels."""

import pytest
import torch
import torch.nn.functional as F
from helpers import random
from test_cross_entropy import OPS

import oxiwarp


def test_meta():
    logits = torch.empty(3, 8, device="meta", dtype=torch.bfloat16)
    target = torch.empty(3, device="meta", dtype=torch.int64)
    loss, lse = oxiwarp.cross_entropy(logits, target, reduction="none", return_lse=True)
    assert loss.shape == lse.shape == target.shape and loss.dtype == logits.dtype and lse.dtype == torch.float32
    assert OPS.cross_entropy_backward(logits, target, None, lse, lse, -100, 0.0, 0.0, 0.0).shape == logits.shape
    for (x, t), message in (
        ((logits.double(), target), "logits is float64, expected f32, f16 or bf16"),
        ((logits, target.bool()), "target is bool, expected int64 or int32"),
        ((logits, target[:2]), r"target has shape \[2\], expected \[3\]"),
        ((logits, torch.zeros(3, dtype=torch.int64)), "target is on cpu, expected meta"),
    ):
        with pytest.raises(RuntimeError, match=f"^cross_entropy: {message}"):
            oxiwarp.cross_entropy(x, t)
    for numbers, message in (
        ((2.0, 0.0, 0.0), "label_smoothing is 2,"),
        ((0.0, -1.0, 0.0), "z_loss is -1,"),
        ((0.0, 0.0, -1.0), "softcap is -1,"),
    ):
        with pytest.raises(RuntimeError, match=f"^cross_entropy: {message}"):
            OPS.cross_entropy(logits, target, None, -100, *numbers)


def test_bad_input(device):
    logits, target = random((4, 8), torch.float32, device), torch.tensor([0, 1, 2, 7], device=device)
    for (x, t, options), message in (
        ((logits.double(), target, {}), "logits is float64, expected f32, f16 or bf16"),
        ((logits.long(), target, {}), "logits is int64, expected f32, f16 or bf16"),
        ((logits, target.float(), {}), "target is f32, expected int64 or int32"),
        ((logits, target.short(), {}), "target is int16, expected int64 or int32"),
        ((logits, target[:3], {}), r"target has shape \[3\], expected \[4\]"),
        ((logits, target[:, None], {}), r"target has shape \[4, 1\], expected \[4\]"),
        ((logits[:, :0], target, {}), r"logits has shape \[4, 0\], expected a last dimension"),
        ((logits[0, 0], target[0], {}), r"logits has shape \[\], expected at least one dimension"),
        ((logits, target, dict(label_smoothing=1.5)), "label_smoothing is 1.5, expected 0 to 1"),
        ((logits, target, dict(label_smoothing=float("nan"))), "label_smoothing is NaN, expected 0 to 1"),
        ((logits, target, dict(z_loss=-0.5)), "z_loss is -0.5, expected a finite number of 0 or more"),
        ((logits, target, dict(softcap=-0.5)), "softcap is -0.5, expected a finite number of 0 or more"),
        ((logits, target, dict(softcap=float("inf"))), "softcap is inf, expected a finite number of 0 or more"),
        ((logits, target, dict(weight=logits[0, :4])), r"weight has shape \[4\], expected \[8\]"),
        ((logits, target, dict(weight=logits[0].half())), "weight is f16, expected f32"),
        ((logits.to_sparse(), target, {}), "logits has layout torch.sparse_coo, expected torch.strided"),
    ):
        with pytest.raises(RuntimeError, match=f"^cross_entropy: {message}"):
            oxiwarp.cross_entropy(x, t, **options)
    for bad in ("average", None, True):
        with pytest.raises(ValueError, match=r"^cross_entropy: reduction is .*, expected 'none', 'mean' or 'sum'$"):
            oxiwarp.cross_entropy(logits, target, reduction=bad)
    for (x, t), message in (((None, target), "logits is NoneType"), ((logits, [1]), "target is list")):
        with pytest.raises(TypeError, match=f"^cross_entropy: {message}, expected a torch.Tensor$"):
            oxiwarp.cross_entropy(x, t)
    with pytest.raises(TypeError, match="^cross_entropy: weight is list, expected a torch.Tensor$"):
        oxiwarp.cross_entropy(logits, target, weight=[1.0] * 8)
    for dtype in (torch.float16, torch.int64, "float32"):
        with pytest.raises(
            ValueError, match="^cross_entropy: dtype is .*, expected None, torch.float32 or torch.float32$"
        ):
            oxiwarp.cross_entropy(logits, target, dtype=dtype)
    lse = torch.ones(4, device=device)
    for kept, message in (((lse.half(), lse), "lse is f16, expected f32"), ((lse, lse[:3]), r"dloss has shape \[3\]")):
        with pytest.raises(RuntimeError, match=f"^cross_entropy_backward: {message}"):
            OPS.cross_entropy_backward(logits, target, None, *kept, -100, 0.0, 0.0, 0.0)
    torch.testing.assert_close(oxiwarp.cross_entropy(logits, target), F.cross_entropy(logits, target))


def test_other_device(cuda):
    logits, target = torch.ones(3, 8, device=cuda), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="^cross_entropy: target is on cpu, expected cuda:0, the device of logits"):
        oxiwarp.cross_entropy(logits, target)
