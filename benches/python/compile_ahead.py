"""Fills Inductor's cache in several processes, so that a run of bench.py does not wait for compilation.

    python benches/python/compile_ahead.py <share> <of> [--quick] [--only OP,OP]

The arguments `<share> <of>` select the cases of one process, e.g. `0 4` for the first of four processes. This
program measures nothing. If Inductor has several configurations of a kernel, this program compiles all of
them. bench.py then only has to time them, on an idle GPU. If a process fails, bench.py compiles the cases of
this process.
"""

import argparse
import os
import subprocess
import sys
import time

SHARES = 8  # At most this many processes run. Each one needs GPU memory for a CUDA context and inputs.
SECONDS = 120  # All processes together take at most this many seconds.


def in_processes(arguments: list[str], seconds: float) -> str:
    """Compile the cases that `bench.py` would measure, in several new processes. Return a message with the
    number of failed processes."""
    started, shares = time.perf_counter(), min(SHARES, max(1, (os.cpu_count() or 1) // 2))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, __file__, str(share), str(shares), *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for share in range(shares)
    ]
    failed = 0
    for run in runs:
        try:
            failed += run.wait(max(1.0, started + min(SECONDS, seconds) - time.perf_counter())) != 0
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            failed += 1
    unfinished = f", {failed} of them unfinished" if failed else ""
    return f"compiled ahead in {shares} processes{unfinished}: {time.perf_counter() - started:.0f} s"


def only_compile(graph: object, inputs: object) -> object:
    """Dynamo backend that fills Inductor's cache: it compiles the graph with Inductor, but returns the
    uncompiled graph."""
    from torch._inductor.compile_fx import compile_fx

    compile_fx(graph, inputs)
    return graph.forward


def main() -> int:
    """Compile the benchmark cases that the command line assigns to this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("share", type=int)
    parser.add_argument("of", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", type=lambda text: text.split(","))
    options = parser.parse_args()
    import torch
    from forms import Source
    from ops import timed_cases
    from providers import has_ours, to_compile

    source = Source(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    cases = [case for case in timed_cases(options.only, options.quick) if has_ours(case[0]) and not case[0].backward]
    failures = 0
    with torch.no_grad():
        for form, _, shape in cases[options.share :: options.of]:
            inputs = form.inputs(source, shape)
            for chain in to_compile(form).values():
                torch._dynamo.reset()
                try:
                    torch.compile(chain, backend=only_compile, dynamic=False)(**inputs)
                except Exception as error:  # bench.py will report this error
                    print(f"{form.op}: {error}", file=sys.stderr)
                    failures += 1
            del inputs
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
