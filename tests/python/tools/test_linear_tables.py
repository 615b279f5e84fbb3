"""Tests of the two tables that decide where patched models run `oxiwarp.linear` with an epilogue.

The tests check how the tables are made from measurements, how they are read, and which sizes are measured.
"""

import csv
import json
import sys

import pytest
import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import linear_results  # noqa: E402
from linear_results import adopt, text_of  # noqa: E402
from linear_sizes import SIZES, Size, of_model, parsed, with_rows  # noqa: E402
from linear_tables import Bits, Speed, fused, separate  # noqa: E402

import oxiwarp  # noqa: E402
from oxiwarp.patching.fusions.core import linear_tables  # noqa: E402
from oxiwarp.patching.fusions.core.linear_tables import (  # noqa: E402
    EQUAL_BITS,
    GATED_RESIDUAL,
    LAUNCHES,
    SPEED,
    Product,
    capability_of,
    cublas_version,
    environment_of,
    equal_from,
    is_faster,
    launches_from,
    read,
)

ENVIRONMENT = "NVIDIA H200, torch 2.11.0+cu130, cuBLAS 130100"
FACTS = {
    "date": "2026-11-28T10:00:00+00:00",
    "gpu": "NVIDIA H200",
    "driver": "580",
    "versions": {"torch": "2.11.0"},
    "commit": "0" * 40,
    "environment": ENVIRONMENT,
    "capability": "9.0",
}


def product(m, kind="gelu_tanh", dtype=torch.bfloat16, bias=True):
    return Product(kind, dtype, m, 12288, 3072, bias)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for tables, in place of the package's."""
    monkeypatch.setattr(linear_results, "TABLES", tmp_path)
    for name in (EQUAL_BITS, LAUNCHES):
        (tmp_path / name).write_text("{}\n")
    return tmp_path


