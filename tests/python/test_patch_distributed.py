"""Patched models in DistributedDataParallel and FSDP2: two processes, on the CPU."""

import pytest
import torch
from distributed import WORLD, train

pytest.importorskip("diffusers")


@pytest.mark.parametrize("order", ["patch first", "wrap first"])
def test_gradients(order, tmp_path):
    """The mean of the stock gradients, whether patched before or after wrapping."""
    torch.multiprocessing.spawn(train, args=(order, str(tmp_path / "store")), nprocs=WORLD)
