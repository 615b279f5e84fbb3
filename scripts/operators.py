"""Writes docs/reference/operators.md from signatures, docstrings and the roles of operands.

`tests/python/tools/test_docs.py` fails where it is stale.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oxiwarp
from oxiwarp import ops
from oxiwarp.ops._roles import Role, roles_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "operators.md"
sys.path.append(str(ROOT / "tests" / "python" / "support"))
from op_info import INFOS  # noqa: E402

REST = re.compile(r"[;.] [Aa]rguments,.*")  # "; arguments, result and errors as `gelu`."
SHARED = re.compile(r" The other functions of this file .*")

INTRODUCTION = """# Operators

<!-- made by scripts/operators.py -->

Every function here is `oxiwarp.<name>`. Signatures show the defaults of positional arguments. Arguments after `*` are
keyword-only. `help(oxiwarp.<name>)` describes every argument, the roundings and the errors.

Inputs are float32, float16 or bfloat16 (`attention`: the latter two), on a GPU or, for tests, on the CPU, where the
CPU executor runs the same kernel. They work under `torch.compile`, in CUDA graphs and with `torch.func.vmap`.

- **Operands** are listed by role. The table of roles below has the shape and dtype of each.
- **Roundings.** `mode`: "exact" (the default) rounds where the models' own chain of operators does, "fast" once at the
  end. `rounding`, of an RMSNorm: "once", or "before_weight" as well, as Llama does. `–`: there is one way.
- **Gradients** are computed in float32, and rounded once where nothing else is said. What they leave to torch:
  [training.md](../training.md#gradients). Second derivatives and forward-mode AD raise, but for Mochi's residuals.
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
    return "\n".join([INTRODUCTION, *operators(), "", *shapes(), "", *package()]) + "\n"


def operators() -> Iterator[str]:
    """A line for each."""
    yield "| operator | what it computes | operands | roundings by | gradients by |"
    yield "| --- | --- | --- | --- | --- |"
    for name, function in ops.FUNCTIONS.items():
        cells = (f"`{signature(function)}`", what(function), operands(function), modes(function), INFOS[name].gradient)
        yield f"| {' | '.join(cells)} |"


def operands(function: Callable[..., Any]) -> str:
    """The names of a function's tensors, by role."""
    by_role: dict[Role, list[str]] = {}
    for name, role in roles_of(function).items():
        by_role.setdefault(role, []).append(f"`{name}`")
    return "; ".join(f"{role.name}: {', '.join(names)}" for role, names in by_role.items())


def shapes() -> Iterator[str]:
    """A line for each role that a public function's operand has."""
    yield "## Roles of operands\n"
    yield "| role | shape and dtype |"
    yield "| --- | --- |"
    used = {role for function in ops.FUNCTIONS.values() for role in roles_of(function).values()}
    for role in Role:
        if role in used:
            yield f"| {role.name} | {role.value} |"


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
