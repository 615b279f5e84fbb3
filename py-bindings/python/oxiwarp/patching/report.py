"""The report that `oxiwarp.patch` returns. It consists of rows of data, and is printed as a table."""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from .sites import RanReport, Site, ran, sites_of

NO_KERNEL = "-"
COLUMNS = ("module class", "count", "op", "exactness", "status", "reason")
TEXT_COLUMNS = 80
"""Width of `str(report)`. If the package rich prints the report, it uses the width of its console."""
LABEL_SHARE = 0.45
"""Fraction of the terminal's width.

A class name that is longer than this fraction is printed on a separate line.
"""
INDENT = (0, 0, 0, 2)


@dataclass(frozen=True)
class Row:
    """A row of the report. It describes all modules that have the same class, operators, exactness, status
    and reason.
    """

    module_class: str
    """Module path and name of the class."""
    count: int
    op: str
    """Names of the operators that run. "-" means that the new method runs no kernel and only saves Python
    time.

    The text is empty if the modules were not replaced.
    """
    exactness: str
    """How closely the results agree with the original eager method, for example "bit-exact" or "same
    roundings".

    docs/reference/exactness.md defines these terms, and the sizes for which they hold. The text is empty if
    the modules were not replaced.
    """
    status: str
    """"replaced" or "left"."""
    reason: str
    """The reason why the modules were not replaced, if the status is "left". Otherwise, a remark."""

    @property
    def path(self) -> str:
        """Name of the Python module that defines the class."""
        return self.module_class.rpartition(".")[0]

    @property
    def label(self) -> str:
        """Name of the class and number of its objects, for example `LTXVideoTransformerBlock × 3`."""
        return f"{self.module_class.rpartition('.')[2]} × {self.count}"

    @property
    def outcome(self) -> str:
        """Exactness, operators and remark in one line.

        For modules that were not replaced, the line contains "left" and the reason.
        """
        result = self.exactness if self.status == "replaced" else self.status
        done = "; ".join(text for text in ("" if self.op == NO_KERNEL else self.op, self.reason) if text)
        return f"{result}: {done}" if done else result

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts, one for each column in `COLUMNS`."""
        return (self.module_class, str(self.count), self.op, self.exactness, self.status, self.reason)


@dataclass
class Report:
    """Lists the modules whose methods `patch` replaced, and the modules that it left unchanged, with the
    reason.

    `print(report)`, `rich.print(report)` and notebooks show a table.
    """

    mode: str
    outcomes: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    """Maps the dotted name of each candidate to its status, "replaced" or "left"."""
    notes: list[str] = field(default_factory=list)
    watched: list[tuple[str, Site, Counter[str]]] = field(default_factory=list, repr=False, compare=False)
    """The classes and operations for which `ran` counts kernel calls, each with the counts at the time of
    `patch`.
    """
    warning: str = ""
    """A warning that the kernels cannot run on this machine, with the reason.

    It is the first line of the printed report. The text is empty if the kernels can run.
    """

    def add(self, name: str, module_class: str, *, op: str = "", exactness: str = "", reason: str = "") -> None:
        """Add one module to the report. If `op` is empty, the module is listed as not replaced."""
        status = "replaced" if op else "left"
        self.outcomes[module_class, op, exactness, status, reason] += 1
        self.names[name] = status

    def watch(self, module_class: str, cls: type) -> None:
        """From now on, include the kernel calls of `cls`, a class that `patch` created, in the result of `ran`."""
        for site in sites_of(cls):
            if site.op and all(site is not held for _, held, _ in self.watched):
                self.watched.append((module_class, site, site.outcomes.copy()))

    def ran(self) -> RanReport:
        """Return how often a kernel has run since the call of `patch`, for each replaced method and each rewritten
        expression.

        The result also says how often the original code ran instead, and why. Models with the same classes
        and options share the counts. Only calls in eager mode are counted.

        Returns:
            `RanReport`, a tuple of `Ran`. `print` shows it as a table.

        Raises:
            Nothing.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.RMSNorm(8))
            >>> report = oxiwarp.patch(model, cpu_kernels=True)
            >>> y = model(torch.ones(1, 8))
            >>> report.ran().kernels
            1
        """
        return ran(getattr(self, "watched", []))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the counts.

        Copies and pickles of the report omit the counts, because the counts belong to classes of this
        process.
        """
        return {**self.__dict__, "watched": []}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def rows(self) -> list[Row]:
        """The rows of the report.

        Modules with the same class, operators, exactness, status and reason share one row. The rows of
        replaced modules come first.
        """
        made = [Row(cls, count, *rest) for (cls, *rest), count in self.outcomes.items()]
        return sorted(made, key=lambda row: (row.status != "replaced", row.module_class, row.reason))

    @property
    def ops(self) -> set[str]:
        """The names of the operators that the replaced modules call."""
        return {op for row in self.rows for op in row.op.split(", ") if op not in ("", NO_KERNEL)}

    @property
    def replaced(self) -> int:
        """Number of modules whose method `patch` replaced."""
        return sum(row.count for row in self.rows if row.status == "replaced")

    @property
    def left(self) -> int:
        """Number of candidates that keep their original method."""
        return sum(row.count for row in self.rows if row.status == "left")

    @property
    def summary(self) -> str:
        """One line of text with the mode, the number of replaced modules, and the number of modules that were
        left unchanged.
        """
        return f"oxiwarp.patch(mode={self.mode!r}): {self.replaced} modules replaced, {self.left} left"

    @property
    def by_path(self) -> Iterator[tuple[str, list[Row]]]:
        """The rows, grouped by Python module. Each item is a pair: the name of a Python module, and the rows
        of the classes that this module defines.
        """
        rows = sorted(self.rows, key=lambda row: row.path)  # stable sort: replaced rows stay first
        return ((path, list(group)) for path, group in groupby(rows, key=lambda row: row.path))

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=TEXT_COLUMNS, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if self.warning:
            yield Text(self.warning, style="bold yellow")
        yield Text(self.summary, style="bold")
        labels = [len(row.label) for row in self.rows]
        width = max((length for length in labels if length <= options.max_width * LABEL_SHARE), default=0)
        for path, rows in self.by_path:
            yield Text(path, overflow="fold")
            for row in rows:
                style, label = "" if row.status == "replaced" else "dim", row.label
                if len(label) > width:  # print the label in a line of its own
                    yield Padding(Text(label, style, overflow="fold"), INDENT)
                    label = ""
                line = Table.grid(padding=(0, 2, 0, 0))
                line.add_column(width=width)
                line.add_column(overflow="fold")
                line.add_row(label and Text(label), Text(row.outcome), style=style)
                yield Padding(line, INDENT)
        yield from map(Text, self.notes)

    def _repr_html_(self) -> str:
        """Return the report as an HTML table for notebooks, with a heading for each Python module that
        defines replaced or unchanged classes.
        """
        made = ElementTree.Element("div")
        if self.warning:
            ElementTree.SubElement(made, "p").text = self.warning
        table = ElementTree.SubElement(made, "table")
        ElementTree.SubElement(table, "caption").text = self.summary
        _html_row(ElementTree.SubElement(table, "thead"), "th", ("class", *COLUMNS[1:]))
        for path, rows in self.by_path:
            body = ElementTree.SubElement(table, "tbody")
            _html_row(body, "th", (path,), colspan=str(len(COLUMNS)), style="text-align: left")
            for row in rows:
                name, *others = row.cells()
                _html_row(body, "td", (name.rpartition(".")[2], *others), style="text-align: left")
        for note in self.notes:
            ElementTree.SubElement(made, "p").text = note
        return ElementTree.tostring(made, encoding="unicode", method="html")


def _html_row(parent: ElementTree.Element, tag: str, cells: tuple[str, ...], **attributes: str) -> None:
    """Add a row with the texts `cells` to an HTML table. ElementTree escapes these texts."""
    row = ElementTree.SubElement(parent, "tr")
    for cell in cells:
        ElementTree.SubElement(row, tag, attributes).text = cell


__all__ = ["NO_KERNEL", "Report", "Row"]
