"""Checks and times oxiwarp, torch, torch.compile, Liger and QuACK on a GPU in one run.

    python benches/python/bench.py [--quick] [--only ada_norm,rope] [--alone] [--seconds N] [--out FOLDER]

The program prints a table for each op, and the project's performance goals with their results. It writes results.csv,
goals.csv, overheads.csv, results.txt, environment.json and one plot per family of ops. The CSV and JSON files are
updated after each op. Without a GPU, the program prints a message and exits with 0. The exit code is 1 if an oxiwarp
result is wrong. A missed goal does not change the exit code.
"""

import argparse
import gc
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clock import Clock, add_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from forms import Chain, Form, Inputs, Shape
    from results import Measurement, Results
    from timing import Turn


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape per op and few rounds, to test bench.py")
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="only these, no overheads")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (default: 25, quick: 8)")
    parser.add_argument(
        "--alone", action="store_true", help="only oxiwarp and the copy, to compare two builds of oxiwarp"
    )
    add_seconds(parser)
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 2:
        parser.error("--rounds: 2 or more")
    return options


def say(text: str) -> None:
    """Print progress, with the seconds since the start."""
    print(f"[{STARTED.spent:6.1f} s] {text}", flush=True)


def right_providers(
    form: "Form", shape: "Shape", inputs: "Inputs", results: "Results", alone: bool
) -> "tuple[dict[str, tuple[Chain, float]], int]":
    """Map the name of each implementation with a correct result to its function and its relative error.

    Also return the number of bytes that one call writes. The model's torch code runs first, because its error
    determines the error limit of all other implementations.
    """
    from check import EAGER_LIMIT, LEAST, error_of, run
    from forms import DTYPE, bytes_of
    from providers import EAGER, is_ours, ours_of, providers_of

    right, eager, like = {}, None, ()
    overwriting = {name for name, peer in form.peers.items() if peer.overwrites}
    for name, provider in ({EAGER: form.eager} | ours_of(form) if alone else providers_of(form)).items():
        what = f"{form.op} {' x '.join(map(str, shape))}, {name}"
        try:
            given = {name: x.clone() for name, x in inputs.items()} if name in overwriting else inputs
            outputs = run(form, provider, given, like)
            error = error_of(form, shape, inputs, outputs)
        except Exception as failure:  # continue if an implementation does not run on this GPU
            text = f"{what}: not measured ({type(failure).__name__}: {str(failure).strip()[:300]})"
            say(text)
            if name == EAGER:
                results.dropped.append(text)
                break
            (results.wrong if is_ours(name) else results.dropped).append(text)
            continue
        if name == EAGER:
            eager, like = error, outputs
        if eager is None or not (error.allowed_by(eager, DTYPE) and eager.within(EAGER_LIMIT * LEAST[DTYPE])):
            text = f"{what}: relative error {error.relative:.3g}, worst element {error.element:.3g}"
            say(f"wrong: {text}")
            (results.wrong if is_ours(name) or name == EAGER else results.dropped).append(text)
        else:
            right[name] = (provider, error.relative)
    if alone:
        right.pop(EAGER, None)
    return right, bytes_of(*like)


def measure(
    case: "tuple[Form, str, Shape]",
    copy: "tuple[Turn, int]",
    rounds: int,
    results: "Results",
    device: "torch.device",
    alone: bool,
) -> "Measurement | None":
    """Check all implementations of an op on one shape, and time the correct implementations in alternation.

    A device-to-device copy is timed together with them. With `alone`, time only oxiwarp. If the model's torch
    code does not run, return None, because the check needs the error of this code.
    """
    import torch
    from forms import Source, bytes_of, prepare
    from providers import FLOOR, is_ours
    from results import Measurement
    from timing import COPY, calls_for, capture, race, rotated, sets_for

    form, model, shape = case
    # compile each shape separately, so that the number of recompilations stays below torch's limit
    torch._dynamo.reset()
    source = Source(device)
    first = form.inputs(source, shape)
    read = bytes_of(*first.values())
    right, written = right_providers(form, shape, first, results, alone)
    if not written:
        return None
    del first
    torch.cuda.empty_cache()
    sets = rotated(lambda: form.inputs(source, shape), sets_for(read, device))
    calls = calls_for(written, len(sets), device)
    chains = {name: provider for name, (provider, _) in right.items()}
    if form.floor:
        chains[FLOOR] = form.floor
    turns = {COPY: copy[0]}
    for name, provider in chains.items():
        try:
            turns[name] = capture(partial(prepare, form, provider), sets, calls)
        except Exception as failure:  # continue if an implementation cannot be captured in a CUDA graph
            text = f"{form.op} {model}, {name}: not timed ({type(failure).__name__}: {str(failure).strip()[:300]})"
            say(text)
            (results.wrong if is_ours(name) else results.dropped).append(text)
    times = race(turns, rounds)
    results.copies.append(copy[1] / times.pop(COPY).median / 1e3)
    largest = max(bytes_of(x) for x in sets[0].values())
    errors = {name: error for name, (_, error) in right.items()}
    return Measurement(form.op, form.chain, model, shape, read + written, largest, times, errors)


