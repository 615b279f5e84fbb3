"""Tests of tensors without elements: every public operator accepts them with any strides, and so does its
backward pass."""

import pytest
import torch
from public_calls import DIFFERENTIABLE, NAMES, call_of
from torch import nn

import oxiwarp


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name, device):
    """The backward pass accepts the incoming gradient that `sum().backward()` creates for a result without
    elements.

    This gradient is an expanded tensor with strides of 0. `contiguous()` does not change the strides, because
    the gradient has no elements.
    """
    call, x = call_of(name, device)
    x = x[:0].clone().requires_grad_()
    with torch.enable_grad():
        call(x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("name", NAMES)
def test_strides(name, device):
    call, x = call_of(name, device)
    odd = torch.empty_strided((0, *x.shape[1:]), (3, 1, 7), device=device)
    assert call(odd).shape == call(x[:0]).shape


def test_patched_norm(device):
    """A patched norm and its gradient accept an empty input. In a mixture of experts, an expert may get no
    tokens."""
    module = nn.RMSNorm(64, eps=1e-6).to(device)
    oxiwarp.patch(module, cpu_kernels=True)
    x = torch.empty(0, 64, device=device, requires_grad=True)
    with torch.enable_grad():
        module(x).sum().backward()
    assert x.grad.shape == x.shape and not module.weight.grad.any()
