"""`python -m oxiwarp info | doctor | demo | bench | warmup | hub`."""

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m oxiwarp", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="kernels, devices, torch and driver")
    commands.add_parser("doctor", help="check that kernels run here; exits with 1 and the remedy where they do not")
    demo = commands.add_parser("demo", help="LTX-Video's transformer with random weights, stock and patched")
    demo.add_argument("--steps", type=steps, default=None, help="denoising steps (8 on a GPU, 4 on the CPU)")
    demo.add_argument(
        "--device", type=device, default=None, help="cuda, cuda:1, cpu (default: a GPU where there is one)"
    )
    demo.add_argument("--out", default="demo.png", help="where to save the picture (default: %(default)s)")
    whole = commands.add_parser("bench", help="a whole model: eager, torch.compile, patched, both")
    add_bench_options(whole)
    ahead = commands.add_parser("warmup", help="compile all PTX of this machine's GPUs, into the driver's cache")
    ahead.add_argument("--op", action="append", help="only the kernels of this operator; may be given again")
    hub = commands.add_parser("hub", help="write this package as a kernel repository of Hugging Face Kernels")
    hub.add_argument("folder", help="where to, such as dist/hub")
    hub.add_argument(
        "--repo-id", default="oxiwarp/oxiwarp", help="name of the repository on the Hub (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.command == "hub":
        from .hub import build

        print(build(options.folder, options.repo_id))
        return 0
    if options.command == "warmup":
        from .cli.warmup import warmup

        try:
            return warmup(options.op)
        except ValueError as error:
            ahead.error(str(error))
    if options.command == "bench":
        from .cli.bench import bench, compile_only

        place = options.device or default_device()
        if options.pipeline or options.compare:
            return pipelines(whole, options, place)
        models = options.model or ["ltx"]
        chosen = options.variant or names()
        if options.compile_only:
            return compile_only(models, chosen, place, options.small)
        graphs = options.graphs and place.startswith("cuda")
        return bench(models, chosen, options.rounds or 10, place, options.small, graphs, options.out)
    if options.command == "demo":
        from .cli.demo import demo as run_demo

        return run_demo(steps=options.steps, device=options.device, out=options.out)
    from .cli import doctor

    return doctor.info() if options.command == "info" else doctor.doctor()


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench` to its parser."""
    from .cli.bench.workloads import WORKLOADS

    parser.add_argument("--model", action="append", choices=list(WORKLOADS), help="may be given again (default: ltx)")
    parser.add_argument(
        "--variant", action="append", type=variant, choices=names(), help="may be given again (default: all)"
    )
    parser.add_argument(
        "--rounds",
        type=steps,
        default=None,
        help="timed steps (default: 10) or pipeline calls (default: 3) per variant",
    )
    parser.add_argument("--device", type=device, default=None, help="cuda, cpu (default: a GPU where there is one)")
    parser.add_argument("--small", action="store_true", help="a model of two layers, for a test")
    parser.add_argument(
        "--graphs", action="store_true", help="time each step as a CUDA graph too, which does not wait for Python"
    )
    parser.add_argument("--out", default=None, help="folder for <model>.json")
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="compile and measure nothing, for a later run to find it in Inductor's cache; several processes may",
    )

    from .cli.bench.pipelines import PIPELINES

    group = parser.add_argument_group("a pipeline, from the prompt to the picture or video")
    group.add_argument(
        "--pipeline", action="append", choices=list(PIPELINES), help="may be given again; in place of --model"
    )
    group.add_argument("--weights", help="folder of a diffusers pipeline (default: random weights of published sizes)")
    for name, meaning in (
        ("height", "pixels"),
        ("width", "pixels"),
        ("frames", "frames of a video"),
        ("steps", "denoising steps"),
        ("batch", "pictures or videos per call"),
    ):
        group.add_argument(f"--{name}", type=steps, default=None, help=f"{meaning} (default: the published size)")
    group.add_argument(
        "--compare", nargs=2, metavar=("A.json", "B.json"), help="print two results files next to each other"
    )


def pipelines(parser: argparse.ArgumentParser, options: argparse.Namespace, place: str) -> int:
    """Execute `bench --pipeline` or `bench --compare`.

    If the arguments are wrong, print a one-line message and exit.
    """
    from .cli.bench.pipeline_report import bench_pipelines, compare_files

    sizes = {name: getattr(options, name) for name in ("height", "width", "frames", "steps", "batch")}
    try:
        if options.compare:
            return compare_files(*options.compare)
        return bench_pipelines(
            options.pipeline,
            options.variant,
            options.rounds or 3,
            place,
            options.small,
            options.out,
            options.weights,
            **sizes,
        )
    except ValueError as error:
        parser.error(str(error))


def names() -> list[str]:
    """Return the names of the variants that `bench` can compare."""
    from .cli.bench.variants import VARIANTS

    return [variant.name for variant in VARIANTS]


def variant(text: str) -> str:
    """Return the current name of a variant that `bench` measures. `text` is the current name, or an old name
    that occurs in results files.
    """
    from .cli.bench.variants import current_name

    return current_name(text)


def default_device() -> str:
    """Return "cuda" if there is a GPU, otherwise "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def steps(text: str) -> int:
    """Parse a number of steps. Raise ArgumentTypeError unless `text` is a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of 1 or more")
    return int(text)


def device(text: str) -> str:
    """Parse the name of a device: cpu, cuda or cuda:<index>. Raise ArgumentTypeError if this machine has no
    such device.
    """
    import torch

    count = torch.cuda.device_count()
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text!r}, expected one of this machine's: {', '.join(known)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
