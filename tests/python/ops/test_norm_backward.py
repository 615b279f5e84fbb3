"""Tests of the gradients of `rms_norm`, `add_rms_norm` and `layer_norm`, eager and compiled, against
float64."""

import re

import pytest
import torch
import torch.nn.functional as F
from gradients import check, gradients, wide
from helpers import DTYPES, VARIANTS, make_weight, random, reference
from test_compile import backends_by_size

import oxiwarp

OPS = torch.ops.oxiwarp
SHAPES = [(3, 7), (2, 3, 64), (5, 129), (33, 96), (4, 3072), (2, 20_000), (0, 64)]


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape, variant, dtype, device):
    options = {name: variant[name] for name in ("weight_offset", "rounding")}
    inputs = [random(shape, dtype, device), make_weight(variant["weight"], shape[-1], dtype, device)]
    dy = random(shape, dtype, device, seed=2)
    ours = gradients(lambda x, w: oxiwarp.rms_norm(x, w, **options), inputs, [dy])
    right = gradients(lambda x, w: reference(x, w, **options), wide(inputs), [dy.double()])
    check(ours, right, f"rms_norm {shape}")
    assert [g.dtype for g in ours] == [x.dtype for x in inputs if x is not None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [None, "same", "f32"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 64), (4, 3072)], ids=str)
