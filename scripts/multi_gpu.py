"""Checks oxiwarp on two GPUs with NCCL, and compares the times of one and two GPUs with predicted times.

    python scripts/multi_gpu.py [--check NAME ...] [--out FOLDER]
    python scripts/multi_gpu.py --device cpu  # small models and gloo, without times: a test of the script

The checks, in this order:

    tests        runs test_patch_distributed.py with NCCL
    devices      uses both GPUs in one process: several streams, a thread per GPU, a CUDA graph per GPU
    collectives  measures time and bandwidth of all-reduce, all-gather and all-to-all, in eager mode and in a
                 CUDA graph
    language     compares a patched and an unpatched language model under transformers' tensor parallelism:
                 tokens, numerical errors, gradients and times
    fsdp         compares bits and gradients under transformers' FSDP2 (`fsdp_size=2`), which shards the last
                 norm as a separate module
    context      runs a patched Llama under torch's context_parallel. With torch's attention, the numerical
                 errors are measured. With oxiwarp's attention, the model must raise an error.
    flux         runs FLUX.1 under diffusers' tensor parallelism, Ulysses and ring attention: errors and
                 times, unpatched, patched, compiled and in a CUDA graph. The model has 4 double and 8 single blocks
                 of the published width.

A check prints a table with a row for each of its cases. The file multi_gpu.json contains the same rows. If a
case fails, its row contains the reason, and the exit code is 1. NVLink multicast stays off: the script sets
NCCL_NVLS_ENABLE=0.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ["NCCL_NVLS_ENABLE"] = "0"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/python/support"), str(ROOT / "benches/python")]

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from distributed import WORLD, Place, Ranks  # noqa: E402
from distributed_checks import enable, whole  # noqa: E402
from environment import begin  # noqa: E402
from fused_checks import Operators, run  # noqa: E402
from op_info import FORMS  # noqa: E402
from public_calls import call_of  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import oxiwarp  # noqa: E402
from oxiwarp import transformers_attention  # noqa: E402
from oxiwarp.cli.bench.workloads import WORKLOADS  # noqa: E402

ROUNDS = 15  # Number of timed steps of a model.
# Predicted times assume that a collective takes START µs, plus the time to send its bytes at RATE bytes per
# µs.
START, RATE = 20.0, 360e3


@dataclass
class Row:
    """One case of a check: the measured values by column name, and the reason if the case failed."""

    case: str = ""
    figures: dict[str, float | str] = field(default_factory=dict)
    failure: str = ""

    def require(self, holds: bool, message: str) -> None:
        """If a requirement does not hold, add `message` to the failures of this row. The measured values stay
        in the row."""
        if not holds:
            self.failure += f"{message}\n"


def case(ranks: Ranks, name: str, check: Callable[..., Row], *arguments: Any) -> Row:
    """Run a check in the process of each rank. Return a table row with the figures of rank 0 and the failures
    of all ranks.
    """
    try:
        rows = ranks.run(check, *arguments)
        return Row(name, rows[0].figures, "".join(row.failure for row in rows))
    except pytest.fail.Exception as failure:
        return Row(name, failure=str(failure))


def require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


# tests


def tests(ranks: Ranks) -> Iterator[Row]:
    """Run the tests of distributed models that use this backend."""
    file = ROOT / "tests/python/patch/test_patch_distributed.py"
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=short", "-k", ranks.backend, str(file)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    counts = {what: float(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|xfailed)", done.stdout)}
    failed = done.returncode != 0 or not counts.get("passed")
    yield Row(
        file.name,
        {**counts, "seconds": time.perf_counter() - started},
        done.stdout[-6000:] + done.stderr[-2000:] if failed else "",
    )


# devices


def devices(ranks: Ranks) -> Iterator[Row]:
    """Run every operator on both GPUs from one process."""
    if ranks.backend == "gloo":
        return
    for check in (streams, threads, graphs):
        try:
            yield Row(check.__name__, check())
        except Exception as failure:
            yield Row(check.__name__, failure=f"{type(failure).__name__}: {failure}")


def calls_on(device: torch.device) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Return a dict from operator names to pairs. A pair has a function that calls the operator, and the
    operand of this call, which is on `device`.

    One more function runs attention on 2048 tokens, for which oxiwarp uses its kernel for Hopper GPUs.
    """
    calls = {name: call_of(name, device) for name in FORMS}
    x = torch.randn(1, 8, 2048, 128, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    calls["attention of 2048 tokens"] = (lambda t: oxiwarp.attention(t, x, x), x)
    return calls


def on_both() -> list[dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]]:
    return [calls_on(torch.device("cuda", at)) for at in range(WORLD)]


