"""Tests of patched models in several processes: DistributedDataParallel, FSDP2, diffusers' parallelism, and
DTensors.

Each test runs small models on the CPU with the gloo backend. If there are two GPUs, each test also runs
models on them with NCCL. The models on GPUs have the width of published models.
"""

import pytest
import torch
from distributed import WORLD, Ranks
from distributed_checks import (
    distributed_activations,
    keys_of_one_rank,
    parallel,
    parallel_training,
    refused,
    sharded_rows,
    train,
)
from public_calls import NAMES

pytest.importorskip("diffusers")
ORDERS = ["patch first", "wrap first"]


@pytest.fixture(scope="module", params=["gloo", "nccl"])
def ranks(request, tmp_path_factory):
    if request.param == "nccl" and torch.cuda.device_count() < WORLD:
        pytest.skip(f"fewer than {WORLD} GPUs")
    ranks = Ranks(request.param, tmp_path_factory.mktemp(request.param))
    yield ranks
    ranks.stop()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
@pytest.mark.parametrize("model", ["ltx", "flux"])
def test_training(model, how, order, ranks):
    ranks.run(train, model, how, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", ["ulysses", "ring"])
@pytest.mark.parametrize("model", ["ltx", "flux", "wan", "qwen_image"])
def test_context_parallel(model, how, order, ranks):
    if ranks.backend == "gloo" and how == "ring":
        pytest.skip("diffusers' ring needs an attention that torch has on GPUs only")
    ranks.run(parallel, model, how, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("model", ["flux", "qwen_image"])
def test_tensor_parallel(model, order, ranks):
    ranks.run(parallel, model, "tensor", order)


@pytest.mark.parametrize("how", ["ulysses", "tensor"])
@pytest.mark.parametrize("model", ["flux", "qwen_image"])
def test_parallel_training(model, how, ranks):
    ranks.run(parallel_training, model, how)


@pytest.mark.parametrize("name", NAMES)
def test_distributed_tensors(name, ranks):
    ranks.run(refused, name)


@pytest.mark.xfail(
    strict=True, raises=pytest.fail.Exception, reason="review D3: operators have no DTensor sharding rules"
)
def test_sharded_rows(ranks):
    ranks.run(sharded_rows)


def test_distributed_activations(ranks):
    ranks.run(distributed_activations)


@pytest.mark.parametrize("compiled", [False, True])
def test_context_parallel_of_torch(compiled, ranks):
    """`attn_implementation="oxiwarp"` raises an error inside torch's `context_parallel`.

    oxiwarp's attention cannot exchange keys between ranks.
    """
    ranks.run(keys_of_one_rank, compiled)
