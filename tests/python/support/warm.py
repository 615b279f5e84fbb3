"""Runs Python programs in forks of a process that has already imported torch, diffusers, transformers and
matplotlib.

These imports take about 5 s. After the imports, most programs of the tests take less than 1 s. Each program
still has a separate process, with a separate working directory, environment and output. oxiwarp is not
imported before the fork.

With a GPU, `run` starts a new interpreter instead, because a fork cannot use CUDA if an import has initialised it.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

IMPORTS = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "diffusers.LTXPipeline")
IMPORTS += ("diffusers.AutoencoderKLLTXVideo", "transformers.Qwen3ForCausalLM", "matplotlib.pyplot", "rich.progress")


def run(*arguments: object, cwd: Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess:
    """Run `python *arguments` in the folder `cwd`. The arguments start with a script's path, or with `-m` and
    a module.

    The variables in `environment` are added to the environment variables of this process.
    """
    import torch

    arguments, names = [str(argument) for argument in arguments], os.environ | environment
    if torch.cuda.is_available() or not hasattr(os, "fork"):
        return plain(*arguments, cwd=cwd, timeout=timeout, **environment)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        request = dict(arguments=arguments, cwd=str(cwd), environment=dict(names), outputs=[str(o) for o in outputs])
        code = ask(server(), request | dict(timeout=timeout))
        return subprocess.CompletedProcess(arguments, code, *(output.read_text() for output in outputs))


def plain(*arguments: object, cwd: Path, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess:
    """Run `python *arguments` as `run` does, but in a new interpreter."""
    command, names = [sys.executable, *map(str, arguments)], os.environ | environment
    return subprocess.run(command, cwd=cwd, env=names, capture_output=True, text=True, timeout=timeout)


def ask(process: subprocess.Popen, request: dict[str, Any]) -> int:
    """Ask the server process to run a program, and return the exit code of the program."""
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"the server of {__file__} has ended")
    if (code := json.loads(line)) is None:
        raise subprocess.TimeoutExpired(request["arguments"], request["timeout"])
    return code


@functools.cache
def server() -> subprocess.Popen:
    """Start the server process, which imports packages and then forks.

    When the process that called this function ends, the stdin of the server is closed, and the server ends
    too.
    """
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)
    return process


def serve() -> dict[str, Any]:
    """Fork a child process for each request on stdin. In the child process, return the request."""
    for name in IMPORTS:
        module, _, attribute = name.rpartition(".")
        # If a package is missing, a program that needs it reports the error itself.
        with contextlib.suppress(ImportError):
            importlib.import_module(name) if name[-1].islower() else getattr(importlib.import_module(module), attribute)
    gc.freeze()  # garbage collections in the forks then skip all existing objects
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if not child:
            return request
        print(json.dumps(wait(child, request["timeout"])), flush=True)
    os._exit(0)


def wait(child: int, timeout: float) -> int | None:
    """Return the exit code of a process. After `timeout` seconds, kill the process and return None."""
    import signal

    killed = False

    def kill(*_: object) -> None:
        nonlocal killed
        killed = True
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return None if killed else os.waitstatus_to_exitcode(status)


def become(request: dict[str, Any]) -> None:
    """Set up this process as the request describes, and run the request's program as `__main__`."""
    import runpy

    for stream, path in enumerate((os.devnull, *request["outputs"])):
        opened = os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, stream)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # an import may have computed it from the old environment
    if request["arguments"][0] == "-m":
        _, module, *sys.argv[1:] = request["arguments"]
        sys.path[0] = request["cwd"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = request["arguments"]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def finish(request: dict[str, Any]) -> None:
    """Run the program and end this process as Python does, but do not delete all objects.

    Deleting all objects would take 0.4 s, and libraries would report errors for the objects that `gc.freeze` keeps.
    """
    code: Any = 0
    try:
        become(request)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    finish(serve())