def add(folder, bits=(), speeds=()):
    """Write a results folder and add it to the tables. Return both tables as the package reads them."""
    (folder / "linear_tables.json").write_text(json.dumps(FACTS))
    for name, cls, rows in (("bits", Bits, bits), ("speed", Speed, speeds)):
        with (folder / f"linear_{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(cls.__dataclass_fields__)
            writer.writerows(rows)
    adopt(folder)
    return tuple(
        made(json.loads((folder / name).read_text()))
        for name, made in ((EQUAL_BITS, equal_from), (LAUNCHES, launches_from))
    )


def test_only_equal_sizes(folder):
    """A size is in the table of equal bits only if its last measurement found no value with other bits."""
    rows = [("bf16", True, 4096, 12288, 3072, 0), ("bf16", True, 64, 12288, 3072, 5), ("f16", False, 64, 8, 16, 0)]
    equal, _ = add(folder, bits=rows)
    kinds = {(torch.bfloat16, True): frozenset({(4096, 12288, 3072)}), (torch.float16, False): frozenset({(64, 8, 16)})}
    assert equal == {ENVIRONMENT: kinds}
    equal, _ = add(folder, bits=[("bf16", True, 512, 12288, 3072, 0), ("f16", False, 64, 8, 16, 1)])
    assert equal[ENVIRONMENT][torch.bfloat16, True] == {(4096, 12288, 3072), (512, 12288, 3072)}
    assert not equal[ENVIRONMENT].get((torch.float16, False))


def test_lookup(folder, monkeypatch):
    """The table of equal bits applies only if environment, dtype, bias, M, N and K are all equal to those of the
    measurement.
    """
    equal, _ = add(folder, bits=[("bf16", True, 4096, 12288, 3072, 0)])
    monkeypatch.setattr(linear_tables, "EQUAL", equal)
    monkeypatch.setattr(linear_tables, "environment_of", lambda index: ENVIRONMENT if index == 0 else "another")
    assert linear_tables.is_equal(product(4096), 0)
    others = (product(4097), product(4096, dtype=torch.float16), product(4096, bias=False))
    assert not any(linear_tables.is_equal(other, 0) for other in others)
    assert not linear_tables.is_equal(product(4096), 1)


def test_launches(folder, monkeypatch):
    """For a number of rows between two measured ones, the kernel runs only if it was faster for both. For a number
    outside of the measured range, it does not run.
    """
    speeds = [
        ("gelu_tanh", 512, 12288, 3072, 10.0, 10.0, 9.0, True),
        ("gelu_tanh", 1024, 12288, 3072, 10.0, 11.0, 9.0, True),
        ("gelu_tanh", 4096, 12288, 3072, 10.0, 12.0, 11.0, True),
        ("gelu_tanh", 8192, 12288, 3072, 10.0, 12.0, "", True),
    ]
    _, launches = add(folder, speeds=speeds)
    monkeypatch.setattr(linear_tables, "SPEED", launches)
    found = {m: (is_faster(product(m), "9.0", False), is_faster(product(m), "9.0", True)) for m in (
        511, 512, 513, 1024, 2000, 4096, 5000, 8192, 8193,
    )}  # fmt: skip
    assert found == {
        511: (False, False), 512: (False, False), 513: (False, False), 1024: (True, False), 2000: (True, False),
        4096: (True, True), 5000: (True, True), 8192: (True, True), 8193: (False, False),
    }  # fmt: skip
    assert not is_faster(product(4096, kind="gelu"), "9.0", False)
    assert not is_faster(product(4096), "8.0", False)
    assert json.loads((folder / LAUNCHES).read_text())["9.0"]["measured"]["gpu"] == "NVIDIA H200"


def test_text(folder):
    """In the file of the table, each size has one line, so that a change of the table is easy to read."""
    text = text_of({"9.0": {"gelu": {"8x16": [[1, 2.0, 3.0, None]], "16x16": []}}, "8.0": {}})
    assert '   "8x16": [[1, 2.0, 3.0, null]]\n' in text and json.loads(text)["8.0"] == {}


def test_tables_of_the_package():
    """The committed files are readable, and in the format that `adopt` writes."""
    for name, made in ((EQUAL_BITS, equal_from), (LAUNCHES, launches_from)):
        made(read(name))
        assert (linear_results.TABLES / name).read_text() == text_of(read(name)) + "\n"
    for kinds in SPEED.values():
        assert all(len({row.m for row in rows}) == len(rows) for rows in kinds.values())


def test_sizes_of_a_model():
    """`of_model` returns the sizes of the linears of a model that are followed by an activation or a gated
    residual. It does not change the global tables of measured times.
    """
    before = dict(SPEED)
    sizes = of_model("ltx", "cpu", small=True)
    kinds = {size.kind: size for size in sizes}
    assert kinds.keys() == {"gelu_tanh", GATED_RESIDUAL} and before == SPEED
    first, second = kinds["gelu_tanh"], kinds[GATED_RESIDUAL]
    assert (first.m, first.k, first.n) == (second.m, second.n, second.k) and first.n == 4 * first.k


def test_places():
    assert capability_of(-1) == "cpu" and environment_of(-1) == f"cpu, torch {torch.__version__}"
    version = cublas_version()
    assert version is None or 120000 <= version < 10**6


def test_sizes():
    """A size is parsed from text. A size with an epilogue (its kind) is measured with several numbers of
    rows. For each kind, `oxiwarp.linear` with this epilogue gives the result of separate functions.
    """
    assert parsed("8x16x32:gelu") == Size(8, 16, 32, "gelu") and parsed("8x16x32") == Size(8, 16, 32)
    made = with_rows([Size(4600, 16, 32, "gelu"), Size(512, 16, 32, "gelu"), Size(8, 16, 32)])
    assert made == [Size(m, 16, 32, "gelu") for m in (512, 1024, 2048, 4096, 4600)]
    for kind in {size.kind for size in SIZES if size.kind}:
        x = torch.ones(1, 2, 16, dtype=torch.bfloat16)
        inputs = {"x": x, "weight": torch.ones(16, 16, dtype=x.dtype), "bias": torch.ones(16, dtype=x.dtype)}
        if kind == GATED_RESIDUAL:
            inputs |= {"residual": x, "gate": x[:, :1]}
        assert torch.equal(fused(kind)(inputs), separate(kind, oxiwarp.linear)(inputs))
