"""Tests of the gradient of `oxiwarp.cross_entropy` against float64 and torch."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, random
from test_cross_entropy import OPTIONS, classes, gradient

import oxiwarp


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (6, 64), (9, 129), (3, 3072), (2, 40_001)], ids=str)
def test_gradient(shape, dtype, options, device):
    """The error of the gradient is at most about twice the error of torch's gradient.

    Both errors are relative to the largest gradient of each row.
    """
    logits, dloss = random(shape, dtype, device, scale=2.0), torch.tensor(1.75, device=device)
    target = classes(*shape, device, options.get("ignore_index", -100))
    ours, own = (gradient(f, logits, target, dloss, **options) for f in (oxiwarp.cross_entropy, F.cross_entropy))
    right = gradient(F.cross_entropy, logits.double(), target, dloss, **options)
    assert ours.dtype == dtype and ours.shape == logits.shape
    largest = right.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    off, torch_off = ((value.double() - right).abs() / largest for value in (ours, own))
    # The forward pass saves `lse` (log-sum-exp) in float32. If `lse` is near 8, its rounding adds an error of
    # 2 eps to the gradient.
    units = 4 if dtype == torch.float32 else 2
    assert off.max() <= 2 * torch_off.max() + units * torch.finfo(dtype).eps, f"{off.max():.2e}, {torch_off.max():.2e}"


def test_gradient_of_z_loss(device):
    logits, target = random((5, 33), torch.float32, device, scale=2.0), classes(5, 33, device)

    def own(logits, target, z_loss, label_smoothing):
        z = z_loss * logits.logsumexp(-1).square() * (target != -100)
        return F.cross_entropy(logits, target, reduction="none", label_smoothing=label_smoothing) + z

    options = dict(z_loss=0.05, label_smoothing=0.1)
    ours = gradient(oxiwarp.cross_entropy, logits, target, torch.ones((), device=device), reduction="none", **options)
    right = gradient(own, logits.double(), target, torch.ones((), device=device), **options)
    torch.testing.assert_close(ours, right.float())


def test_gradient_modes(device):
    """Logits that require grad may be strided.

    The output `lse` has no gradient, and a second derivative is an error. Without grad mode, the loss does
    not require grad.
    """
    wide, target = random((4, 6, 20), torch.float32, device), classes(20, 20, device).view(4, 5)
    right = gradient(
        lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 20), t.reshape(-1)), wide, target, torch.ones(())
    )
    ours = gradient(lambda x, t: oxiwarp.cross_entropy(x[:, :-1], t), wide, target, torch.ones(()))
    torch.testing.assert_close(ours, right)
    with torch.enable_grad():
        leaf = wide[:, 0].clone().requires_grad_()
        loss, lse = oxiwarp.cross_entropy(leaf, target[:, 0], return_lse=True)
        assert loss.requires_grad and not lse.requires_grad
        (first,) = torch.autograd.grad(loss.square(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()
    assert not oxiwarp.cross_entropy(leaf, target[:, 0]).requires_grad
