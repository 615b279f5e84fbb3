"""Random methods in the style of transformer blocks, to compare a rewritten method with the original.

A method is a list of statements. A statement is a line of text, or a tuple (header, statements).
`Maker(seed).method()` makes a random method, `load` writes methods to a file and imports it, and `simplest`
removes statements from a method while a check fails.
"""

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Statement = Any
TENSORS = ("x", "h", "r", "n", "y")
MODULATIONS = ("s", "b", "g")
HEAD = """import torch
import torch.nn.functional as F
from random_methods import Parts, modulate, plus_one

"""
WIDTH, BATCH, ROWS = 8, 2, 3


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


def plus_one(scale):
    return 1 + scale


class Logged(nn.Module):
    """A module that adds its name to a log when it is called. If `changes` is true, it also changes its
    argument in place."""

    def __init__(self, name: str, log: list[str], changes: bool = False) -> None:
        super().__init__()
        self.name, self.log, self.changes = name, log, changes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(self.name)
        if self.changes:
            x.mul_(1.25)
        return x * 0.5 + 0.125


class LoggedLayerNorm(nn.LayerNorm):
    """A LayerNorm that adds its name to a log when it is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(self.name)
        return super().forward(x)


class Parts(nn.Module):
    """The modules that a random method calls. With `logs`, norms add their names to a log, and there is no
    kernel for them."""

    def __init__(self, logs: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.log: list[str] = []
        self.ff, self.attn, self.lin = (Logged(name, self.log) for name in ("ff", "attn", "lin"))
        self.mut = Logged("mut", self.log, changes=True)
        self.drop = nn.Identity()
        self.absent = None
        torch.manual_seed(1)
        for name in ("norm1", "norm2", "norm3"):
            norm = LoggedLayerNorm(WIDTH) if logs else nn.LayerNorm(WIDTH)
            nn.init.normal_(norm.weight)
            norm.name, norm.log = f"norm {name}", self.log
            setattr(self, name, norm)
        self.gate = nn.Parameter(torch.randn(WIDTH))
        self.to(dtype)


class Maker:
    """Makes the statements of a random method.

    If `without_norms` is true, the method has no norms and activations, so the kernels give the bits of
    torch's CPU code.
    """

    def __init__(self, seed: int, without_norms: bool = False, in_place: bool = True) -> None:
        self.random = random.Random(seed)
        self.without_norms, self.in_place = without_norms, in_place

    def tensor(self) -> str:
        return self.random.choice(TENSORS)

    def modulation(self) -> str:
        form = self.random.choice(("{}", "{}", "{}", "{}.unsqueeze(1)", "{}[:, None]"))
        return form.format("m" if "1" in form or "None" in form else self.random.choice(MODULATIONS))

    def gate(self) -> str:
        return self.random.choice(("{}", "{}", "{}.tanh()", "{}.float()", "self.gate")).format(self.modulation())

    def norm(self, x: str) -> str:
        if self.without_norms:
            return f"self.{self.random.choice(('ff', 'drop'))}({x})"
        if self.random.random() < 0.25:
            terms = self.tensor(), f"self.{self.random.choice(('ff', 'mut'))}({self.tensor()})", f"{self.gate()} * {x}"
            x = f"({x} + {self.random.choice(terms)})"
        form = self.random.choice(("{}({})",) * 4 + ("{}({}.float()).to(x.dtype)", "{}({}).type_as(x)"))
        if "float" in form:
            return f"F.layer_norm({x}.float(), (8,)).to(x.dtype)"
        return form.format(f"self.norm{self.random.randint(1, 3)}", x)

    def value(self) -> str:
        """Return an expression for a tensor."""
        x, y = self.tensor(), self.tensor()
        return self.random.choice(
            (
                lambda: f"self.{self.random.choice(('ff', 'attn', 'drop'))}({x})",
                lambda: self.norm(x),
                lambda: f"{self.norm(x)} * (1 + {self.modulation()}) + {self.modulation()}",
                lambda: f"modulate({self.norm(x)}, {self.modulation()}, {self.modulation()})",
                lambda: f"{self.norm(x)} * (1 + {self.modulation()})",
                lambda: x,
                lambda: f"{x} + {y}",
                lambda: f"{x} * (1 + {self.modulation()}) + {self.modulation()}",
                lambda: f"{x} * {self.modulation()}",
                lambda: f"{self.gate()} * {x}",
                lambda: f"{self.gate()} * {x}" if self.without_norms else f"F.silu({x}) * {y}",
                lambda: f"{x} + self.ff({y}) * {self.gate()}",
            )
        )()

    def statement(self, depth: int) -> list[Statement]:
        """Return one or two statements."""
        x, y, z = self.tensor(), self.tensor(), self.tensor()
        pick = self.random.choice
        kinds: list[tuple[int, Callable[[], list[Statement]]]] = [
            (8, lambda: [f"{x} = {x} + {self.gate()} * {y}"]),
            (3, lambda: [f"{x} = {x} + {self.gate()} * self.ff({y})"]),
            (3, lambda: [f"{x} = {y} * {self.gate()} + {x}"]),
            (2, lambda: [f"{x} = ({x}.float() + {y}.float() * {self.gate()}).to(x.dtype)"]),
            (2, lambda: [f"{x} = ({x}.float() + self.mut({x}) * g.float()).type_as({y})"]),
            (4, lambda: [f"{x} = {y} + {z}"]),
            (8, lambda: [f"{x} = {self.norm(y)}"]),
            (8, lambda: [f"{x} = {y} * (1 + {self.modulation()}) + {self.modulation()}"]),
            (2, lambda: [f"{x} = {y} * (1 + self.lin({self.modulation()})) + {self.modulation()}"]),
            (1, lambda: [f"{x} = {y} * (1 + self.mut({z})) + {self.modulation()}"]),
            (8, lambda: [f"{x} = {self.value()}"]),
            (3, lambda: [f"{x} = {self.modulation()} * {y}", f"{z} = {z} + {x}"]),
            (2, lambda: [f"{x} = {self.modulation()} * self.ff({y})", f"{z} = self.attn({z}) + {x}"]),
            (4, lambda: [f"{pick(MODULATIONS)} = self.lin({pick(MODULATIONS)})"]),
            (2, lambda: ["s, b = self.lin(torch.cat([s, b], dim=-1)).chunk(2, dim=-1)"]),
            (2, lambda: [f"f = 1 + {self.modulation()}", f"{x} = {self.norm(y)} * f"]),
            (1, lambda: [f"f = plus_one({pick(MODULATIONS)})", f"{x} = {self.norm(y)} * f + b"]),
            (2, lambda: [f"{x}, {y if y != x else 'f'} = {z}, {x}"]),
            (1, lambda: [f"{x} = {self.norm(y)} if flag else {z}"]),
            (1, lambda: [f"{x} = {x} if self.absent is None else self.absent_norm({x})"]),
            (1, lambda: [f"{x} = {y} + {z}", f"{z} = self.norm1({x}) if flag else {y}"]),
            (1, lambda: [f"{x} = sum([{y} * (1 + q) for q in (s, b)])"]),
            (1, lambda: [f"{x} = sum([{y} * (1 + {pick(MODULATIONS)}) for s in (g, b)])"]),
            (1, lambda: [f"f = lambda: {y}", f"{x} = f()"]),
            (1, lambda: [f"del {x}", f"{x} = {z if z != x else 'c'}"]),
            (1, lambda: [f"{x}: torch.Tensor = {self.value()}"]),
            (1, lambda: [f"{x} = {y} = {self.value()}"]),
            (1, lambda: [f"{x} = (r := {y}) + {self.gate()} * {z}"]),
        ]  # fmt: skip
        if self.in_place:
            kinds += [
                (1, lambda: [f"{x} += {y}"]),
                (1, lambda: [f"{x}.add_({y})"]),
                (1, lambda: [f"{x}[:, 0] = 0.5"]),
                (1, lambda: [f"{x}[:, :2].mul_(2)"]),
                (2, lambda: [f"self.mut({x})"]),
                (1, lambda: [f"{x} = self.mut({y})"]),
                (1, lambda: [f"f = {x}.view(2, 3, 8)", "f += 1"]),
                (1, lambda: [f"f = {x}.transpose(0, 1)", "self.mut(f)"]),
                (1, lambda: ["self.gate.add_(1)"]),
                (1, lambda: ["g[0] *= 2"]),
            ]
        if depth < 2:
            kinds += [
                (2, lambda: [("if flag:", self.block(depth + 1))]),
                (2, lambda: [("if flag:", self.block(depth + 1)), ("else:", self.block(depth + 1))]),
                (1, lambda: [("for _ in range(2):", self.block(depth + 1))]),
                (1, lambda: [("with torch.enable_grad():", self.block(depth + 1))]),
                (1, lambda: [("try:", self.block(depth + 1)), ("finally:", self.block(depth + 1))]),
                (1, lambda: [("if not flag:", [f"return {x}, {y}"])]),
                (1, lambda: [("match s.shape[0]:", [(f"case {x}:", [f"{x} = {y} * {x}"])])]),
            ]
        weights = [weight for weight, _ in kinds]
        return self.random.choices(kinds, weights)[0][1]()

    def block(self, depth: int) -> list[Statement]:
        made: list[Statement] = []
        for _ in range(self.random.randint(1, 3) if depth else self.random.randint(3, 9)):
            made += self.statement(depth)
        return made

    def method(self) -> list[Statement]:
        """Return the statements of a method."""
        results = self.random.sample(TENSORS, self.random.randint(1, 3))
        return [*self.block(0), f"return {', '.join(results)},"]


def text(statements: list[Statement], indent: str = "") -> str:
    """Return the source of statements."""
    made = ""
    for statement in statements:
        if isinstance(statement, str):
            made += f"{indent}{statement}\n"
        else:
            made += f"{indent}{statement[0]}\n{text(statement[1], indent + '    ') or indent + '    pass' + chr(10)}"
    return made


def source(methods: dict[str, list[Statement]]) -> str:
    """Return the source of a module with a class for each method."""
    classes = (
        f"class {name}(Parts):\n    def forward(self, x, c, s, b, g, m, flag):\n"
        f"        h, r, n, y = c, x * 2, x - c, c + 1\n{text(statements, '        ')}\n\n"
        for name, statements in methods.items()
    )
    return HEAD + "".join(classes)


def load(methods: dict[str, list[Statement]], folder: Path) -> Any:
    """Write the methods to a new file and import it."""
    name = f"made_{len(list(folder.iterdir()))}"
    path = folder / f"{name}.py"
    path.write_text(source(methods))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_each(statements: list[Statement]) -> list[list[Statement]]:
    """Return shorter lists of statements. In each list, one statement is missing, or one compound statement
    (such as an `if`) is replaced by the statements inside it."""
    made = []
    for at, statement in enumerate(statements):
        before, after = statements[:at], statements[at + 1 :]
        made.append([*before, *after])
        if isinstance(statement, tuple):
            made.append([*before, *statement[1], *after])
            made += [[*before, (statement[0], inner), *after] for inner in without_each(statement[1])]
    return made


def simplest(statements: list[Statement], fails: Callable[[list[Statement]], Any]) -> list[Statement]:
    """Remove statements one by one, as long as `fails` is true for the remaining statements. Return the
    statements that remain."""
    while True:
        for smaller in without_each(statements):
            if fails(smaller):
                statements = smaller
                break
        else:
            return statements


def call(module: nn.Module, flag: bool, dtype: torch.dtype) -> tuple[Any, list[torch.Tensor], list[str]]:
    """Call a module. Return its result or error, its arguments after the call, and the names of the called
    modules."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(BATCH, ROWS, WIDTH)] * 2 + [(BATCH, 1, WIDTH)] * 3 + [(BATCH, WIDTH)]
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    try:
        made: Any = module(*given, flag)
    except Exception as error:
        made = error
    return made, given, module.log  # type: ignore[return-value]