def measure_ops(options: argparse.Namespace, results: "Results", clock: Clock, write: "Callable[[], None]") -> None:
    """Measure every op for every model until the time limit is reached."""
    import torch
    from ops import timed_cases
    from providers import has_ours
    from timing import copy_turn

    rounds = options.rounds or (8 if options.quick else 25)
    device = torch.device("cuda", torch.cuda.current_device())
    copy = copy_turn(device)
    gc.freeze()  # exclude imported objects from garbage collection
    with torch.no_grad():
        cases = list(timed_cases(options.only, options.quick))
        for number, (form, model, shape) in enumerate(cases, 1):
            if not has_ours(form):
                if form.op not in results.missing:
                    say(f"{form.op}: not in this build")
                    results.missing.append(form.op)
                continue
            if clock.is_over:
                say(f"{form.op}, {model}: left out, no time")
                results.left_out.append(f"{form.op} {model}")
                continue
            if results.measurements and results.measurements[-1].op != form.op:
                write()
            say(f"{number} of {len(cases)}: {form.op}, {model}, {' x '.join(map(str, shape))}")
            try:
                measured = measure((form, model, shape), copy, rounds, results, device, options.alone)
            except torch.OutOfMemoryError as failure:
                say(f"{form.op}, {model}: left out, no memory ({str(failure).strip()[:300]})")
                measured = None
            if measured is None:
                results.left_out.append(f"{form.op} {model}")
            else:
                results.measurements.append(measured)
            gc.collect()  # frees cycles that keep graphs alive
            torch.cuda.empty_cache()


def measure_overheads(options: argparse.Namespace, results: "Results") -> None:
    """Measure the Python overhead per call, the time of `import oxiwarp`, and, for two ops, the time of the first
    call.
    """
    from overhead import first_call_seconds, import_seconds, per_call

    say("overhead per call")
    results.per_call = per_call(5 if options.quick else 15)
    say("import and first calls, in fresh processes")
    results.import_seconds = import_seconds(1 if options.quick else 3)
    for op in ("rms_norm", "add_rms_norm"):
        results.first_call[op] = first_call_seconds(op, 1)


def write_all(results: "Results", facts: dict[str, Any], folder: Path) -> None:
    """Write the CSV files and environment.json."""
    from report import write_csv, write_environment, write_goals, write_overheads

    write_csv(results, folder / "results.csv")
    write_goals(results, folder / "goals.csv")
    write_overheads(results, folder / "overheads.csv")
    write_environment(results, facts, folder / "environment.json")


def main() -> int:
    """Measure, print the tables and write all files."""
    options = parse_arguments()
    try:
        import torch
    except ImportError:
        print("bench: torch is not installed: nothing measured")
        return 0
    if not torch.cuda.is_available():
        print("bench: no CUDA device: nothing measured")
        return 0
    from compile_ahead import in_processes
    from environment import begin, title_of
    from ops import check_names
    from plots import plot
    from report import show
    from results import Results
    from rich.console import Console

    check_names(options.only)
    clock, results = Clock(options.seconds), Results()
    facts, folder = begin(options.out)
    chosen = ["--quick"] * options.quick + (["--only", ",".join(options.only)] if options.only else [])
    if not options.alone:
        say(in_processes(chosen, clock.left / 3))
    measure_ops(options, results, clock, partial(write_all, results, facts, folder))
    write_all(results, facts, folder)
    if options.only is None and not options.alone and not clock.is_over:
        measure_overheads(options, results)
    say("done\n")
    console = Console(record=True, width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(f"{title_of(facts)}, {facts['date']}")
    show(results, console)
    (folder / "results.txt").write_text(console.export_text())
    write_all(results, facts, folder)
    print(plot(results, folder, title_of(facts)))
    print(f"results: {folder}")
    return 1 if results.wrong else 0


STARTED = Clock(None)

if __name__ == "__main__":
    sys.exit(main())
