"""Tests that the Python blocks of README.md run on a GPU, or on the CPU executor if there is no GPU.

The blocks run in order and share their variables. Some blocks cannot run in a test, for example because they
download a model. The line before such a block is `<!-- not run: <reason> -->`.
"""

import re
from pathlib import Path

import pytest
import torch
from checkout import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def readme():
    if not README.exists():
        pytest.skip("no README.md beside these tests, as in a bundle")
    return README.read_text()


def run_blocks(page: Path) -> int:
    """Run the Python blocks of a page in order, and return the number of blocks that ran."""
    names: dict[str, object] = {"__name__": "__main__"}
    text, ran = page.read_text(), 0
    for block in BLOCK.finditer(text):
        if block["reason"]:
            continue
        code = block["code"]
        if not torch.cuda.is_available():
            code = re.sub(r"(['\"])cuda(:\d+)?\1", '"cpu"', code).replace(".cuda()", "")
        # Add empty lines before the code, so that line numbers in tracebacks equal the line numbers of the
        # page.
        line = text.count("\n", 0, block.start("code"))
        with torch.enable_grad():  # as in a program of a user
            exec(compile("\n" * line + code, str(page), "exec"), names)
        ran += 1
    return ran


def test_python_blocks_run(readme, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the blocks may write files
    assert run_blocks(README), "README.md has no ```python block that runs"


def test_every_python_block_is_found(readme):
    """The regex `BLOCK` matches every Python block of the README.

    A block that the regex does not match would not be tested.
    """
    fences = re.findall(r"^\s*```+\s*(?:python|py)\w*.*$", readme, re.MULTILINE | re.IGNORECASE)
    assert len(fences) == len(BLOCK.findall(readme)), fences
