"""Checks that run in each process of `test_patch_distributed.py`.

They compare a patched distributed model with the same model on a single device.
"""

from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from distributed import WORLD, Place
from distributed_models import build, inputs
from fused_checks import run
from helpers import random
from models import ltx, net, net_input
from public_calls import call_of
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import oxiwarp
from oxiwarp import transformers_attention


def train(place: Place, name: str, how: str, order: str) -> None:
    """Check a training step in DDP or FSDP2 against the same step on a single device, bit for bit.

    On the single device, the gradients are computed for the inputs of each rank and then averaged. The bits are equal
    because parameters are gathered unchanged, and because the mean of two ranks is rounded once. The test uses torch's
    math attention, because faster backends add up gradients in an order that varies.

    There is one exception: if several blocks read a tensor, such as the time embedding, its gradient is a sum of
    several terms. FSDP2 adds one term per block, and autograd on a single device adds one term per use. This gradient
    may therefore differ by one rounding, and on the CPU by two.
    """
    model = build(name, place).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        stock = [step(model, inputs(name, place, seed=rank)) for rank in range(WORLD)]
        oxiwarp.patch(model, cpu_kernels=True)
        alone = [step(model, inputs(name, place, seed=rank)) for rank in range(WORLD)]
        del model
        model = build(name, place).requires_grad_()
        if order == "patch first":
            oxiwarp.patch(model, cpu_kernels=True)
        wrapped = wrap(model, how, place)
        if order == "wrap first":
            assert oxiwarp.patch(wrapped, cpu_kernels=True).left == 0
        own = inputs(name, place, seed=place.rank)
        result, gradients, kernels = step(wrapped, own, model)
        assert torch.equal(result, alone[place.rank][0]) and kernels == alone[place.rank][2]
        for path, mean in means(alone).items():
            off = (gradients[path].float() - mean.float()).norm()
            reordered = how == "FSDP2" and "transformer_blocks." not in path
            roundings = (1 if place.device.type == "cuda" else 2) if reordered else 0
            bound = roundings * torch.finfo(mean.dtype).eps * mean.float().norm()
            assert off <= bound, f"{path}: {differing(gradients[path], mean)}"
        if place.device.type == "cuda":
            assert torch.equal(result, stock[place.rank][0])
        else:  # on the CPU, float32 results agree only within a tolerance
            for path, mean in means(stock).items():
                torch.testing.assert_close(gradients[path], mean, rtol=1e-4, atol=1e-6, msg=path)
        oxiwarp.unpatch(model)
        result, _, kernels = step(wrapped, own, model)
        assert not kernels and torch.equal(result, stock[place.rank][0])


def step(
    wrapped: nn.Module, arguments: dict, model: nn.Module | None = None
) -> tuple[Tensor, dict[str, Tensor], dict[str, int]]:
    """Run a forward and a backward pass of `wrapped`.

    Return the result, the gradients by parameter name, and the number of calls of each oxiwarp operator.
    """
    model = wrapped if model is None else model
    (result,), kernels = run(wrapped, arguments)
    result.float().square().mean().backward()
    gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return result.detach(), gradients, kernels


def whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def means(steps: list) -> dict[str, Tensor]:
    """Return the mean of the ranks' gradients, rounded once."""
    gradients = [gradients for _, gradients, _ in steps]
    return {name: (sum(g[name].float() for g in gradients) / WORLD).to(x.dtype) for name, x in gradients[0].items()}


def differing(got: Tensor, expected: Tensor) -> str:
    """Describe the difference for the message of a failed assertion."""
    off = (got.float() - expected.float()).abs().max()
    return f"{(got != expected).sum()} of {got.numel()} differ, by {off} of {expected.abs().max()}"


def wrap(model: nn.Module, how: str, place: Place) -> nn.Module:
    if how == "DDP":
        return nn.parallel.DistributedDataParallel(model)
    mesh = place.mesh()
    for block in (*model.transformer_blocks, *getattr(model, "single_transformer_blocks", ())):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@torch.no_grad()
def parallel(place: Place, name: str, how: str, order: str) -> None:
    """Check a patched model under diffusers' context or tensor parallelism.

    The result must equal the result of the unpatched model under the same parallelism. The patched model must
    be as accurate as on one device, and call the same oxiwarp operators as on one device.

    Under context parallelism, diffusers' self-attention gathers keys and values from all ranks. `patch` must
    therefore not replace self-attention, even with `attention=True`. Cross-attention gathers nothing, because
    each rank has all text tokens.
    """
    # Do not patch RMSNorm modules that are not part of a patched block, such as the norm of Qwen-Image's text
    # tokens. For these modules, `patch` does not promise torch's bits, and this check compares bits.
    recipe = dict(cpu_kernels=True, skip="*RMSNorm")
    from diffusers import attention_backend

    model, own = build(name, place), inputs(name, place)
    right = build(name, place, torch.float32)(**inputs(name, place, torch.float32))[0]
    # Ring attention needs the log-sum-exp of each rank's keys, which the backend "native" does not return.
    # The backend is set by a context manager, because a backend that is set on a model stays active for other
    # models.
    with attention_backend("_native_flash" if how == "ring" else "native"):
        alone = model(**own)[0]
        with oxiwarp.patched(model, **recipe):
            _, expected = run(model, own)
        if order == "patch first":
            oxiwarp.patch(model, **recipe)
        enable(model, how, place)
        if order == "wrap first":
            oxiwarp.patch(model, **recipe)
        (ours,), kernels = run(model, own)
        assert kernels == expected and expected, (kernels, expected)
        oxiwarp.unpatch(model)
        (stock,), none = run(model, own)
        assert not none
        results = [ours]
        if how != "tensor":
            with oxiwarp.patched(model, **recipe, attention=True):
                (with_attention,), kernels = run(model, own)
            assert kernels.pop("attention", 0) <= sum(hasattr(module, "attn2") for module in model.modules())
            assert kernels == expected
            results.append(with_attention)
    if place.device.type == "cuda":
        assert torch.equal(ours, stock), differing(ours, stock)
    else:
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    for result in results:
        if place.device.type == "cpu":
            torch.testing.assert_close(result, alone, rtol=1e-4, atol=1e-5)
            continue
        error, own_error = ((values.double() - right).abs() for values in (result, alone))
        assert error.mean() <= 1.25 * own_error.mean() and error.max() <= 2 * own_error.max(), (
            f"mean {error.mean()}, on one device {own_error.mean()}; worst {error.max()}, {own_error.max()}"
        )


