"""Tests of common operations on a patched model: state dicts, copies, pickle, hooks, moves, casts, deletion."""

import copy
import gc
import io
import pickle
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import random
from models import NORMS, BeforeWeightRMSNorm, ltx, ltx_input, net, net_input
from torch import nn
from torch.nn.utils import parametrize

import oxiwarp
from oxiwarp.patching import class_swap
from oxiwarp.patching.norms.forward import NormRecipe


def patched_net(**options):
    model = net(**options)
    oxiwarp.patch(model, cpu_kernels=True)
    return model


def assert_patched(model, expected):
    assert [class_swap.is_replaced(getattr(model, name)) for name in NORMS] == [True] * 4
    assert torch.equal(model(net_input()), expected)


def test_state_dict():
    """`patch` does not change the keys and tensors of a state dict.

    A patched model loads the state dict of an unpatched model, and an unpatched model loads the state dict of
    a patched model.
    """
    stock, model = net(), patched_net()
    assert list(model.state_dict()) == list(stock.state_dict())
    assert [name for name, _ in model.named_modules()] == [name for name, _ in stock.named_modules()]
    fresh = patched_net()
    for parameter in fresh.parameters():
        parameter.zero_()
    fresh.load_state_dict(stock.state_dict())
    assert_patched(fresh, model(net_input()))
    stock.load_state_dict(model.state_dict())


def test_safetensors(tmp_path):
    """Patched and unpatched models have equal safetensors files. A patched model can load such a file."""
    safetensors = pytest.importorskip("safetensors.torch")
    stock, model = net(), patched_net()
    for name, saved in (("stock", stock), ("patched", model)):
        safetensors.save_model(saved, str(tmp_path / name))
    assert (tmp_path / "stock").read_bytes() == (tmp_path / "patched").read_bytes()
    for parameter in model.parameters():
        parameter.zero_()
    safetensors.load_model(model, str(tmp_path / "stock"))
    assert_patched(model, patched_net()(net_input()))


def test_save_pretrained(tmp_path):
    """A patched diffusers model can be saved with `save_pretrained`. The loaded model is unpatched."""
    model = ltx()
    stock = model(**ltx_input())[0]
    oxiwarp.patch(model, cpu_kernels=True)
    model.save_pretrained(tmp_path)
    fresh = type(model).from_pretrained(tmp_path).eval()
    assert not any(map(class_swap.is_replaced, fresh.modules()))
    assert torch.equal(fresh(**ltx_input())[0], stock)


def test_names_and_classes():
    """Patched modules keep their class name, `isinstance` results and signature.

    Third-party code relies on class names, `isinstance` and signatures.
    """
    import inspect

    model, stock = patched_net(), net()
    for name in NORMS:
        ours, own = type(getattr(model, name)), type(getattr(stock, name))
        assert issubclass(ours, own) and (ours.__name__, ours.__module__) == (own.__name__, own.__module__)
        assert inspect.signature(ours.forward) == inspect.signature(own.forward)
    assert type(model.before) is type(patched_net().before), "modules of one class stay of one class"


@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies(how):
    """A copy of a patched model is patched and has the same results. The copy can be unpatched separately."""
    model = patched_net()
    expected = model(net_input())
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "copy":
        other = copy.copy(model)
        other._modules = {name: copy.copy(module) for name, module in model._modules.items()}
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert_patched(other, expected)
    assert oxiwarp.unpatch(other) == 4 and type(other.before) is BeforeWeightRMSNorm
    assert_patched(model, expected)


def test_old_pickle_protocols():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_patched(pickle.loads(pickle.dumps(patched_net(), protocol)), patched_net()(net_input()))


def test_hooks():
    """Forward hooks that are registered before or after `patch` run once per call and receive the kernel's
    output.

    After `unpatch`, the hooks are still registered.
    """
    model, seen = net(), []
    model.before.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    model.before.register_forward_hook(lambda module, args, output: seen.append(output))
    oxiwarp.patch(model, cpu_kernels=True)
    handle = model.before.register_forward_hook(lambda module, args, output: output * 0)
    assert (model.before(net_input()) == 0).all()
    assert seen[0] == "pre" and len(seen) == 2
    handle.remove()
    assert torch.equal(model.before(net_input()), seen[1])
    oxiwarp.unpatch(model)
    model.before(net_input())
    assert len(seen) == 6


