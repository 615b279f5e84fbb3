"""What the processes of `test_patch_distributed.py` run: a patched model against the stock one."""

import os

import torch
import torch.distributed as dist
from helpers import random
from models import ltx, ltx_input
from torch import Tensor, nn

import oxiwarp
from oxiwarp.fusions import FUSIONS

WORLD = 2


def inputs(rank: int) -> dict:
    return {**ltx_input(), "hidden_states": random((2, 24, 128), torch.float32, "cpu", seed=20 + rank)}


def step(model: nn.Module, rank: int) -> Tensor:
    """A forward and a backward on this rank's inputs."""
    loss = model(**inputs(rank))[0].square().mean()
    loss.backward()
    return loss


def mean_gradients() -> dict[str, Tensor]:
    """Of the stock model, over all ranks' inputs."""
    model = ltx().requires_grad_()
    for rank in range(WORLD):
        step(model, rank)
    return {name: p.grad / WORLD for name, p in model.named_parameters() if p.grad is not None}


def wrap(model: nn.Module, how: str) -> nn.Module:
    if how == "DDP":
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.transformer_blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(rank: int, order: str, store: str) -> None:
    """Assert, for each way of wrapping, that the gradients are the stock model's, and that fused blocks made them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD)
    ran, run, expected = [], FUSIONS["ltx.block"].run, mean_gradients()
    FUSIONS["ltx.block"].__dict__["run"] = lambda *a, **k: (ran.append(1), run(*a, **k))[1]
    for how in ("DDP", "FSDP2"):
        model = ltx().requires_grad_()
        if order == "patch first":
            oxiwarp.patch(model, cpu_kernels=True)
        wrapped = wrap(model, how)
        if order == "wrap first":
            assert oxiwarp.patch(wrapped, cpu_kernels=True).left == 0, how
        ran.clear()
        step(wrapped, rank)
        assert len(ran) == 2, f"{how}: the fused blocks run"
        for name, right in expected.items():
            gradient = model.get_parameter(name).grad
            gradient = gradient.full_tensor() if how == "FSDP2" else gradient
            assert torch.allclose(gradient, right, rtol=1e-4, atol=1e-6), f"{how}: {name}"
        oxiwarp.unpatch(model)
        step(wrapped, rank)
        assert len(ran) == 2, f"{how}: unpatched, they do not"
    dist.barrier()
    # Not by the interpreter's end, where a thread that still runs (gloo's, autograd's) aborts the process now and then.
    os._exit(0)
