"""Tests that every public operator gives a correct result or a clear error under torch.func's transforms,
such as vmap and grad."""

import warnings

import pytest
import torch
from helpers import random
from joint_models import FAMILIES, build
from models import NORMS, ltx, ltx_input, net, net_input, qwen
from op_info import FORMS
from public_calls import DIFFERENTIABLE, NAMES, call_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from video_models import mochi, mochi_input

import oxiwarp
from oxiwarp.patching.fusions.shared.mmdit import apart, joined

# torch warns that its attention has no vmap rule.
SLOW = pytest.mark.filterwarnings("ignore:There is a performance drop")


def test_every_operator_is_called():
    assert {FORMS[name].info.name for name in NAMES} == set(oxiwarp.ops.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name, device):
    """`torch.vmap` of an operator gives the results of a loop over the batch, for any batch dimension and
    without a warning."""
    call, x = call_of(name, device)
    loop = torch.stack([call(x), call(x + 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.func.vmap(call)(torch.stack([x, x + 1])), loop)
        batched = torch.func.vmap(call, in_dims=2)(torch.stack([x, x + 1], dim=2))
    assert torch.equal(batched, loop)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_under_vmap(name, device):
    """`vmap` of a function that computes gradients gives the results of a loop over the batch."""
    call, x = call_of(name, device)

    def gradient(t):
        return torch.func.grad(lambda z: call(z).square().sum())(t)

    with torch.enable_grad():
        batched = torch.func.vmap(gradient)(torch.stack([x, x + 1]))
        assert torch.allclose(batched, torch.stack([gradient(x), gradient(x + 1)]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_vmap(name, device):
    """The gradient of a vmapped operator equals the gradient of a loop over the batch. This holds for
    torch.func.grad and for autograd."""
    call, x = call_of(name, device)
    batch = torch.stack([x, x + 1])

    def total(function):
        return lambda t: function(t).float().square().sum()

    with torch.enable_grad():
        leaf = batch.clone().requires_grad_()
        (expected,) = torch.autograd.grad(total(lambda t: torch.stack([call(t[0]), call(t[1])]))(leaf), leaf)
        assert expected.abs().max() > 0
        by_grad = torch.func.grad(total(torch.func.vmap(call)))(batch)
        (by_autograd,) = torch.autograd.grad(total(torch.func.vmap(call))(leaf), leaf)
        nested = torch.func.grad(total(torch.func.vmap(torch.func.vmap(call))))(batch[None])[0]
    for got in (by_grad, by_autograd, nested):
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_recorded(device):
    """Under vmap, a torch operator without an autograd formula raises an error if an input requires grad."""
    x = torch.ones(2, 3, 8, device=device, requires_grad=True)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="softmax: an input under torch.vmap requires grad"):
        torch.func.vmap(lambda t: torch.ops.oxiwarp.softmax(t, False))(x)
    with torch.no_grad():
        torch.func.vmap(lambda t: torch.ops.oxiwarp.softmax(t, False))(x)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_a_function(name, device):
    """`torch.func.grad` gives the same gradient as autograd."""
    call, x = call_of(name, device)
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(call(leaf).float().square().sum(), leaf)
        assert torch.equal(torch.func.grad(lambda z: call(z).float().square().sum())(x), expected)


# `cross_entropy` is left out. Under vmap over an empty batch, torch raises an error in the division that
# computes the mean loss. `torch.nn.functional.cross_entropy` raises the same error.
@pytest.mark.parametrize("name", [name for name in NAMES if "cross_entropy" not in name])
def test_vmap_of_no_elements(name, device):
    call, x = call_of(name, device)
    assert torch.func.vmap(call)(x.new_empty(0, *x.shape)).shape == (0, *call(x).shape)


@pytest.mark.parametrize("dim", [1, -1])
def test_vmap_over_parameters(dim, device):
    """Under vmap, input and weight may be batched in any dimension, even if each batch element's weight is
    then not contiguous.

    Without vmap, a weight that is not contiguous is an error.
    """
    x, weight = random((3, 5, 8), torch.float32, device), random((3, 8), torch.float32, device, 1)
    loop = torch.stack([oxiwarp.rms_norm(a, b) for a, b in zip(x, weight, strict=True)])
    batched = torch.func.vmap(oxiwarp.rms_norm, in_dims=(dim, dim))(x.movedim(0, dim), weight.movedim(0, dim))
    assert torch.equal(batched, loop)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivatives(name, device):
    """A second derivative is an error."""
    call, x = call_of(name, device)
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(call(leaf).float().square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


def test_patched_models(device):
    """Under vmap, patched norms give the results of the unpatched norms.

    Under torch.func.grad with respect to its parameters, a patched model gives the gradients of the unpatched
    model.
    """
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


def token_ids(device):
    return {"input_ids": torch.arange(10, device=device)[None]}


@pytest.mark.parametrize(("make", "arguments"), [(ltx, ltx_input), (qwen, token_ids)], ids=["ltx", "qwen"])
def test_patched_models_with_rotations(make, arguments, device):
    """`torch.func.grad` of a patched model with respect to its parameters gives the gradients of the
    unpatched model."""
    models, inputs = (make(device=device), make(device=device)), arguments(device=device)
    oxiwarp.patch(models[1], cpu_kernels=True)

    def gradients(model):
        call = lambda p: torch.func.functional_call(model, p, (), inputs)[0].square().sum()  # noqa: E731
        return torch.func.grad(call)(dict(model.named_parameters()))

    with torch.enable_grad():
        own, got = map(gradients, models)
    for name, gradient in own.items():
        largest = gradient.abs().max().item()
        # The gradients of the unpatched model have errors of 2.3e-4, relative to the largest gradient.
        torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=3e-4 * largest)


@SLOW
@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi requests it
@pytest.mark.parametrize("name", ["flux", "flux2", "sd3.5", "hunyuan_video", "qwen_image", "mochi"])
def test_patched_transformers(name, device):
    """vmap of a patched transformer gives the results of a loop. Either the image input or the text input is
    batched.

    Outside vmap, the blocks of the transformer write text and image tokens into two slices of one tensor.
    Under vmap, they compute two tensors and concatenate them.
    """
    if name == "mochi":
        model, inputs = mochi(device=device), mochi_input(device=device)
    else:
        model, inputs = build(FAMILIES[name], device=device), FAMILIES[name].inputs(torch.float32, device)
    oxiwarp.patch(model, cpu_kernels=True)

    def run(key, value):
        return model(**{**inputs, key: value, "return_dict": False})[0]

    # The test uses torch's math backend for attention, because the memory-efficient backend rejects a vmapped
    # mask whose batch dimension is not expanded.
    with sdpa_kernel(SDPBackend.MATH):
        for key in ("hidden_states", "encoder_hidden_states"):
            batch = torch.stack([inputs[key], inputs[key] / 2])
            loop = torch.stack([run(key, value) for value in batch])
            batched = torch.func.vmap(lambda x, key=key: run(key, x))(batch)
            torch.testing.assert_close(batched, loop, rtol=1e-4, atol=1e-5)


@SLOW
@pytest.mark.parametrize("name", ["flux", "hunyuan_video"])
def test_compiled_vmap(name, device):
    """A compiled vmap of a patched transformer block gives the results of the eager vmap.

    In both cases, the operators of the block write into a separate buffer for each batch element.
    """
    family = FAMILIES[name]
    model, columns = build(family, device=device), 64
    oxiwarp.patch(model, cpu_kernels=True)
    streams = [random((3, 2, tokens, columns), torch.float32, device, tokens) for tokens in (12, 5)]
    temb = random((3, 2, columns), torch.float32, device, 7)
    for blocks in (model.transformer_blocks, model.single_transformer_blocks):
        call = torch.func.vmap(lambda x, text, temb, block=blocks[0]: block(x, text, temb))
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="eager", fullgraph=True)(*streams, temb)
        for y, right in zip(compiled, call(*streams, temb), strict=True):
            torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_out_under_vmap(device):
    """Under vmap over `x` and `out`, each batch element's result is written to its slice of `out`.

    An `out` without a batch dimension is an error.
    """
    x, out = random((3, 4, 8), torch.float32, device), torch.empty(3, 4, 8, device=device)
    torch.func.vmap(lambda x, out: oxiwarp.gelu(x, out=out))(x, out)
    assert torch.equal(out, oxiwarp.gelu(x))
    with pytest.raises(RuntimeError, match="out has no batch dimension under torch.vmap"):
        torch.func.vmap(lambda x: oxiwarp.gelu(x, out=out[0]))(x)


def again(x):
    return joined(*apart(x, 5))


def test_streams_joined_under_tracers():
    """`joined(*apart(x, n))`, which splits a tensor and concatenates the parts, equals `x`. In eager mode, no
    data is copied.

    Under torch.func's transforms and during tracing, `joined` copies its arguments. There, tensors have no
    addresses, so `joined` cannot detect that its arguments are adjacent slices of one tensor.
    """
    x = random((2, 17, 8), torch.float32, "cpu")
    assert again(x).data_ptr() == x.data_ptr(), "eager: without a copy"
    assert torch.equal(torch.func.vmap(again)(x[None])[0], x)
    assert torch.equal(torch.func.functionalize(again)(x), x)
    for mode in ("fake", "symbolic"):
        assert torch.equal(make_fx(again, tracing_mode=mode)(x)(x), x)
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("error")
        first, second = torch.empty(2, 17, 8)[:, :5], torch.empty(2, 17, 8)[:, 5:]
        assert joined(first, second)._base is None, "parts of two tensors"