def test_moves_and_casts(device):
    """A patched model can be moved and cast after `patch`, because the kernel is chosen by the dtype of each call."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = net()
        oxiwarp.patch(model, cpu_kernels=True)
        model.to(device)
        other = net(dtype, device)
        oxiwarp.patch(other, cpu_kernels=True)
        assert torch.equal(model.to(dtype)(net_input(dtype, device)), other(net_input(dtype, device)))


def test_eps_and_weight_are_read_at_the_call():
    model, x = patched_net(), net_input()
    model.before.variance_epsilon = 4.0
    model.before.weight = nn.Parameter(random((64,), torch.float32, "cpu", seed=5), requires_grad=False)
    torch.testing.assert_close(model.before(x), BeforeWeightRMSNorm.forward(model.before, x))
    model.torch_norm.eps = None
    torch.testing.assert_close(model.torch_norm(x), nn.RMSNorm.forward(model.torch_norm, x))


def test_weights_and_widths_that_no_kernel_takes():
    """If the kernel does not support the weight or the input width, a patched norm behaves as the original
    norm.

    The patched norm returns the original result, or raises the original error.
    """
    x = torch.randn(3, 96)
    for weight in (torch.randn(96, 2)[:, 0], torch.ones(1).expand(96)):
        module = nn.RMSNorm(96, eps=1e-6)
        module.weight = nn.Parameter(weight, requires_grad=False)
        own = module(x)
        oxiwarp.patch(module, cpu_kernels=True)
        assert torch.equal(module(x), own)
    module = nn.RMSNorm(96, eps=1e-6, elementwise_affine=False)
    oxiwarp.patch(module, cpu_kernels=True)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        module(x[:, :64])


def test_instance_forward_is_left():
    """`patch` skips a module that has a `forward` attribute on the instance.

    Calls of such a module run the attribute, so a patched method of its class would have no effect.
    """
    model = net()
    model.before.forward = lambda x: x
    report = oxiwarp.patch(model)
    assert report.replaced == 3 and any("replaced on the instance" in row.reason for row in report)
    model.offset.forward = (
        model.offset.forward
    )  # As accelerate does, set the bound method of the class as an attribute of the instance.
    oxiwarp.unpatch(model)
    assert oxiwarp.patch(model).names["offset"] == "replaced"


def test_subclass_made_by_another_tool():
    """`unpatch` restores the original `forward` even if another tool derived a class from the class that
    `patch` made.

    FSDP is such a tool: it derives a new class from the class of a module.
    """
    model, x = patched_net(), net_input()
    own = BeforeWeightRMSNorm.forward(model.before, x)
    model.before.__class__ = type("Wrapped", (type(model.before),), {})
    model.before(x)
    assert oxiwarp.unpatch(model) == 4
    assert torch.equal(model.before(x), own)


class WrappedRMSNorm(type(patched_net().before)):  # type: ignore[misc]
    """A class that another tool derives from the class that `patch` made."""


@pytest.mark.parametrize("patch_again", [False, True])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_of_such_a_subclass(how, patch_again):
    model, x = patched_net(), net_input()
    model.before.__class__ = WrappedRMSNorm
    if patch_again:
        oxiwarp.unpatch(model)
        oxiwarp.patch(model, cpu_kernels=True)
    other = how(model.before)
    assert type(other) is type(model.before) and isinstance(other, WrappedRMSNorm)
    assert class_swap.is_replaced(other) and torch.equal(other(x), model.before(x))
    assert oxiwarp.unpatch(other) == 1 and class_swap.is_replaced(model.before)


def test_patched_again_after_a_parametrization():
    """`patch` and `unpatch` work if a parametrization is registered on a patched module and removed after
    `unpatch`.

    Removing the parametrization restores the class that `patch` made. A later call of `patch` must not use
    this class as the original class.
    """
    module, x = nn.RMSNorm(96, eps=1e-6), torch.randn(3, 96)
    oxiwarp.patch(module, cpu_kernels=True)
    parametrize.register_parametrization(module, "weight", nn.Identity())
    oxiwarp.unpatch(module)
    parametrize.remove_parametrizations(module, "weight")
    own = module(x)
    oxiwarp.patch(module, cpu_kernels=True)
    assert type(module).__mro__[1] is nn.RMSNorm
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), own)
    assert oxiwarp.unpatch(module) == 1 and type(module) is nn.RMSNorm


def test_tensor_subclass_input():
    """If the input is a tensor subclass, a patched norm runs its original `forward`, so that the
    `__torch_dispatch__` of the subclass takes effect."""
    from torch.testing._internal.two_tensor import TwoTensor

    model, x = patched_net(), net_input()
    assert torch.equal(model.bare(TwoTensor(x, x)).a, type(net().bare).forward(model.bare, x))


def test_fake_and_meta():
    """A patched model returns tensors of the correct shapes on the meta device, and for fake tensors, which
    torch.compile uses."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        model = nn.Sequential(BeforeWeightRMSNorm(64), nn.RMSNorm(64)).requires_grad_(False)
    assert oxiwarp.patch(model, cpu_kernels=True).replaced == 2
    assert model(torch.empty(3, 64, device="meta")).shape == (3, 64)
    model = patched_net()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.before(torch.empty(3, 64)).shape == (3, 64)