def parallel_training(place: Place, name: str, how: str) -> None:
    """Check the float32 gradients of a patched model against the unpatched model under the same parallelism.

    The error may be at most 1e-3 of the largest element of a parameter's gradient.
    """
    model, own = build(name, place, torch.float32), inputs(name, place, torch.float32)
    enable(model, how, place)
    model.requires_grad_()
    _, expected, none = step(model, own)
    oxiwarp.patch(model, cpu_kernels=True)
    _, gradients, kernels = step(model, own)
    assert kernels and not none and gradients.keys() == expected.keys()
    for path, gradient in gradients.items():
        off, largest = (gradient - expected[path]).abs().max(), expected[path].abs().max()
        assert off <= 1e-3 * largest, f"{path}: {off} of {largest}"


def enable(model: nn.Module, how: str, place: Place) -> None:
    from diffusers import ContextParallelConfig, TensorParallelConfig

    if how == "tensor":
        config = TensorParallelConfig(tp_degree=WORLD)
    else:
        shape = (1, WORLD) if how == "ulysses" else (WORLD, 1)
        mesh = place.mesh(*shape, names=("ring", "ulysses"))
        config = ContextParallelConfig(ring_degree=shape[0], ulysses_degree=shape[1], mesh=mesh)
    with ExitStack() as stack:
        if place.device.type == "cpu":  # diffusers supports only accelerators
            stack.enter_context(mock.patch("torch.accelerator.device_count", return_value=WORLD))
            stack.enter_context(mock.patch("diffusers.hooks.tensor_parallel._SUPPORTED_TP_DEVICES", ("cpu",)))
        model.enable_parallelism(config=config)


def refused(place: Place, name: str) -> None:
    """Check that an operator without a DTensor sharding rule raises an error instead of computing on one shard."""
    call, x = call_of(name, place.device)
    with pytest.raises((RuntimeError, NotImplementedError), match="oxiwarp|DTensor"):
        call(distribute_tensor(x, place.mesh(), [Shard(0)]))


def sharded_rows(place: Place) -> None:
    """Check that `rms_norm` accepts rows that are sharded over the ranks, and that its result has the same
    sharding."""
    x, weight = (random(shape, torch.float32, place.device) for shape in ((4, 16), (16,)))
    mesh = place.mesh()
    y = oxiwarp.rms_norm(distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(weight, mesh, [Replicate()]))
    assert isinstance(y, DTensor) and y.placements == (Shard(0),)
    assert torch.equal(y.full_tensor(), oxiwarp.rms_norm(x, weight))


def keys_of_one_rank(place: Place, compiled: bool) -> None:
    """Check that `attn_implementation="oxiwarp"` raises within torch's `context_parallel` and works after it."""
    q, module = random((1, 2, 8, 64), torch.bfloat16, place.device), nn.Module()
    torch.compiler.reset()
    attend = transformers_attention.forward
    attend = torch.compile(attend, fullgraph=True, backend="eager") if compiled else attend
    expected, _ = attend(module, q, q, q, None)
    shard = q.clone()
    with context_parallel(place.mesh(), buffers=[shard], buffer_seq_dims=[2]):
        assert shard.shape[2] == 8 // WORLD
        with pytest.raises(RuntimeError, match="context_parallel is active"):
            attend(module, shard, shard, shard, None)
    assert torch.equal(attend(module, q, q, q, None)[0], expected)
    torch.compiler.reset()


@torch.no_grad()
def distributed_activations(place: Place) -> None:
    """Check that a patched model runs the original methods of its modules on DTensors (distributed tensors)."""
    mesh, model = place.mesh(), net(device=place.device)
    x = net_input(device=place.device)
    expected = model(x)
    oxiwarp.patch(model, cpu_kernels=True)
    distribute_module(model, mesh)
    y = model(distribute_tensor(x, mesh, [Shard(0)]))
    assert isinstance(y, DTensor)
    torch.testing.assert_close(y.full_tensor(), expected, rtol=1e-5, atol=1e-5)
    block = ltx(device=place.device).transformer_blocks[0]
    three = [random(shape, torch.float32, place.device) for shape in ((1, 6, 32), (1, 4, 32), (1, 1, 6 * 32))]
    expected = block(*three)
    oxiwarp.patch(block, cpu_kernels=True)
    distribute_module(block, mesh)
    with sdpa_kernel(SDPBackend.MATH):  # torch 2.11 has no sharding rule for its CPU attention
        y = block(*(distribute_tensor(value, mesh, [Replicate()]) for value in three))
    assert isinstance(y, DTensor) and torch.allclose(y.full_tensor(), expected, atol=1e-5)
