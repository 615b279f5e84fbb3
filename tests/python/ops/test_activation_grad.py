"""Tests of the activations' gradients: against float64 autograd, with torch.compile, on meta tensors, and for
invalid input."""

import re

import pytest
import torch
from activations import ACTIVATIONS, GATED, THRESHOLD, check_once
from helpers import DTYPES, random

import oxiwarp

OPS = torch.ops.oxiwarp
PARAMETERS = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def gradients(f, inputs, dy):
    """Return the gradients of `f(*inputs)` with respect to all inputs that are not None."""
    inputs = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        y = f(*inputs)
    return torch.autograd.grad(y, [tensor for tensor in inputs if tensor is not None], dy)


def check_gradients(ours, right, cols, what):
    """Check the gradients `ours` of oxiwarp against the float64 gradients `right`.

    A gradient of an element-wise operand is rounded once. A bias gradient (a tensor with one dimension) is a
    sum of rounded values. Its error bound is therefore larger by the eps of its dtype.
    """
    for gradient, double in zip(ours, right, strict=True):
        assert gradient.dtype == ours[0].dtype and gradient.shape == double.shape
        slack = torch.finfo(gradient.dtype).eps if gradient.dim() == 1 else 0.0
        check_once(gradient, double, torch.full_like(double, 64.0), what, slack)


@PARAMETERS
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("cols", [5, 64, 640])
def test_gradients(cols, name, dtype, device):
    f, eager = getattr(oxiwarp, name), ACTIVATIONS[name]
    x, bias, dy = (
        random(shape, dtype, device, seed) for seed, shape in enumerate([(4, 3, cols), (cols,), (4, 3, cols)])
    )
    check_gradients(gradients(f, [x, None], dy), gradients(eager, [x.double()], dy.double()), cols, name)
    # Use mode "fast", which adds the bias in float32. Mode "exact" rounds `x + bias` to the dtype of x, but
    # the float64 reference does not.
    ours = gradients(lambda x, bias: f(x, bias, mode="fast"), [x, bias], dy)
    right = gradients(lambda x, bias: eager(x + bias), [x.double(), bias.double()], dy.double())
    check_gradients(ours, right, cols, f"{name} with a bias")


@PARAMETERS
@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
def test_results_with_a_gradient_are_those_without(name, mode, dtype, device):
    """In each mode, a call that records a gradient gives the same bits as a call that records no gradient.

    The test also checks that the two modes of `gelu_quick` give different 16-bit results, because only mode
    "fast" rounds just once.
    """
    f, x = (GATED[name][0] if name in GATED else getattr(oxiwarp, name)), random((64, 128), dtype, device)
    y = f(x, mode=mode)
    with torch.enable_grad():
        assert torch.equal(f(x.clone().requires_grad_(), mode=mode), y)
    if name == "gelu_quick" and dtype != torch.float32:
        assert not torch.equal(f(x, mode="fast"), f(x, mode="exact"))


@PARAMETERS
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("cols", [5, 64, 640])
def test_gated_gradients(cols, name, dtype, device):
    f, eager = GATED[name]
    shapes = [(4, 3, cols), (4, 3, cols), (2 * cols,), (4, 3, cols)]
    first, second, bias, dy = (random(shape, dtype, device, seed) for seed, shape in enumerate(shapes))
    first[(first.float() - THRESHOLD).abs() < 0.01] = 1.0  # fatrelu has no derivative at its threshold
    doubles = [first.double(), second.double()]
    right = gradients(eager, doubles, dy.double())
    check_gradients(gradients(f, [first, second], dy), right, cols, name)
    packed = gradients(f, [torch.cat([first, second], -1)], dy)
    check_gradients(packed, [torch.cat(right, -1)], cols, f"{name}, packed")
    if name == "fatrelu_and_mul":
        return

    def with_bias(first, second, bias):
        return eager(first + bias[:cols], second + bias[cols:])

    ours = gradients(lambda *inputs: f(*inputs, mode="fast"), [first, second, bias], dy)
    check_gradients(ours, gradients(with_bias, [*doubles, bias.double()], dy.double()), cols, f"{name} with a bias")


