"""Every public operator under torch.func's transforms: a result or a clear error."""

import warnings

import pytest
import torch
from models import NORMS, net, net_input
from public_calls import calls

import oxiwarp

NAMES = list(calls("cpu"))
# Mochi's residuals run torch's operators where a gradient is wanted.
GRADIENTS_OF_TORCH = ("residual_tanh_gated_rms_norm", "residual_tanh_gated_rms_norm_modulated")
UNSUPPORTED = ("does not have vmap support", "must override the setup_context")


def test_every_operator_is_called():
    assert set(NAMES) == set(oxiwarp.ops.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name, device):
    """The results of a loop, whichever dimension the batch is in, without a warning."""
    call, x = calls(device)[name]
    loop = torch.stack([call(x), call(x + 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.func.vmap(call)(torch.stack([x, x + 1])), loop)
        batched = torch.func.vmap(call, in_dims=2)(torch.stack([x, x + 1], dim=2))
    assert torch.equal(batched, loop)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_under_vmap(name, device):
    """Gradients for each element of a batch: those of a loop, or an error that says what is missing."""
    call, x = calls(device)[name]

    def gradient(t):
        return torch.func.grad(lambda z: call(z).square().sum())(t)

    with torch.enable_grad():
        try:
            batched = torch.func.vmap(gradient)(torch.stack([x, x + 1]))
        except RuntimeError as error:
            assert any(part in str(error) for part in UNSUPPORTED)
            return
        assert torch.allclose(batched, torch.stack([gradient(x), gradient(x + 1)]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives(name, device):
    """Refused, never wrong; where torch's operators are the gradient, its own."""
    call, x = calls(device)[name]
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(call(leaf).float().square().sum(), leaf, create_graph=True)
        if name in GRADIENTS_OF_TORCH:
            first.sum().backward()
        else:
            with pytest.raises(RuntimeError, match="once_differentiable"):
                first.sum().backward()


def test_patched_models(device):
    """A patched norm under vmap and under torch.func.grad, and a patched model with its parameters as an argument."""
    stock, model = net(device=device), net(device=device)
    oxiwarp.patch(model, cpu_kernels=True)
    batch = torch.stack([net_input(device=device), net_input(device=device) + 1])
    for name in NORMS:
        own, ours = (torch.func.vmap(getattr(part, name))(batch) for part in (stock, model))
        torch.testing.assert_close(ours, own, rtol=1e-5, atol=1e-6)
    with torch.enable_grad():
        own, ours = (
            torch.func.grad(lambda p, part=part: torch.func.functional_call(part, p, (batch[0],)).square().sum())(
                dict(part.named_parameters())
            )
            for part in (stock, model)
        )
    for name, gradient in own.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-4)