@pytest.mark.parametrize("grad", [False, True])
def test_forward_mode(grad):
    """In forward-mode AD, a patched model gives the tangent of the unpatched model.

    A direct call of an operator such as `rms_norm` raises an error instead.
    """
    stock, model, x, tangent = net(), patched_net(), net_input(), net_input() + 1
    with torch.set_grad_enabled(grad):
        expected, got = (torch.func.jvp(each, (x,), (tangent,)) for each in (stock, model))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)) and (got[1] != 0).any()
        for call in (oxiwarp.rms_norm, lambda x: oxiwarp.add_rms_norm(x, x)[0]):
            with pytest.raises(RuntimeError, match="rms_norm: called in forward-mode AD"):
                torch.func.jvp(call, (x,), (tangent,))
    oxiwarp.rms_norm(x)


class Chain(nn.Module):
    """A model with a norm, which `patch` replaces, and a linear, which `patch` does not replace."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = BeforeWeightRMSNorm(64), nn.Linear(64, 64)


def parametrized_linear():
    model = Chain()
    nn.utils.parametrizations.weight_norm(model.linear)
    return model


def parametrized_norm():
    model = Chain()
    model.norm = nn.LayerNorm(64)
    parametrize.register_parametrization(model.norm, "weight", nn.Identity())
    return model


def parametrized_block():
    block = ltx().transformer_blocks[0]
    parametrize.register_parametrization(block, "scale_shift_table", nn.Identity())
    return block


def parametrized_in_a_block():
    block = ltx().transformer_blocks[0]
    parametrize.register_parametrization(block.attn1.norm_q, "weight", nn.Identity())
    return block


def class_of_a_function():
    class LocalRMSNorm(BeforeWeightRMSNorm):
        pass

    model = Chain()
    model.norm = LocalRMSNorm(64)
    return model


@pytest.mark.parametrize("unpatch", [True, False], ids=["unpatched", "patched"])
@pytest.mark.parametrize(
    "make", [parametrized_linear, parametrized_norm, parametrized_block, parametrized_in_a_block, class_of_a_function]
)
def test_a_patched_module_is_freed(make, unpatch):
    """A deleted patched model is garbage-collected, with its parameters and the classes that were created
    only for it."""
    model = make()
    oxiwarp.patch(model, cpu_kernels=True)
    if unpatch:
        oxiwarp.unpatch(model)
    alive = [weakref.ref(part) for part in (*model.modules(), *model.parameters())]
    own = {class_swap.base_of(part) for part in model.modules()}
    classes = [weakref.ref(cls) for cls in own if not class_swap.is_importable(cls)]
    del model, own
    for _ in range(3):  # the garbage collector frees a class one pass later than its subclass
        gc.collect()
    assert [ref() for ref in (*alive, *classes) if ref() is not None] == []


def test_an_unpatched_module_gets_its_class_again():
    """A module that is unpatched and patched again gets the same class, so torch.compile can reuse its code."""
    model = patched_net()
    before = weakref.ref(type(model.before))
    oxiwarp.unpatch(model)
    gc.collect()
    oxiwarp.patch(model, cpu_kernels=True)
    assert type(model.before) is before()


def test_threads_that_patch_at_once(monkeypatch):
    """If several threads call `patch` on modules of one class, all modules get the same new class.

    If the modules got different classes, some of them could not be copied.
    """
    methods = NormRecipe.methods

    def slow(recipe, base):
        time.sleep(0.05)  # long enough for all threads to arrive here
        return methods(recipe, base)

    monkeypatch.setattr(NormRecipe, "methods", slow)
    cls = type("RacyRMSNorm", (BeforeWeightRMSNorm,), {})
    modules = [cls(64) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda module: oxiwarp.patch(module, cpu_kernels=True), modules))
    assert len({type(module) for module in modules}) == 1
    for module in modules:
        assert class_swap.is_replaced(copy.deepcopy(module))
