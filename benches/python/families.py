"""Compares a step of a model whose methods are all rewritten with a step of the model with its fusions:
`python benches/python/families.py flux ltx --rounds 15`.

A fusion is a hand-written method for one class. A family has the fusions of one model, in one Python module of
`oxiwarp/patching/fusions`. A family stays only if it makes a step at least 1 % faster than the rewriter.

The steps of the unpatched model, of the patched model and of the rewritten model run in turns, on the same
weights and inputs. With `--compile`, the two patched models are compiled. The script prints one row of a table
per model. With `--launches`, it prints the numbers of operators that a step of a tiny model dispatches, and
needs no GPU.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from environment import environment, title_of
from torch import Tensor, nn

from oxiwarp import patch
from oxiwarp.cli.bench.measure import build, run_step, timed, twin
from oxiwarp.cli.bench.turns import in_turns
from oxiwarp.cli.bench.workloads import WORKLOADS
from oxiwarp.patching.fusions import FAMILIES, FUSIONS
from oxiwarp.patching.fusions.core import registry
from oxiwarp.patching.rewrite import operands

SMALL_MODULES = ("layer_norm", "timesteps", "feed_forward")
"""Families for modules that many models have. They stay in the rewritten model."""
HEAD = ("model", "mode", "rounds", "with the family, ms", "rewritten only, ms", "unpatched, ms")


@contextmanager
def without_families() -> Iterator[None]:
    """Remove all families except those in `SMALL_MODULES` while the `with` block runs, so that `patch`
    rewrites the methods of their classes."""
    kept = dict(FUSIONS)
    for family in FAMILIES:
        if family.__name__.rpartition(".")[2] not in SMALL_MODULES:
            for fusion in family.FUSIONS:
                del FUSIONS[fusion.name]
    forget()
    try:
        yield
    finally:
        FUSIONS.clear()
        FUSIONS.update(kept)
        forget()


def forget() -> None:
    """Clear the caches of the fusions that `patch` found for classes."""
    for cached in (registry.found_for, operands.is_packed):
        cached.cache_clear()  # type: ignore[attr-defined]


def both(model: nn.Module, cpu_kernels: bool) -> tuple[nn.Module, nn.Module]:
    """Return two patched models with the weights of `model`: one with its fusions, and one whose methods are
    rewritten."""
    fused, rewritten = twin(model), twin(model)
    patch(fused, cpu_kernels=cpu_kernels)
    with without_families():
        patch(rewritten, cpu_kernels=cpu_kernels)
    return fused, rewritten


def output_of(made: Any) -> Tensor:
    """Return a copy of the first tensor of a model's output."""
    while not isinstance(made, Tensor):
        made = next(iter(made.values())) if hasattr(made, "values") else made[0]
    return made.clone()


def times(name: str, rounds: int, compiles: bool, small: bool, device: torch.device) -> list[Any]:
    """Return the row of the table for one workload."""
    workload = WORKLOADS[name]
    model = build(workload, small, device, torch.bfloat16)
    arguments = workload.arguments(model, small, device, torch.bfloat16)
    models = [*both(model, device.type == "cpu"), model]
    runs = [torch.compile(one, fullgraph=True) if compiles and one is not model else one for one in models]
    outputs = [output_of(run_step(workload, run, arguments)) for run in runs for _ in range(2)][1::2]
    taken: list[list[float]] = [[] for _ in runs]
    for _, at in in_turns(range(len(runs)), rounds):
        taken[at].append(timed(lambda at=at: run_step(workload, runs[at], arguments), device)[1])
    fused, rewritten, plain = map(median, taken)
    equal = ["yes" if torch.equal(output, outputs[-1]) else "no" for output in outputs[:2]]
    mode = "torch.compile (unpatched: eager)" if compiles else "eager"
    numbers = [f"{one:.2f}" for one in (fused, rewritten, plain)]
    return [name, mode, rounds, *numbers, f"{rewritten / fused:.4f}", ", ".join(equal)]


def launches(name: str) -> list[Any]:
    """Return the row of the table of operators for one workload, with a small model on the CPU executor."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    from chain_coverage import Operators

    workload, cpu = WORKLOADS[name], torch.device("cpu")
    model = build(workload, True, cpu, torch.bfloat16)
    arguments = workload.arguments(model, True, cpu, torch.bfloat16)
    counts = []
    for one in (*both(model, cpu_kernels=True), model):
        run_step(workload, one, arguments)  # The first step fills caches.
        with Operators() as operators:
            run_step(workload, one, arguments)
        counts.append(operators.count)
    return [name, *counts]


def main(argv: list[str] | None = None) -> None:
    """Measure workloads and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="compile the patched models")
    parser.add_argument("--launches", action="store_true", help="count the operators of a tiny model on the CPU")
    parser.add_argument("--small", action="store_true", help="tiny models on the CPU executor, for a test")
    options = parser.parse_args(argv)
    device = torch.device("cpu" if options.small else "cuda")
    head = ("model", "with the family", "rewritten only", "unpatched")
    if not options.launches:
        print(title_of(environment()) if device.type == "cuda" else "CPU executor")
        head = (*HEAD, "rewritten / family", "equal bits to unpatched (family, rewritten)")
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    with torch.no_grad():
        for name in options.names:
            row = (
                launches(name)
                if options.launches
                else times(name, options.rounds, options.compile, options.small, device)
            )
            print(f"| {' | '.join(map(str, row))} |", flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
