"""What `oxiwarp.patch` did: rows of data that print as a table."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NO_KERNEL = "-"
COLUMNS = ("module class", "count", "op", "exactness", "status", "reason")


@dataclass(frozen=True)
class Row:
    """Modules of one class with one outcome."""

    module_class: str
    """Module path and name of the class."""
    count: int
    op: str
    """The operator that runs; "-" where only Python's time is saved, empty for a class that was left."""
    exactness: str
    """Against the module's own eager forward: "bit-exact", "same roundings" or "one rounding"; empty if left."""
    status: str
    """"replaced" or "left"."""
    reason: str
    """Why it was left, or what to know about the replacement."""

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `COLUMNS`."""
        return (self.module_class, str(self.count), self.op, self.exactness, self.status, self.reason)


@dataclass
class Report:
    """What was replaced, what was left and why. `print(report)` and `rich.print(report)` show a table."""

    mode: str
    outcomes: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    """Dotted name of every module that was looked at, and its status."""
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, module_class: str, *, op: str = "", exactness: str = "", reason: str = "") -> None:
        """Count one module; without an `op` it was left."""
        status = "replaced" if op else "left"
        self.outcomes[module_class, op, exactness, status, reason] += 1
        self.names[name] = status

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def rows(self) -> list[Row]:
        """One row per class and outcome, replaced ones first."""
        made = [Row(cls, count, *rest) for (cls, *rest), count in self.outcomes.items()]
        return sorted(made, key=lambda row: (row.status != "replaced", row.module_class, row.reason))

    @property
    def ops(self) -> set[str]:
        """The operators that replaced modules run."""
        return {op for row in self.rows for op in row.op.split(", ") if op not in ("", NO_KERNEL)}

    @property
    def replaced(self) -> int:
        """How many modules run another method than their own."""
        return sum(row.count for row in self.rows if row.status == "replaced")

    @property
    def left(self) -> int:
        """How many candidates keep their own forward."""
        return sum(row.count for row in self.rows if row.status == "left")

    @property
    def summary(self) -> str:
        """One line."""
        return f"oxiwarp.patch(mode={self.mode!r}): {self.replaced} modules replaced, {self.left} left"

    def __str__(self) -> str:
        table = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(cells[at]) for cells in table) for at in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
        return "\n".join(line.rstrip() for line in [self.summary, *lines, *self.notes])

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shown = len(COLUMNS) if any(row.reason for row in self.rows) else len(COLUMNS) - 1
        table = Table(title=self.summary, title_justify="left")
        for name in COLUMNS[:shown]:
            table.add_column(name, overflow="fold", justify="right" if name == "count" else "left")
        for row in self.rows:
            table.add_row(*map(Text, row.cells()[:shown]), style=None if row.status == "replaced" else "dim")
        return Group(table, *(Text(note) for note in self.notes))


__all__ = ["NO_KERNEL", "Report", "Row"]