def test_add_rms_norm(shape, weight, dtype, device):
    """The gradients of `add_rms_norm` match float64, with and without an incoming gradient for the sum `x +
    residual`.

    The kernel adds the incoming gradient of the sum to the gradient through the norm, and rounds only the total.
    """
    x, residual = random(shape, dtype, device), random(shape, dtype, device, seed=3)
    inputs = [x, residual, make_weight(weight, shape[-1], dtype, device)]
    dys = [random(shape, dtype, device, seed=seed) for seed in (4, 5)]

    def right(x, residual, weight):
        total = x + residual
        # The operator rounds the sum, but computes its gradient as if the sum were not rounded.
        total = total + (total.to(dtype).double() - total).detach()
        return reference(total, weight), total

    ours = gradients(oxiwarp.add_rms_norm, inputs, dys)
    check(ours, gradients(right, wide(inputs), [dy.double() for dy in dys]), f"add_rms_norm {shape}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [None, "same", "f32"])
@pytest.mark.parametrize("bias", [None, "same", "f32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape, weight, bias, dtype, device):
    inputs = [random(shape, dtype, device), *(make_weight(kind, shape[-1], dtype, device) for kind in (weight, bias))]
    dy = random(shape, dtype, device, seed=2)
    ours = gradients(oxiwarp.layer_norm, inputs, [dy])
    check(ours, gradients(layer_norm, wide(inputs), [dy.double()]), f"layer_norm {shape}")
    assert [g.dtype for g in ours] == [x.dtype for x in inputs if x is not None]


def test_large_mean(device):
    """The gradient of `layer_norm` is accurate for rows whose mean is 1000, because the variance is computed
    from x - mean."""
    x, dy = random((4, 512), torch.float32, device) + 1000, random((4, 512), torch.float32, device, seed=1)
    check(gradients(oxiwarp.layer_norm, [x], [dy]), gradients(layer_norm, [x.double()], [dy.double()]), "mean", 2000)


def test_strided_and_expanded(device):
    """The backward passes accept strided rows, and an incoming gradient that is expanded (stride 0) or
    transposed."""
    wide_x = random((4, 3, 96), torch.float32, device)
    for rows in (wide_x[..., 32:64], wide_x[:, 1, :33], wide_x[0, 0]):
        dy = torch.ones((), device=device).expand(rows.shape)
        right = gradients(reference, [rows.double(), None], [dy.double()])
        check(gradients(oxiwarp.rms_norm, [rows, None], [dy]), right, "slice")
    with torch.enable_grad():
        x = wide_x[:, 0].clone().requires_grad_()
        oxiwarp.layer_norm(x).t().square().sum().backward()
        own = wide_x[:, 0].clone().requires_grad_()
        layer_norm(own).t().square().sum().backward()
    torch.testing.assert_close(x.grad, own.grad, rtol=1e-4, atol=1e-4)


def test_only_what_is_asked_for(device):
    x, weight, bias = (random(shape, torch.float32, device) for shape in ((4, 64), (64,), (64,)))
    with torch.enable_grad():
        weight.requires_grad_()
        oxiwarp.rms_norm(x, weight).sum().backward()
        oxiwarp.layer_norm(x, weight.detach(), bias.requires_grad_()).sum().backward()
        assert x.grad is None
        torch.testing.assert_close(bias.grad, torch.full((64,), 4.0, device=device))
        y, total = oxiwarp.add_rms_norm(x.requires_grad_(), x.detach())
        total.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones_like(x))
        (first,) = torch.autograd.grad(oxiwarp.rms_norm(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


@pytest.mark.parametrize("cols", [40, 1024, 3072])
def test_same_bits_each_time(cols, device):
    """All gradients have the same bits in every call. The bits of a row's gradient do not depend on other
    rows."""
    inputs = [random((700, cols), torch.bfloat16, device), random((cols,), torch.float32, device)]
    dy = random((700, cols), torch.bfloat16, device, seed=1)
    for function in (oxiwarp.rms_norm, oxiwarp.layer_norm):
        first, again = (gradients(function, inputs, [dy]) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        alone = gradients(function, [inputs[0][9:10], inputs[1]], [dy[9:10]])
        assert torch.equal(alone[0][0], first[0][9])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    dy, x, dsum = (random((4, 3, 32), dtype, device, seed) for seed in range(3))
    weight, bias, groups = (random(shape, torch.float32, device) for shape in ((32,), (32,), (4, 32)))
    for arguments in ((weight, None, 1e-6, 1.0, True), (None, dsum, 1e-6, 0.0, False), (groups, dsum, 1e-6, 0.0, True)):
        torch.library.opcheck(OPS.rms_norm_backward.default, (dy, x, *arguments))
    for arguments in (
        (weight, bias, dsum, 1e-5, True, True),
        (None, bias, None, 1e-5, False, True),
        (groups, None, None, 1e-5, True, True),
        (None, None, None, 1e-5, False, False),
    ):
        torch.library.opcheck(OPS.layer_norm_backward.default, (dy, x, *arguments))


@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, device):
    """The norms compile to one graph, forward and backward, for any number of rows."""

    def f(x, weight, bias):
        y, total = oxiwarp.add_rms_norm(x * 2, x, weight, rounding="before_weight")
        return (oxiwarp.rms_norm(y, weight) * oxiwarp.layer_norm(total, weight, bias)).sum(-1)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    weight, bias = random((48,), torch.float32, device), random((48,), torch.float32, device, seed=1)
    for rows in (3, 5):
        inputs, dy = [random((rows, 48), torch.float32, device), weight, bias], torch.ones(rows, device=device)
        for ours, own in zip(gradients(compiled, inputs, [dy]), gradients(f, inputs, [dy]), strict=True):
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)


def test_modules_train(device):
    """After weight and bias are trained for five steps, the loss equals the loss of the same training with
    torch's layer norm."""
    losses = []
    for function in (layer_norm, oxiwarp.layer_norm):
        torch.manual_seed(0)
        weight, bias = torch.ones(32, device=device), torch.zeros(32, device=device)
        parameters = [weight.requires_grad_(), bias.requires_grad_()]
        x, target = random((16, 32), torch.float32, device), random((16, 32), torch.float32, device, seed=1)
        optimizer = torch.optim.SGD(parameters, lr=4.0)
        with torch.enable_grad():
            for _ in range(5):
                loss = F.mse_loss(function(x, weight, bias), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[1] < 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: OPS.rms_norm_backward(x[:2], x, w, None, 0.0, 0.0, True), "dy has shape [2, 8], expected [4, 8]"),
        (lambda x, w: OPS.rms_norm_backward(x.half(), x, w, None, 0.0, 0.0, True), "dy is f16, expected f32"),
        (
            lambda x, w: OPS.rms_norm_backward(x, x, w[:4], None, 0.0, 0.0, True),
            "weight has shape [4], expected [8], or",
        ),
        (lambda x, w: OPS.rms_norm_backward(x, x, w.half(), None, 0.0, 0.0, True), "weight is f16, expected f32"),
        (
            lambda x, w: OPS.rms_norm_backward(x, x, x[:3], None, 0.0, 0.0, True),
            "weight has shape [3, 8], expected [8], or",
        ),
        (lambda x, w: OPS.rms_norm_backward(x, x, None, None, 0.0, 0.0, True), "dweight is wanted, and there is no"),
        (lambda x, w: OPS.rms_norm_backward(x, x, w, x[:2], 0.0, 0.0, True), "dsum has shape [2, 8], expected [4, 8]"),
        (lambda x, w: OPS.rms_norm_backward(x.double(), x.double(), w, None, 0.0, 0.0, True), "x is "),
    ],
)
def test_bad_input(call, message, device):
    x, weight = random((4, 8), torch.float32, device), torch.ones(8, device=device)
    with pytest.raises(RuntimeError, match="rms_norm_backward: " + re.escape(message)):
        call(x, weight)
    with pytest.raises(RuntimeError, match="rms_norm_backward: " + re.escape(message)):
        call(x.to("meta"), weight.to("meta"))
    with pytest.raises(RuntimeError, match="rms_norm_backward: eps is -1, expected a finite number of 0 or more"):
        OPS.rms_norm_backward(x, x, weight, None, -1.0, 0.0, False)
    with pytest.raises(RuntimeError, match=r"layer_norm_backward: dbias has shape \[4\], expected \[8\]"):
        OPS.layer_norm_backward(x, x, weight, weight[:4].clone(), None, 1e-5, True, True)


def test_refused_modes(device):
    """A call with `out` raises an error if an input requires grad. A call in forward-mode AD also raises an error."""
    x, out = random((4, 8), torch.float32, device).requires_grad_(), torch.empty(4, 8, device=device)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="^rms_norm: an input requires grad, .* with out"):
        oxiwarp.rms_norm(x, out=out)
    for function in (oxiwarp.rms_norm, oxiwarp.layer_norm, lambda x: oxiwarp.add_rms_norm(x, x)):
        with pytest.raises(RuntimeError, match="norm: called in forward-mode AD"):
            torch.func.jvp(function, (x.detach(),), (x.detach(),))
