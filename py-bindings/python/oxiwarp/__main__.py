"""`python -m oxiwarp info | doctor | demo`."""

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
    options = parser.parse_args(arguments)
    if options.command == "demo":
        from .demo import demo as run_demo

        return run_demo(steps=options.steps, device=options.device, out=options.out)
    from . import doctor

    return doctor.info() if options.command == "info" else doctor.doctor()


def steps(text: str) -> int:
    """A number of steps, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of 1 or more")
    return int(text)


def device(text: str) -> str:
    """A device that the demo can run on."""
    import torch

    count = torch.cuda.device_count()
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text!r}, expected one of this machine's: {', '.join(known)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
