"""Runs checks in several processes: with gloo on the CPU, or with NCCL and one GPU per process."""

import functools
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

WORLD = 2
PATIENCE, AFTER_A_FAILURE = 180, 10  # timeouts in seconds; the first check on a GPU compiles kernels


@functools.cache
def mesh(kind: str, shape: tuple[int, ...], names: tuple[str, ...] | None) -> DeviceMesh:
    """Return a torch device mesh. Meshes are cached, because each new mesh creates process groups."""
    return init_device_mesh(kind, shape, mesh_dim_names=names)


class Place(NamedTuple):
    """The rank and the device of a process."""

    rank: int
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of models on the device."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def mesh(self, *shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """Return a device mesh of all ranks. Without a shape, the mesh has one dimension."""
        return mesh(self.device.type, shape or (WORLD,), names)


class Ranks:
    """A pool of `WORLD` processes of one torch.distributed backend.

    The checks reuse these processes, because starting processes takes longer than most checks.
    """

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.started = 0
        self.processes: list[Any] = []
        self.pipes: list[connection.Connection] = []

    def run(self, check: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `check(place, *arguments)` in each process and return the results by rank.

        If processes raise errors, the test fails with the tracebacks of these processes.
        """
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((check, arguments))
        waiting, failures = set(self.pipes), []
        results: dict[connection.Connection, Any] = {}
        while waiting and (ready := connection.wait(waiting, AFTER_A_FAILURE if failures else PATIENCE)):
            for pipe in ready:
                waiting.remove(pipe)
                results[pipe], failure = answer(pipe)
                failures += failure
        if waiting or "" in failures:
            self.stop()
            failures.append(f"{len(waiting)} did not answer, {failures.count('')} ended")
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [results[pipe] for pipe in self.pipes]

    def start(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.started += 1
        store = str(self.folder / f"store{self.started}")
        for rank in range(WORLD):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.backend, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def stop(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            process.kill()
            process.join()
        self.processes, self.pipes = [], []


def answer(pipe: connection.Connection) -> tuple[Any, list[str]]:
    """Return the result of a process, and a list of its failures.

    If the check raised an error, the list contains the traceback. If the process has ended and cannot answer,
    the list contains `""`.
    """
    try:
        result, failure = pipe.recv()
    except EOFError:
        return None, [""]
    return result, [failure] if failure else []


def serve(rank: int, backend: str, store: str, pipe: connection.Connection) -> None:
    """Run the checks that the test process sends through `pipe`, until the pipe is closed."""
    torch.set_num_threads(1)
    # transformers and accelerate read the device index from these environment variables, which torchrun
    # normally sets.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, WORLD),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE),
    )
    while True:
        try:
            check, arguments = pipe.recv()
        except EOFError:
            # Skip the shutdown of the Python interpreter. It sometimes aborts if a thread of gloo or autograd
            # is still running.
            os._exit(0)
        try:
            pipe.send((check(Place(rank, device), *arguments), ""))
        except Exception:
            pipe.send((None, f"rank {rank}: {traceback.format_exc()}"))
