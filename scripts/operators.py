"""Generates docs/reference/operators.md from the signatures, docstrings and tensor roles of the public
functions.

The role of a tensor says which shape and dtype it has, relative to the other arguments. On the page, each
operator has the same fields, such as arguments and errors. Most fields are copied from the sections of the
function's docstring, such as "Args:". `tests/python/tools/test_docs.py` fails if the page is out of date.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import oxiwarp
from oxiwarp import ops
from oxiwarp.ops._roles import Role, roles_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "operators.md"
sys.path.append(str(ROOT / "tests" / "python" / "support"))
from op_info import INFOS, OpInfo  # noqa: E402

SECTION = re.compile(r"^(\w+):$", re.MULTILINE)
# Matches an entry such as "x (Tensor): shape `[..., N]`" at the left margin of a section.
ENTRY = re.compile(r"(?m)^(\S[^:\n]*):\s+")

INTRODUCTION = """# Operators

<!-- made by scripts/operators.py -->

This page lists the public functions of `oxiwarp`. `help(oxiwarp.<name>)` shows the same text. Arguments after `*` are
keyword-only. The examples assume `import torch, oxiwarp` and run on the CPU.

- **Devices.** Tensors are on a CUDA device, or on the CPU for tests. For CPU tensors, oxiwarp's CPU executor runs the
  same kernels, which is slow. CUDA calls run on torch's current stream and can be captured in CUDA graphs.
- **Shapes** are given by roles. A role, such as ROWS, says which shape and dtype a tensor has relative to the other
  arguments. The [table of roles](#roles-of-operands) defines them.
- **Exactness.** "Bitwise equal" means that every bit of two results is equal. The arguments `mode` and `rounding`
  select where an operator rounds. Measured results are in [exactness.md](exactness.md).
- **Gradients** are computed in float32 and rounded once, unless the operator states otherwise. In 16-bit dtypes,
  they therefore differ from the gradients of eager autograd, which rounds after each operation. Some gradients are
  computed with torch's operators instead of a kernel: [training.md](../guide/training.md#gradients) lists them.
  Operators do not support forward-mode AD. They raise RuntimeError, or torch's NotImplementedError, which is a
  subclass of RuntimeError.
- **torch.compile and torch.func.** All operators work under `torch.compile` and `torch.func.vmap`.
"""


def signature(function: Callable[..., Any]) -> str:
    """Return the call of a function with defaults and without types."""
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            parts.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = repr(parameter.default).replace("e-0", "e-").replace("'", '"')
        parts.append(parameter.name if parameter.default is parameter.empty else f"{parameter.name}={default}")
    return f"{function.__name__}({', '.join(parts)})"


def positional(function: Callable[..., Any]) -> str:
    """Return the call of a function with only its positional arguments, without default values."""
    parameters = inspect.signature(function).parameters.values()
    return f"{function.__name__}({', '.join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)})"


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """Return the sections of a function's docstring by title, such as "Args". The text before the first title
    has the title "Summary"."""
    summary, *others = SECTION.split(inspect.getdoc(function) or "")
    made = {"Summary": summary.strip()}
    for title, text in zip(others[0::2], others[1::2], strict=True):
        made[title] = inspect.cleandoc(text)
    return made


def entries(text: str) -> dict[str, str]:
    """Return the entries of a docstring section by name, such as the arguments in "Args". The lines that
    continue an entry are indented."""
    _, *parts = ENTRY.split(text)
    return dict(zip(parts[0::2], map(inspect.cleandoc, parts[1::2]), strict=True))


def one_line(text: str) -> str:
    """Join the lines of a paragraph."""
    return " ".join(text.split())


def cell(text: str) -> str:
    """Return the first paragraph of a text as the content of a Markdown table cell: on one line, with escaped
    `|`."""
    return one_line(text.split("\n\n")[0]).replace("|", "\\|")


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, *index(), "", *shapes(), ""]
    for name, function in ops.FUNCTIONS.items():
        parts += [*operator(function, INFOS[name]), ""]
    return "\n".join([*parts, *package()]) + "\n"


def index() -> Iterator[str]:
    """Return the table of all operators."""
    yield "| operator | what it computes | gradient by |"
    yield "| --- | --- | --- |"
    for name, function in ops.FUNCTIONS.items():
        call = f"`{positional(function)}`"
        yield f"| {call} [↓](#{name}) | {cell(sections(function)['Summary'])} | {INFOS[name].gradient} |"


def operator(function: Callable[..., Any], info: OpInfo) -> Iterator[str]:
    """Return the section of one operator."""
    found = sections(function)
    notes = entries(found["Note"])
    exactness, gradients = notes.pop("Exactness"), notes.pop("Gradients")
    dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in info.dtypes)
    yield f"## {function.__name__}\n"
    yield f"```text\n{signature(function)}\n```\n"
    yield f"{found['Summary']}\n"
    yield f"**Shapes.** The [table of roles](#roles-of-operands) defines the words in capitals. {operands(function)}.\n"
    yield f"**Dtypes.** {dtypes}.\n"
    yield "**Arguments.**\n"
    yield from items(entries(found["Args"]))
    yield f"\n**Result.** {one_line(found['Returns'])}\n"
    yield f"**Exactness.** {one_line(exactness)}\n"
    yield f"**Gradients.** {one_line(gradients)}\n"
    for title, text in notes.items():
        yield f"**{title}.** {one_line(text)}\n"
    yield "**Errors.**\n"
    yield from items(entries(found["Raises"]))
    yield f"\n**Source.** {one_line(found['Source'])}\n"
    yield f"**Example.**\n\n```pycon\n{found['Example']}\n```"


def items(found: dict[str, str]) -> Iterator[str]:
    """Yield the Markdown list of the entries of a docstring section. A second paragraph of an entry becomes a
    code block."""
    for name, text in found.items():
        label = re.sub(r"^(\S+)( \(|$)", r"`\1`\2", name)
        paragraph, *blocks = text.split("\n\n")
        yield f"- {label}: {one_line(paragraph)}"
        for block in blocks:
            yield "\n  ```text\n" + "\n".join(f"  {line}" for line in textwrap.dedent(block).split("\n")) + "\n  ```\n"


def operands(function: Callable[..., Any]) -> str:
    """Return the names of a function's tensors, grouped by role."""
    by_role: dict[Role, list[str]] = {}
    for name, role in roles_of(function).items():
        by_role.setdefault(role, []).append(f"`{name}`")
    return "; ".join(f"{role.name}: {', '.join(names)}" for role, names in by_role.items())


def shapes() -> Iterator[str]:
    """Yield the table of tensor roles. A role says which shape and dtype a tensor has, relative to other arguments."""
    yield "## Roles of operands\n"
    yield "| role | shape and dtype |"
    yield "| --- | --- |"
    used = {role for function in ops.FUNCTIONS.values() for role in roles_of(function).values()}
    for role in Role:
        if role in used:
            yield f"| {role.name} | {role.value} |"


def package() -> Iterator[str]:
    """Return the table of the public functions that are not operators."""
    yield "## Other functions\n"
    yield "| function | what it does |"
    yield "| --- | --- |"
    for name in oxiwarp.__all__:
        function = getattr(oxiwarp, name)
        if inspect.isfunction(function) and name not in ops.__all__:
            yield f"| `{signature(function)}` | {cell(sections(function)['Summary'])} |"


if __name__ == "__main__":
    PAGE.write_text(page())
