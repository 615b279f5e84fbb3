"""Tests of second derivatives of public operators and patched models. If a second derivative is not
supported, its computation must raise an error instead of returning zero."""

import pytest
import torch
from helpers import random
from models import net, net_input
from op_info import FORMS
from public_calls import DIFFERENTIABLE, call_of
from torch.utils.checkpoint import checkpoint

import oxiwarp

CALLS = {name: call_of(name, "cpu") for name in DIFFERENTIABLE}
# These operators are linear in their first argument, so their second derivative is 0.
LINEAR = [name for name in CALLS if FORMS[name].linear]
CURVED = [name for name in CALLS if not FORMS[name].linear]
REFUSED = "differentiate twice"


def total(name):
    """Return a pair: a function of one tensor that calls the operator, and an input for this function.

    The function returns the sum of the operator's result, so the operator's incoming gradient is constant.
    """
    call, x = CALLS[name]
    return (lambda z: call(z).float().sum()), x


def penalty(f, x):
    """Return the gradient of a gradient penalty with respect to `x`. The penalty is the squared norm of the
    gradient of `f`, plus the sum of `x`.

    Because of the sum of `x`, autograd returns a gradient (of ones) even if the operator in `f` silently has
    no second derivative.
    """
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum() + leaf.sum(), leaf)
    return second


@pytest.mark.parametrize("name", CURVED)
def test_refused(name):
    f, x = total(name)
    with pytest.raises(RuntimeError, match=REFUSED):
        penalty(f, x)
    with torch.enable_grad():
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.functional.hessian(f, x)
        with pytest.raises(RuntimeError, match=f"{REFUSED}|must override the setup_context"):
            torch.func.grad(lambda z: torch.func.grad(f)(z).sum())(x)
        with pytest.raises(RuntimeError, match=REFUSED):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
            first.sum().backward()


@pytest.mark.parametrize("name", LINEAR)
def test_constant_gradients(name):
    """The second derivative of a linear operator is 0 if the incoming gradient is constant.

    If the incoming gradient is not constant, the second derivative is an error.
    """
    f, x = total(name)
    with torch.enable_grad():
        assert torch.equal(penalty(f, x), torch.ones_like(x))
        assert not torch.autograd.functional.hessian(f, x).any()
        with pytest.raises(RuntimeError, match=REFUSED):
            penalty(lambda z: CALLS[name][0](z).square().sum(), x)


def test_first_derivatives_with_a_graph():
    """First derivatives with `create_graph=True` are correct, even under `torch.utils.checkpoint`.

    In a checkpointed function, a backward pass must not unpack a saved tensor twice, because torch then
    raises an error.
    """
    x, weight = random((4, 16), torch.float32, "cpu"), random((16,), torch.float32, "cpu", 1)
    norm = lambda z: oxiwarp.rms_norm(z, weight)  # noqa: E731
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (right,) = torch.autograd.grad(norm(leaf).sum(), leaf)
        (ours,) = torch.autograd.grad(norm(leaf).sum(), leaf, create_graph=True)
        (again,) = torch.autograd.grad(checkpoint(norm, leaf, use_reentrant=False).sum(), leaf, create_graph=True)
        assert ours.requires_grad and torch.equal(ours, right) and torch.equal(again, right)
        ours.mul_(2)
    assert torch.equal(ours, 2 * right), "may be written to, as other gradients"


@pytest.mark.parametrize("name", CURVED)
def test_jacobians(name):
    """A Jacobian has the same bits with the options `create_graph` and `vectorize` of torch's `jacobian`, and
    with `torch.func.jacrev`."""
    call, x = CALLS[name]
    f = lambda z: call(z).float().flatten()[:3]  # noqa: E731
    with torch.enable_grad():
        right = torch.autograd.functional.jacobian(f, x)
        for options in ({"create_graph": True}, {"vectorize": True}, {"create_graph": True, "vectorize": True}):
            assert torch.equal(torch.autograd.functional.jacobian(f, x, **options), right), options
        if FORMS[name].info.name != "qk_norm_rope":  # torch.func does not support qk_norm_rope
            assert torch.equal(torch.func.jacrev(f)(x), right)


def test_frozen_models():
    """In a patched model, a gradient penalty raises an error, because it needs a second derivative. In this
    test, no parameter requires grad: the penalty is computed from the gradient of the input.
    """
    model, x = net().requires_grad_(False), net_input()
    f = lambda z: model(z).sum()  # noqa: E731
    right = penalty(f, x)
    oxiwarp.patch(model, cpu_kernels=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        penalty(f, x)
    oxiwarp.unpatch(model)
    assert torch.equal(penalty(f, x), right) and not torch.equal(right, torch.ones_like(x))


def test_compiled():
    """If the second derivative of a compiled function is computed with `backward()`, torch itself raises an
    error.

    `torch.autograd.grad` with explicit inputs would raise no error, because the first gradient has no
    autograd path to these inputs.
    """
    torch.compiler.reset()
    leaf = random((4, 16), torch.float32, "cpu").requires_grad_()
    f = torch.compile(lambda z: oxiwarp.softmax(z).sum(), fullgraph=True, backend="aot_eager")
    with torch.enable_grad():
        (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
        # From torch 2.11 on, the error is about the double backward. In earlier versions, the gradient of a
        # compiled function does not require grad, and the error says so.
        with pytest.raises(RuntimeError, match="double backward|does not require grad"):
            first.sum().backward()