@torch.no_grad()
def streams() -> dict[str, float]:
    """Check the results of calls that run on both GPUs at the same time. The calls are enqueued on three
    streams of each GPU.

    During half of the calls, torch's current device is the GPU of the call's tensors. During the other half,
    it is the other GPU.
    """
    both, count = on_both(), 0
    expected = {name: call(x).cpu() for name, (call, x) in both[0].items()}
    used = [[torch.cuda.Stream(at) for _ in range(3)] for at in range(WORLD)]
    results = []
    for turn in range(6):
        for name in expected:
            for at, calls in enumerate(both):
                stream = used[at][turn % 3]
                stream.wait_stream(torch.cuda.default_stream(at))
                with torch.cuda.stream(stream), torch.cuda.device(at if turn < 3 else (at + 1) % WORLD):
                    # torch's current device may be the other GPU. Even then, a kernel must run on the GPU of
                    # its tensors, and on the current stream of that GPU.
                    call, x = calls[name]
                    y = call(x)
                    require(y.device == x.device, f"{name}: the result is on {y.device}")
                    results.append((name, y))
    for at in range(WORLD):
        torch.cuda.synchronize(at)
    for name, y in results:
        require(torch.equal(y.cpu(), expected[name]), f"{name} on {y.device} differs from the first GPU")
        count += 1
    return {"operators": len(expected), "calls": count}


def threads() -> dict[str, float]:
    """Start one thread per GPU. At the same time, each thread runs every operator 20 times on its GPU."""
    both = on_both()
    with torch.no_grad():
        expected = {name: call(x).cpu() for name, (call, x) in both[0].items()}
    wrong: list[str] = []

    def work(at: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    wrong.extend(
                        f"{name} on GPU {at}"
                        for name, (call, x) in both[at].items()
                        if not torch.equal(call(x).cpu(), expected[name])
                    )
        except Exception as failure:
            wrong.append(f"GPU {at}: {failure}")

    workers = [threading.Thread(target=work, args=(at,)) for at in range(WORLD)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    require(not wrong, "; ".join(wrong))
    return {"operators": len(expected), "calls": 20.0 * WORLD * len(expected)}


@torch.no_grad()
def graphs() -> dict[str, float]:
    """Capture one CUDA graph per GPU, which contains a call of every operator.

    Replay the graphs of both GPUs three times, each time with different inputs.
    """
    both, captured, outputs, inputs = on_both(), [], [], []
    for at, calls in enumerate(both):
        static = {name: x.clone() for name, (_, x) in calls.items()}
        for name, (call, _) in calls.items():  # loads the kernels
            call(static[name])
        torch.cuda.synchronize(at)
        with torch.cuda.device(at):
            graph = torch.cuda.CUDAGraph()
            # Without the argument `stream`, torch would capture both graphs on the same stream, which is a
            # stream of the first GPU.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(at)):
                outputs.append({name: call(static[name]) for name, (call, _) in calls.items()})
        captured.append(graph)
        inputs.append(static)
    for turn in range(3):
        for static in inputs:
            for x in static.values():
                x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(100 + turn)).to(x))
        for at in range(WORLD):
            torch.cuda.synchronize(at)
        for graph in captured:
            graph.replay()
        for at, calls in enumerate(both):
            torch.cuda.synchronize(at)
            for name, (call, _) in calls.items():
                expected = call(inputs[at][name])
                require(torch.equal(outputs[at][name], expected), f"{name} on GPU {at}, replay {turn}, differs")
    return {"operators": len(both[0]), "calls": 3.0 * WORLD * len(both[0])}


# collectives


def collectives(ranks: Ranks) -> Iterator[Row]:
    sizes = [2**13, 2**16] if ranks.backend == "gloo" else [2**13, 2**16, 2**19, 2**22, 2**25, 2**27, 2**29]
    for name in ("all_reduce", "all_gather", "all_to_all"):
        for size in sizes:
            yield case(ranks, f"{name}, {readable(size)}", collective, name, size)


