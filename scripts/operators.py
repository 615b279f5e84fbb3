"""docs/operators.md, made of signatures and docstrings: `python scripts/operators.py` writes it anew.

`tests/python/tools/test_docs.py` fails where it is stale.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oxiwarp
from oxiwarp import ops

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"
REST = re.compile(r"[;.] [Aa]rguments,.*")  # "; arguments, result and errors as `gelu`."
SHARED = re.compile(r" The other functions of this file .*")

# What makes an operator's gradient, where it is not kernels alone.
GRADIENTS = {
    "gated_residual": "torch's operators, in float32",
    "gated_residual_ada_norm": "kernels; torch's operators for `y` and the gate",
    "residual_tanh_gated_rms_norm": "torch's operators, which then make the result, too",
    "residual_tanh_gated_rms_norm_modulated": "torch's operators, which then make the results, too",
    "rms_norm_gated": "kernels; torch's operators for a sigmoid",
    "rope": "kernels; not of tables",
    "rope_1d": "kernels; not of positions",
    "rope_3d": "kernels; not of coordinates",
    "qk_norm_rope": "kernels; not of tables",
}

INTRODUCTION = """# Operators

<!-- made by scripts/operators.py -->

Every function here is `oxiwarp.<name>`. A signature has the defaults of what may be given by position; what stands
behind `*` is given by name, and `help(oxiwarp.<name>)` says what it means, with shapes, roundings and errors.

Inputs are float32, float16 or bfloat16 (`attention`: the latter two), on a GPU or, for tests, on the CPU, where the
CPU executor runs the same kernel. They work under `torch.compile`, in CUDA graphs and with `torch.func.vmap`.

- **Roundings.** `mode`: "exact" (the default) rounds where the models' own chain of operators does, "fast" once at the
  end. `rounding`, of an RMSNorm: "once", or "before_weight" as well, as Llama does. `–`: there is one way.
- **Gradients** are computed in float32, and rounded once where nothing else is said. What they leave to torch:
  [training.md](training.md#gradients). Second derivatives and forward-mode AD raise, but for Mochi's residuals.
"""


def signature(function: Callable[..., Any]) -> str:
    """Without types; what is given by name has no default."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            parts.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        shown = parameter.kind is not parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
        default = repr(parameter.default).replace("e-0", "e-")
        parts.append(f"{parameter.name}={default}" if shown else parameter.name)
    return f"{function.__name__}({', '.join(parts)})"


def what(function: Callable[..., Any]) -> str:
    """The first paragraph of the docstring, without what it says of other functions."""
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    text = REST.sub(".", SHARED.sub("", text))
    return text.replace("|", "\\|")


def modes(function: Callable[..., Any]) -> str:
    """Which argument chooses the roundings."""
    names = inspect.signature(function).parameters
    return next((f"`{name}`" for name in ("mode", "rounding") if name in names), "–")


def page() -> str:
    """All of it."""
    return "\n".join([INTRODUCTION, *operators(), "", *package()]) + "\n"


def operators() -> Iterator[str]:
    """A line for each."""
    yield "| operator | what it computes | roundings by | gradients by |"
    yield "| --- | --- | --- | --- |"
    for name in ops.__all__:
        function = getattr(oxiwarp, name)
        gradients = GRADIENTS.get(name, "kernels")
        yield f"| `{signature(function)}` | {what(function)} | {modes(function)} | {gradients} |"


def package() -> Iterator[str]:
    """What is not an operator."""
    yield "## The rest of the package\n"
    yield "| function | what it does |"
    yield "| --- | --- |"
    for name in oxiwarp.__all__:
        function = getattr(oxiwarp, name)
        if inspect.isfunction(function) and name not in ops.__all__:
            yield f"| `{signature(function)}` | {what(function)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