def test_only_what_is_asked_for(device):
    x, bias = random((4, 64), torch.float32, device), random((64,), torch.float32, device).requires_grad_()
    with torch.enable_grad():
        oxiwarp.gelu(x, bias).sum().backward()
        assert x.grad is None and bias.grad.shape == (64,)
        up = random((4, 64), torch.float32, device).requires_grad_()
        oxiwarp.silu_and_mul(x, up).sum().backward()
        torch.testing.assert_close(up.grad, torch.nn.functional.silu(x))
        y = oxiwarp.silu(up)
        (first,) = torch.autograd.grad(y.sum(), up, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


def test_expanded_gradient(device):
    """The backward pass accepts an incoming gradient that is both expanded (stride 0) and transposed."""
    x = random((8, 16), torch.float32, device).requires_grad_()
    with torch.enable_grad():
        oxiwarp.silu(x).t().sum().backward()
    right = gradients(torch.nn.functional.silu, [x], torch.ones_like(x))[0]
    torch.testing.assert_close(x.grad, right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    x, bias, other = random((4, 3, 32), dtype, device), random((32,), dtype, device), random((4, 3, 32), dtype, device)
    torch.library.opcheck(OPS.activation.default, (x, bias, 0, True))
    torch.library.opcheck(OPS.activation.default, (x[..., ::2].contiguous(), None, 6, False))
    torch.library.opcheck(OPS.activation_backward.default, (x, other, bias, 2, True))
    for second, last in ((None, bias), (other, torch.cat([bias, bias])), (other, None)):
        arguments = (x, second, last, 6, True, 0.0, True)
        torch.library.opcheck(OPS.gated_activation.default, arguments)
        dy = x if second is not None else x[..., :16]
        torch.library.opcheck(OPS.gated_activation_backward.default, (dy, *arguments))


@pytest.mark.parametrize("dynamic", [True, False])
def test_compile(dynamic, device):
    torch.compiler.reset()

    def f(x, bias):
        return oxiwarp.gelu(oxiwarp.geglu(x * 2), bias) + oxiwarp.silu_and_mul(x, mode="fast")

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    bias = random((32,), torch.float32, device)
    for rows in (3, 5):
        x = random((rows, 64), torch.float32, device)
        torch.testing.assert_close(compiled(x, bias), f(x, bias))


def test_compile_with_gradients(device):
    torch.compiler.reset()

    def f(x, bias):
        return (oxiwarp.geglu(x, bias=bias) * oxiwarp.silu(x[..., :16].contiguous())).sum()

    x, bias = (random(shape, torch.float32, device).requires_grad_() for shape in ((3, 32), (32,)))
    with torch.enable_grad():
        own = torch.autograd.grad(f(x, bias), (x, bias))
        ours = torch.autograd.grad(torch.compile(f, fullgraph=True, backend="aot_eager")(x, bias), (x, bias))
    for a, b in zip(ours, own, strict=True):
        torch.testing.assert_close(a, b)


def test_meta():
    x = torch.empty(3, 8, device="meta", dtype=torch.bfloat16)
    assert oxiwarp.gelu(x, x[0]).shape == x.shape
    y = oxiwarp.geglu(x)
    assert y.shape == (3, 4) and y.dtype == x.dtype and y.device.type == "meta"
    assert oxiwarp.swiglu(x, x).shape == x.shape
    with pytest.raises(RuntimeError, match=r"^geglu: x has shape \[3, 7\], expected an even last dimension"):
        oxiwarp.geglu(x[:, :7])


F32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: oxiwarp.gelu(x.double()), "gelu: x is float64, expected f32, f16 or bf16"),
        (lambda x: oxiwarp.gelu(x, x[0, :7]), "gelu: bias has shape [7], expected [8]"),
        (lambda x: oxiwarp.gelu(x, x), "gelu: bias has shape [3, 8], expected [8]"),
        (lambda x: oxiwarp.gelu(x, x[0].bfloat16()), "gelu: bias is bf16, expected f32"),
        (lambda x: oxiwarp.gelu(x[0, 0], x[0, :1]), "gelu: x has shape [], expected at least one dimension"),
        (lambda x: oxiwarp.gelu(x, x[:, 0].repeat(6)[::2][:8]), "gelu: bias of shape [8] has strides [2]"),
        (lambda x: oxiwarp.geglu(x[:, :7]), "geglu: x has shape [3, 7], expected an even last dimension"),
        (lambda x: oxiwarp.geglu(x[0, 0]), "geglu: x has shape [], expected"),
        (lambda x: oxiwarp.geglu(x, x[:2]), "geglu: gate has shape [2, 8], expected [3, 8]"),
        (lambda x: oxiwarp.silu_and_mul(x, x[:2]), "silu_and_mul: up has shape [2, 8], expected [3, 8]"),
        (lambda x: oxiwarp.geglu(x, x.half()), "geglu: gate is f16, expected f32"),
        (lambda x: oxiwarp.geglu(x, bias=x[0, :4]), "geglu: bias has shape [4], expected [8]"),
        (lambda x: oxiwarp.geglu(x, x, x[0]), "geglu: bias has shape [8], expected [16]"),
        (lambda x: OPS.activation(x, None, 10, True), "activation: kind is 10, expected 0 to 9"),
    ],
)
def test_bad_input(call, message, device):
    x = random((3, 8), F32, device)
    with pytest.raises(RuntimeError, match="^" + re.escape(message)):
        call(x)
    torch.testing.assert_close(oxiwarp.silu(x), torch.nn.functional.silu(x))


def test_bad_names_and_types():
    x = torch.ones(3, 8)
    with pytest.raises(ValueError, match=r"^gelu: mode is 'slow', expected 'exact' or 'fast'$"):
        oxiwarp.gelu(x, mode="slow")
    with pytest.raises(ValueError, match=r"^geglu: approximate is 'erf', expected 'none' or 'tanh'$"):
        oxiwarp.geglu(x, approximate="erf")
    for call, message in (
        (lambda: oxiwarp.gelu([1.0]), "gelu: x is list"),
        (lambda: oxiwarp.gelu(x, 3), "gelu: bias is int"),
        (lambda: oxiwarp.swiglu(x, [1.0]), "swiglu: gate is list"),
        (lambda: oxiwarp.silu_and_mul(x, [1.0]), "silu_and_mul: up is list"),
        (lambda: oxiwarp.geglu(None), "geglu: x is NoneType"),
    ):
        with pytest.raises(TypeError, match=f"^{message}, expected a torch.Tensor$"):
            call()


def test_other_device(cuda):
    x = torch.ones(3, 8, device=cuda)
    with pytest.raises(RuntimeError, match=r"^activation: bias is on cpu, expected cuda:0"):
        oxiwarp.gelu(x, torch.ones(8))
    with pytest.raises(RuntimeError, match=r"is on cpu, expected cuda:0"):
        oxiwarp.geglu(x, torch.ones(3, 8))
