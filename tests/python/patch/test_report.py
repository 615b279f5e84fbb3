"""Tests of the three formats of `patch`'s report: text with 80 columns, a rich table in a console, HTML in
a notebook."""

import io
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from torch import nn

import oxiwarp
from oxiwarp.patching.report import NO_KERNEL, Report

LTX = "diffusers.models.transformers.transformer_ltx"
LONG = "HunyuanVideoTokenReplaceSingleTransformerBlock"


def made():
    """Return a report of `patch` that contains diffusers' longest class name, a skipped class, and names with
    HTML special characters."""
    report = Report("exact")
    for at in range(3):
        operators = "ada_norm, gated_residual, gated_residual_ada_norm"
        report.add(f"blocks.{at}", f"{LTX}.LTXVideoTransformerBlock", op=operators, exactness="bit-exact")
    reason = "arguments of the processor, looked up once"
    report.add("attention", f"{LTX}.LTXAttention", op=NO_KERNEL, exactness="bit-exact", reason=reason)
    report.add("odd", f"{LTX}.Odd", reason="its forward takes (x, gate), expected one tensor")
    path = "diffusers.models.transformers.transformer_hunyuan_video"
    report.add("long", f"{path}.{LONG}", op="residual_tanh_gated_rms_norm", exactness="same roundings")
    report.add("local", "test.<locals>.Norm", reason="a <b> & c")
    report.notes.append("left to Inductor under torch.compile: layer_norm by itself or with a sum before it")
    return report


def rendered(report, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(report)
    return console.file.getvalue()


@pytest.mark.parametrize("text", [str, lambda report: rendered(report, 80)], ids=["print", "rich"])
def test_eighty_columns(text):
    """In the text format, the report is at most 80 characters wide, and no class name is split between two
    lines. The path of each Python module occurs once."""
    lines = text(made()).splitlines()
    assert max(map(len, lines)) <= 80
    whole = "\n".join(lines)
    for label in ("LTXVideoTransformerBlock × 3", "LTXAttention × 1", "Odd × 1", f"{LONG} × 1"):
        assert sum(label in line for line in lines) == 1, whole
    assert [line.strip() for line in lines].count(LTX) == 1 and whole.count(LTX) == 1, whole
    for word in ("gated_residual_ada_norm", "bit-exact: arguments of", "left: its forward takes (x, gate)"):
        assert word in whole, whole


def test_a_wide_terminal_needs_a_line_for_a_class():
    line = next(line for line in rendered(made(), 160).splitlines() if "LTXVideoTransformerBlock" in line)
    assert line.split(" × 3 ")[1].strip() == "bit-exact: ada_norm, gated_residual, gated_residual_ada_norm"


def test_a_narrow_terminal_loses_nothing():
    text = "".join(rendered(made(), 30).split())
    assert "residual_tanh_gated_rms_norm" in text


def test_text_does_not_depend_on_the_terminal(monkeypatch):
    expected = str(made())
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(made()) == expected and "\x1b" not in expected
    assert expected.splitlines()[0] == made().summary


class Cells(HTMLParser):
    """Parser that collects the text of each table cell."""

    def __init__(self):
        super().__init__()
        self.cells, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def test_notebook():
    """The HTML of a report contains every cell, and the path of each Python module once. Class names and
    reasons are escaped."""
    report, page = made(), Cells()
    html = report._repr_html_()
    page.feed(html)
    assert not page.open and page.cells.count(LTX) == 1
    for row in report:
        name, *others = row.cells()
        at = page.cells.index(name.rpartition(".")[2])
        assert page.cells[at + 1 : at + 6] == others
    assert report.summary in html and report.notes[0] in html
    assert "<locals>" not in html and "test.<locals>" in page.cells and "<b>" not in html


def test_empty():
    assert str(Report("fast")) == "oxiwarp.patch(mode='fast'): 0 modules replaced, 0 left"
    assert "0 modules replaced" in Report("fast")._repr_html_()


def test_machine_without_gpu(monkeypatch):
    """On a machine without a GPU, the first line of the report says that kernels will not run, unless
    `cpu_kernels=True`."""
    for gpus, cpu_kernels in ((0, False), (0, True), (1, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        report = oxiwarp.patch(torch.nn.Sequential(torch.nn.RMSNorm(8)), cpu_kernels=cpu_kernels)
        warned = not gpus and not cpu_kernels
        for text in (str(report), rendered(report, 120)):
            expected = (
                "This machine has no CUDA GPU: the oxiwarp kernels will not run here." if warned else report.summary
            )
            assert text.startswith(expected)
        assert (report.warning in report._repr_html_()) and bool(report.warning) == warned


class HalfBlock(nn.Module):
    """A block with two chains. No kernel computes the GroupNorm of the second one."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.GroupNorm(2, 8), nn.Parameter(torch.ones(8))
        self.inner_block = PlainBlock()

    def forward(self, x, y, scale, shift):
        x = x + self.gate * y
        return self.inner_block(self.norm(x.mT) * (1 + scale) + shift)


class PlainBlock(nn.Module):
    def forward(self, x):
        return x - 1


def test_chains_that_are_left():
    """The row of a rewritten class names the chains that no kernel computes. A note names the blocks that have
    no chain."""
    report = oxiwarp.patch(HalfBlock())
    row = next(row for row in report if row.module_class.endswith("HalfBlock"))
    assert (row.status, row.op) == ("replaced", "gated_residual")
    assert row.reason == "1 of 2 chains left: GroupNorm is no known norm"
    assert report.notes[0] == "without an expression that a kernel computes: PlainBlock × 1"
