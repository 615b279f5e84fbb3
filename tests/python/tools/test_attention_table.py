"""Tests of the table with the sizes at which oxiwarp's attention is faster than torch's attention. `patch`
uses this table.

The tests check the rules by which the table is made from measurements, and that the table in the package
oxiwarp matches the results files.
"""

import sys

import pytest
import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import attention_regions  # noqa: E402
import attention_table  # noqa: E402
from attention_regions import common  # noqa: E402
from attention_table import Row, by_kind  # noqa: E402
from timing import Time  # noqa: E402

from oxiwarp.patching.fusions import attention_note  # noqa: E402
from oxiwarp.patching.fusions.core.attention_table import FASTER, MEASURED  # noqa: E402


def faster(rows):
    return attention_regions.faster(by_kind(rows))


def row(queries, keys, ratio, heads=1, columns=64, padded=False):
    return Row(columns, padded, queries, keys, 1, heads, ratio, 1.0, 0.0)


def test_faster():
    """A region is a set of sizes at which oxiwarp's attention is faster than torch's attention.

    If oxiwarp is not faster at one size, the region contains only larger sizes, so that it has no gaps. Smaller sizes
    at which oxiwarp is faster are listed one by one.
    """
    rows = [
        row(1024, 1024, 0.9), row(2048, 1024, 1.2), row(4096, 1024, 0.9), row(8192, 1024, 0.8),
        row(1024, 1024, 0.9, padded=True), row(2048, 1024, 0.9, padded=True),
        row(1024, 1024, 0.9, columns=128), row(2048, 1024, 1.0, columns=128),
    ]  # fmt: skip
    assert faster(rows) == {
        (64, False): ({1: ((4096, 4096),)}, {1024: {1024: (1024,)}}),
        (64, True): ({1: ((1024, 1024),)}, {}),
        (128, False): ({1: ()}, {1024: {1024: (1024,)}}),
    }


def test_keys_between():
    """Between two measured numbers of attention keys, the table has the intersection of their regions.

    A region is a set of sizes at which oxiwarp is faster for one number of keys. If consecutive numbers of
    keys have equal regions, the table has one entry for them.
    """
    ratios = {128: (0.9, 0.9), 256: (1.1, 0.9), 512: (1.1, 0.9), 1024: (0.9, 0.9), 2048: (0.9, 0.9)}
    rows = [row(queries, keys, r) for keys, both in ratios.items() for queries, r in zip((1, 2), both, strict=True)]
    assert faster(rows) == {
        (64, False): ({1: ((1, 1),), 129: ((2, 2),), 1025: ((1, 1),)}, {1024: {1: (1,)}}),
    }


def test_queries_of_all_heads():
    """A region (sizes at which oxiwarp is faster) has two minimums: of the queries per head, and of the
    queries of all heads together.

    The second minimum is necessary because with many heads, oxiwarp can be faster even for few queries per head. The
    intersection of two regions contains the sizes that are in both of them.
    """
    rows = [row(1024, 512, 1.1), row(1024, 512, 0.9, heads=8), row(2048, 512, 0.9), row(2048, 512, 0.8, heads=8)]
    region = ((1024, 8192), (2048, 2048))
    assert faster(rows) == {(64, False): ({1: region}, {})}
    assert faster([row(1024, 512, 0.9), row(1024, 512, 1.1, heads=8)]) == {
        (64, False): ({1: ()}, {512: {1024: (1024,)}})
    }
    assert common(region, ((1024, 4096), (4096, 1024))) == ((1024, 8192), (2048, 4096), (4096, 2048))


def test_a_kernel_that_writes_nothing(monkeypatch):
    """If a kernel writes no output, the comparison with torch's result fails.

    The output is allocated in memory that is filled with NaN. Without the NaN, this memory could still
    contain the result of torch.
    """
    inputs = {name: torch.randn(1, 2048, 2, 64, dtype=torch.bfloat16) for name in "qkv"}
    monkeypatch.setattr(attention_table, "inputs_of", lambda *_: inputs)
    monkeypatch.setattr(attention_table, "race_calls", lambda calls, *_: dict.fromkeys(calls, Time(1.0, 1.0, 1.0)))
    monkeypatch.setattr(attention_table, "torchs", lambda x: x["q"] + 0)
    monkeypatch.setattr(attention_table, "ours", lambda x: torch.empty_like(x["q"]))
    assert not attention_table.measure(64, False, 2048, 2048, 1, 2, rounds=1).difference < attention_table.CLOSE
    monkeypatch.setattr(attention_table, "ours", lambda x: x["q"] + 0)
    assert attention_table.measure(64, False, 2048, 2048, 1, 2, rounds=1).difference == 0


@pytest.mark.parametrize("capability", MEASURED)
def test_table(capability):
    """The table in the package oxiwarp names a results folder, and equals the table that is made from this
    folder."""
    folder = ROOT / MEASURED[capability]["results"]
    if not (ROOT / "benches" / "results").exists():
        pytest.skip("no results beside these tests, as in a bundle")
    said, table = attention_table.read(folder)
    assert said == {"capability": capability, **MEASURED[capability]} and table == FASTER[capability]


def test_adopt(tmp_path, monkeypatch):
    """`attention_table.write` with unchanged measurements leaves the file unchanged. `adopt` adds the
    measurements of another GPU to the file."""
    if not attention_table.TABLE.exists():
        pytest.skip("no package beside these tests, as in a bundle")
    before, copy = attention_table.TABLE.read_text(), tmp_path / "table.py"
    copy.write_text(before)
    monkeypatch.setattr(attention_table, "TABLE", copy)
    attention_table.write(MEASURED, FASTER)
    assert copy.read_text() == before
    other = {"capability": "10.0", **MEASURED["9.0"], "gpu": "another"}
    table = {(64, False): ({1: (), 78: ((1, 2), (3, 1))}, {77: {1: (2,)}})}
    monkeypatch.setattr(attention_table, "read", lambda folder: (dict(other), table))
    attention_table.adopt(tmp_path)
    names = {}
    exec(copy.read_text(), names)
    assert names["FASTER"] == {**FASTER, "10.0": table}
    assert names["MEASURED"]["10.0"]["gpu"] == "another" and names["MEASURED"]["9.0"] == MEASURED["9.0"]


@pytest.mark.parametrize("capability", FASTER)
def test_note(capability):
    """The report of `patch` has a note, which names the measured GPU and all sizes for which `patch` uses
    `oxiwarp.attention`."""
    note = attention_note(capability)
    assert MEASURED[capability]["gpu"] in note
    for (columns, padded), (regions, _) in FASTER[capability].items():
        assert f"{columns} columns{', padded keys' if padded else ''}: " in note
        for keys, region in regions.items():
            assert f"{keys} keys: " + (" or ".join(f"{q} ({of_all})" for q, of_all in region) or "none") in note