def readable(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"


@torch.no_grad()
def collective(place: Place, name: str, size: int) -> Row:
    """Check the result of one collective (such as all-reduce) on `size` bytes, and time it eagerly and in a
    CUDA graph."""
    count = size // 2  # bfloat16
    x = torch.full((count,), float(place.rank + 1), device=place.device, dtype=torch.bfloat16)
    if name == "all_reduce":
        sent, y = 2 * size * (WORLD - 1) / WORLD, x
        call: Callable[[], Any] = lambda: dist.all_reduce(x)  # noqa: E731
        expected = torch.full_like(x, float(sum(range(WORLD + 1))))
    else:
        sent = size * (WORLD - 1) / WORLD
        expected = torch.cat([x.new_full((count // WORLD,), rank + 1.0) for rank in range(WORLD)])
        y = torch.empty_like(x)
        if name == "all_gather":
            part = x[: count // WORLD]
            call = lambda: dist.all_gather_into_tensor(y, part)  # noqa: E731
        elif place.device.type == "cpu":
            pieces, parts = list(y.chunk(WORLD)), list(x.chunk(WORLD))
            call = lambda: dist.all_to_all(pieces, parts)  # noqa: E731
        else:
            call = lambda: dist.all_to_all_single(y, x)  # noqa: E731
    call()
    require(torch.equal(y, expected), f"{name} of {size} bytes is wrong")
    if place.device.type == "cpu":
        return Row()
    x.zero_()  # with zeros, the sums of repeated calls stay finite
    calls = 50 if size < 2**25 else 10
    eager = clocked(lambda: [call() for _ in range(calls)]) / calls
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    replayed = clocked(graph.replay) / calls
    figures = {"eager, µs": eager, "graph, µs": replayed, "predicted, µs": START + sent / RATE}
    return Row(figures=figures | {"graph, GB/s sent": sent / replayed / 1e3})


def clocked(work: Callable[[], object]) -> float:
    """Return the median GPU time of `work` in microseconds. A barrier makes all ranks start together."""
    times = []
    for _ in range(7):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return median(times[1:])


# Models


def milliseconds(place: Place, step: Callable[[], object], together: bool = True) -> float:
    """Return the median wall-clock time of `step` in milliseconds, or 0 on the CPU.

    If `together` is true, a barrier makes all ranks start each step at the same time.
    """
    if place.device.type == "cpu":
        return 0.0
    times = []
    for _ in range(ROUNDS + 3):
        if together:
            dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times[3:])


def off(y: Tensor, right: Tensor) -> float:
    """Return the norm of `y - right`, divided by the norm of `right`."""
    return ((y.double() - right.double()).norm() / right.double().norm()).item()


def equal_share(x: Tensor, y: Tensor) -> float:
    """Return the fraction of elements that have the same bits."""
    return (x == y).count_nonzero().item() / x.numel()


# For each published model: its configuration class in transformers, hidden size, intermediate size, number of
# query heads, number of key-value heads, and head dimension.
LANGUAGE_MODELS = {
    "Llama 3.1 8B": ("LlamaConfig", 4096, 14336, 32, 8, 128),
    "Qwen3 8B": ("Qwen3Config", 4096, 12288, 32, 8, 128),
    "Gemma 3 4B": ("Gemma3TextConfig", 2560, 10240, 8, 4, 256),
    "Phi-3 mini": ("Phi3Config", 3072, 8192, 32, 32, 96),
}
LAYERS, VOCABULARY, PROMPT, CONTEXT = 2, 32064, 8192, 2048


def checkpoint(name: str, folder: Path, small: bool) -> str:
    """Save a language model with two layers and random weights. Return the path of its folder."""
    import transformers

    cls, hidden, intermediate, heads, kv_heads, columns = LANGUAGE_MODELS[name]
    if small:
        hidden, intermediate, heads, kv_heads, columns = 32, 48, 4, 2, 8
    config = getattr(transformers, cls)(
        hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=columns, num_hidden_layers=LAYERS, vocab_size=64 if small else VOCABULARY, tie_word_embeddings=False,
        max_position_embeddings=8192, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cpu" if small else "cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    for path, parameter in model.named_parameters():
        if "norm" in path:  # Use random weights for norms. Otherwise, they would be only ones or only zeros.
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.to(torch.float32 if small else torch.bfloat16).save_pretrained(folder / name)
    return str(folder / name)


def load(path: str, place: Place, dtype: torch.dtype | None = None, attention: str = "sdpa", **sizes: int) -> Any:
    """Load the model at `path` onto the device of this rank.

    If `tp_size` or `fsdp_size` is given, transformers distributes the model over the ranks.
    """
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    options: dict[str, Any] = dict(dtype=dtype or place.dtype, attn_implementation=attention)
    if not sizes:
        return AutoModelForCausalLM.from_pretrained(path, **options).eval().to(place.device)
    from transformers.distributed import DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(path, **options, distributed_config=DistributedConfig(**sizes)).eval()
    require(any(isinstance(p, DTensor) for p in model.parameters()), "transformers did not distribute the model")
    return model


def tokens(model: Any, place: Place, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size, (1, count), generator=generator).to(place.device)


def language(ranks: Ranks) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for name in LANGUAGE_MODELS:
            path = checkpoint(name, Path(folder), small=ranks.backend == "gloo")
            row = case(ranks, name, tensor_parallel, path)
            if alone := row.figures.get("patched, 1 GPU, ms"):
                _, hidden, *_ = LANGUAGE_MODELS[name]
                # Each layer has two all-reduces of the hidden state.
                reduce = START + 2 * PROMPT * hidden * 2.0 * (WORLD - 1) / WORLD / RATE
                row.figures["predicted, ms"] = float(alone) / WORLD + LAYERS * 2 * reduce / 1e3
            yield row


def tensor_parallel(place: Place, path: str) -> Row:
    """Compare four runs of a model: patched and unpatched, each under tensor parallelism and on one GPU.

    oxiwarp's RMSNorm rounds at the same points as the class in transformers, but adds the terms of a sum in another
    order. Patched and unpatched models therefore do not have equal bits, even on one GPU.
    """
    alone, model = load(path, place), load(path, place, tp_size=WORLD)
    prompt = tokens(model, place, PROMPT if place.device.type == "cuda" else 12)

    def step(of: Any) -> Callable[[], Tensor]:
        return lambda: of(prompt, logits_to_keep=1, use_cache=False).logits

    ids = tokens(model, place, 512 if place.device.type == "cuda" else 10, seed=1)
    row = Row()
    figures = row.figures
    with torch.no_grad():
        figures["unpatched, 1 GPU, ms"] = milliseconds(place, step(alone))
        figures["unpatched, 2 GPUs, ms"] = milliseconds(place, step(model))
        one, stock = alone(ids).logits, model(ids).logits
        generated = model.generate(ids[:, :16], max_new_tokens=8, do_sample=False)
    expected = gradients(model, ids)
    oxiwarp.patch(model, cpu_kernels=True)
    oxiwarp.patch(alone, cpu_kernels=True)
    with torch.no_grad():
        (ours, *_), kernels = run(model, dict(input_ids=ids, use_cache=False, return_dict=False))
        figures["equal values, 1 GPU"], figures["equal values, 2 GPUs"] = (
            equal_share(alone(ids).logits, one),
            equal_share(ours, stock),
        )
        figures["patched, 1 GPU, ms"] = milliseconds(place, step(alone))
        figures["patched, 2 GPUs, ms"] = milliseconds(place, step(model))
        again = model.generate(ids[:, :16], max_new_tokens=8, do_sample=False)
    found = gradients(model, ids)
    del alone, model
    right_model = load(path, place, torch.float32)
    right = gradients(right_model, ids)
    with torch.no_grad():
        exact = right_model(ids).logits
    figures["error, 1 GPU"], figures["error, 2 GPUs"] = off(one, exact), off(ours, exact)
    errors = {name: (off(found[name], right[name]), off(expected[name], right[name])) for name in right}
    figures["error of gradients"] = max(ours for ours, _ in errors.values())
    figures["error of gradients, unpatched"] = max(own for _, own in errors.values())
    row.require(bool(kernels), "no kernel of oxiwarp ran")
    row.require(torch.equal(generated, again), f"tokens {again.tolist()} instead of {generated.tolist()}")
    row.require(off(ours, exact) <= 1.25 * off(stock, exact) + 1e-6, "the error is larger than the unpatched model's")
    worse = {name: pair for name, pair in errors.items() if pair[0] > 1.25 * pair[1] + 1e-5}
    row.require(not worse, f"gradients, error and error of the unpatched model: {worse}")
    return row


def gradients(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the loss by parameter name."""
    model(ids, labels=ids, use_cache=False).loss.backward()
    found = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def fsdp(ranks: Ranks) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for name in LANGUAGE_MODELS:
            path = checkpoint(name, Path(folder), small=ranks.backend == "gloo")
            yield case(ranks, name, sharded, path)


def sharded(place: Place, path: str) -> Row:
    """Compare a model under FSDP2 with the same model on one GPU, both unpatched and then both patched.

    The outputs under FSDP2 and on one GPU must have the same bits. Both ranks have the same inputs, so the mean of
    their gradients equals the gradient on one GPU, except for the rounding of the sum.
    """
    alone, model = load(path, place), load(path, place, fsdp_size=WORLD)
    ids = tokens(model, place, 512 if place.device.type == "cuda" else 10)
    arguments = dict(input_ids=ids, use_cache=False, return_dict=False)
    row = Row()
    # With torch's faster attention backends, two runs would give gradients with different bits.
    with sdpa_kernel(SDPBackend.MATH):
        for state in ("unpatched", "patched"):
            if state == "patched":
                report, _ = oxiwarp.patch(model, cpu_kernels=True), oxiwarp.patch(alone, cpu_kernels=True)
            with torch.no_grad():
                (one, *_), expected_kernels = run(alone, arguments)
                (both, *_), kernels = run(model, arguments)
            expected, found = gradients(alone, ids), gradients(model, ids)
            row.figures[f"{state}: equal values"] = equal_share(both, one)
            row.figures[f"{state}: gradients differ by"] = max(off(found[name], expected[name]) for name in expected)
            # On the CPU, safetensors may load a weight at an unaligned address. torch then uses another
            # kernel for this weight, whose results may have other bits.
            near = torch.equal(both, one) if place.device.type == "cuda" else torch.allclose(both, one, atol=1e-6)
            row.require(near, f"{state}: the bits are not those of one GPU")
    row.figures |= {"replaced modules": report.replaced, "kernels": sum(kernels.values())}
    row.require(kernels == expected_kernels and bool(kernels), f"kernels {kernels} instead of {expected_kernels}")
    differences = [float(row.figures[f"{state}: gradients differ by"]) for state in ("unpatched", "patched")]
    row.require(differences[1] <= differences[0] + 1e-6, "gradients differ")
    return row


def context(ranks: Ranks) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint("Llama 3.1 8B", Path(folder), small=ranks.backend == "gloo")
        for rotation in ("allgather", "alltoall"):
            yield case(ranks, f"attention of oxiwarp, {rotation}", keys_of_one_rank, path, rotation)
            if ranks.backend == "nccl":  # torch has no context parallelism for its CPU attention.
                yield case(ranks, f"attention of torch, {rotation}", context_parallel_of_torch, path, rotation)


def in_context(place: Place, model: Any, rotation: str) -> Tensor:
    """Run the model under torch's context parallelism, which splits the tokens among the ranks. Return the
    logits of all tokens."""
    from accelerate.big_modeling import _attach_context_parallel_hooks
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method

    ids = tokens(model, place, CONTEXT if place.device.type == "cuda" else 16)
    embedded = model.get_input_embeddings()(ids).detach()
    positions = torch.arange(ids.shape[1], device=place.device)[None]
    # accelerate attaches the same hooks for its own context parallelism. With them, attention is called with
    # `is_causal` instead of a mask tensor.
    _attach_context_parallel_hooks(model)
    set_rotate_method(rotation)
    with torch.no_grad(), context_parallel(place.mesh(), buffers=[embedded, positions], buffer_seq_dims=[1, 1]):
        logits = model(inputs_embeds=embedded, position_ids=positions, use_cache=False).logits
        return context_parallel_unshard(place.mesh(), [logits], [1])[0]


def keys_of_one_rank(place: Place, path: str, rotation: str) -> Row:
    """Check that a model with `attn_implementation="oxiwarp"` raises an error under context parallelism.

    Without the error, oxiwarp's attention would read only the keys of its own rank and give a wrong result.
    """
    transformers_attention.register()
    model = load(path, place, attention="oxiwarp")
    oxiwarp.patch(model, cpu_kernels=True)
    row = Row()
    try:
        in_context(place, model, rotation)
        row.require(False, "no error was raised")
    except RuntimeError as error:
        row.require("context_parallel is active" in str(error), f"another error: {error}")
        row.figures["result"] = "raises an error, as documented"
    return row


def context_parallel_of_torch(place: Place, path: str, rotation: str) -> Row:
    """Check that a patched model with torch's attention is as accurate under context parallelism as the
    unpatched model."""
    model, row = load(path, place), Row()
    stock = in_context(place, model, rotation)
    oxiwarp.patch(model)
    with Operators() as operators:
        ours = in_context(place, model, rotation)
    del model
    model = load(path, place, torch.float32)
    with torch.no_grad():
        exact = model(tokens(model, place, CONTEXT), use_cache=False).logits
    figures = {"error, unpatched": off(stock, exact), "error, patched": off(ours, exact)}
    row.figures |= {"kernels": operators.calls.total()} | figures | {"equal values": equal_share(ours, stock)}
    row.require(operators.calls.total() > 0, "no kernel of oxiwarp ran")
    row.require(figures["error, patched"] <= 1.25 * figures["error, unpatched"], "the patched model is less accurate")
    return row


# FLUX.1

DOUBLE, SINGLE = 4, 8
# Bytes of the activations of all 4608 tokens, with 3072 columns in bfloat16.
SENT = 4608 * 3072 * 2.0
# Additional time per block in µs. `COPIES` is the time of the copies in diffusers' Ulysses attention. `MERGE`
# is the time for merging the partial results in diffusers' ring attention.
COPIES, MERGE = 53.0, 73.0


def predicted(alone: float, how: str) -> float:
    """Return the predicted milliseconds of a FLUX.1 step on two GPUs, from `alone`, the measured
    milliseconds on one GPU.

    The prediction counts the collectives of each block of the model. Under tensor parallelism, a single-stream block
    has one all-reduce. A double-stream block has four, which together reduce twice as many bytes. Under Ulysses, a
    block of either kind has four all-to-all calls. Under ring attention, it has one gather of its keys and values.
    """
    share = (WORLD - 1) / WORLD
    single, double = {
        "tensor": (START + 2 * SENT * share / RATE, 4 * START + 4 * SENT * share / RATE),
        "ulysses": (4 * START + 4 * SENT * share / WORLD / RATE + COPIES,) * 2,
        "ring": (START + 2 * SENT * share / RATE + MERGE,) * 2,
    }[how]
    return alone / WORLD + (SINGLE * single + DOUBLE * double) / 1e3


def flux(ranks: Ranks) -> Iterator[Row]:
    row = case(ranks, "one GPU", flux_step, "")
    yield row
    for how in ("tensor", "ulysses", "ring"):
        # diffusers' ring attention needs an attention backend that torch has only on GPUs.
        if ranks.backend == "gloo" and how == "ring":
            continue
        parallel = case(ranks, how, flux_step, how)
        alone = row.figures.get("patched, ms")
        if alone and not parallel.failure:
            parallel.figures["predicted, ms"] = predicted(float(alone), how)
        yield parallel


def flux_model(place: Place, dtype: torch.dtype) -> nn.Module:
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    with torch.device(place.device):
        if place.device.type == "cpu":
            model = WORKLOADS["flux"].build(True)
        else:
            model = FluxTransformer2DModel(guidance_embeds=True, num_layers=DOUBLE, num_single_layers=SINGLE)
    return model.to(dtype).eval().requires_grad_(False)


@torch.no_grad()
def flux_step(place: Place, how: str) -> Row:
    """Run and time FLUX.1 unpatched, patched and compiled. `how` is the kind of parallelism ("tensor",
    "ulysses" or "ring"), or "" for one GPU."""
    from diffusers import attention_backend

    small, row = place.device.type == "cpu", Row()
    figures = row.figures

    def arguments(dtype: torch.dtype) -> dict[str, Any]:
        return WORKLOADS["flux"].arguments(model, small, place.device, dtype)

    model = flux_model(place, torch.float32)
    right = model(**arguments(torch.float32))[0]
    model = flux_model(place, place.dtype)
    own = arguments(place.dtype)
    with ExitStack() as stack:
        # Ring attention needs the log-sum-exp of each attention row, which the backend "native" does not
        # return.
        stack.enter_context(attention_backend("_native_flash" if how == "ring" else "native"))
        alone = model(**own)[0]
        if how:
            enable(model, how, place)
        stock = model(**own)[0]
        figures["unpatched, ms"] = milliseconds(place, lambda: model(**own))
        oxiwarp.patch(model, cpu_kernels=True)
        (ours,), kernels = run(model, own)
        figures["patched, ms"] = milliseconds(place, lambda: model(**own))
        figures["patched, graph, ms"] = in_a_graph(place, lambda: model(**own))
        oxiwarp.unpatch(model)
        figures["unpatched, graph, ms"] = in_a_graph(place, lambda: model(**own))
        if not small:
            try:
                torch._dynamo.reset()
                model.compile_repeated_blocks(fullgraph=True)
                compiled = model(**own)[0]
                figures["compiled, ms"] = milliseconds(place, lambda: model(**own))
                figures["error, compiled"] = off(compiled, right)
            except Exception as error:  # This model is unpatched, so the fault is in torch or diffusers.
                figures["compiled, ms"] = reason(error)
    figures["kernels"] = sum(kernels.values())
    figures["equal values"] = equal_share(ours, stock)
    figures |= {"error, one GPU": off(alone, right), "error, unpatched": off(stock, right)}
    figures["error, patched"] = off(ours, right)
    row.require(bool(kernels), "no kernel of oxiwarp ran")
    row.require(off(ours, right) <= 1.25 * off(alone, right) + 1e-6, "the error is larger than on one GPU")
    if not small:
        row.require(torch.equal(ours, stock), "the bits are not those of the unpatched model")
    return row


def in_a_graph(place: Place, step: Callable[[], object]) -> float | str:
    """Return the milliseconds of `step` as a CUDA graph, without the CPU time of kernel launches. If the step
    cannot be captured, return the reason as text."""
    if place.device.type == "cpu":
        return 0.0
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except Exception as error:  # The model does not support capture in a CUDA graph.
        return reason(error)
    return milliseconds(place, graph.replay)


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


CHECKS: dict[str, Callable[[Ranks], Iterator[Row]]] = {
    check.__name__: check for check in (tests, devices, collectives, language, fsdp, context, flux)
}


def show(name: str, rows: list[Row]) -> None:
    """Print the table of a check, then the failures."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    columns = list(dict.fromkeys(column for row in rows for column in row.figures))
    table = Table(name, *columns, "", title_justify="left")
    for row in rows:
        cells = (row.figures.get(column, "") for column in columns)
        table.add_row(row.case, *(cell(value) for value in cells), "FAILED" if row.failure else "ok")
    console.print(table)
    for row in rows:
        if row.failure:
            console.print(f"{name}, {row.case}:\n{row.failure}", markup=False)


def cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="append", choices=CHECKS, help="run only this check; may be repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="folder for multi_gpu.json")
    options = parser.parse_args()
    if options.device == "cuda" and torch.cuda.device_count() < WORLD:
        print(f"multi_gpu: {torch.cuda.device_count()} GPUs, {WORLD} are needed", file=sys.stderr)
        return 2
    facts, folder = begin(options.out)
    if options.device == "cuda":
        facts |= {"gpus": torch.cuda.device_count(), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    results: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as store:
        ranks = Ranks("gloo" if options.device == "cpu" else "nccl", Path(store))
        for name in options.check or CHECKS:
            started, rows = time.perf_counter(), list[Row]()
            for row in CHECKS[name](ranks):
                rows.append(row)
                results[name] = rows
                record = {
                    "facts": facts,
                    "checks": {name: [asdict(row) for row in rows] for name, rows in results.items()},
                }
                (folder / "multi_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
            if rows:
                show(name, rows)
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        ranks.stop()
    return int(any(row.failure for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
