"""Tests of benches/python/cold_start.py with one small model on the CPU executor, and of the table that lists
all cases."""

import json
import sys

import pytest
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import cold_start  # noqa: E402


def test_child(tmp_path):
    """A new process measures the times of the import, of `patch`, and of the first steps of a model."""
    pytest.importorskip("diffusers")
    times = cold_start.child("ltx", "patched", tmp_path / "cache", "cpu", small=True)
    assert times["seconds"] == pytest.approx(times["import"] + times["patch"] + times["steps"][0])
    assert times["import"] > 0 and times["patch"] > 0 and len(times["steps"]) == 3
    # The process fails before it imports diffusers, which takes seconds.
    with pytest.raises(SystemExit, match="(?s)ltx, stock: .*RuntimeError.*no-such-device"):
        cold_start.child("ltx", "stock", tmp_path / "cache", "no-such-device", small=True)


def test_cases(tmp_path, monkeypatch, capsys):
    """Each model is measured four times: unpatched, patched with an empty PTX cache, patched with the filled
    cache, and patched after `warmup`."""
    seen = []

    def child(model, state, cache, device, small):
        seen.append((state, cache.name))
        seconds = 1.0 if state == "stock" else 2.0 + len(seen)
        return {"seconds": seconds, "import": 0.1, "patch": 0.2, "steps": [1.0, 0.5, 0.25]}

    monkeypatch.setattr(cold_start, "child", child)
    monkeypatch.setattr(cold_start, "warmup", lambda cache: 30.0)
    monkeypatch.setattr(sys, "argv", ["cold_start.py", "--model", "flux", "--out", str(tmp_path)])
    cold_start.main()
    assert seen == [("stock", "stock"), ("patched", "one"), ("patched", "one"), ("patched", "all")]
    cases = json.loads((tmp_path / "cold_start.json").read_text())["cases"]
    assert [case["case"] for case in cases] == ["stock", "empty", "full", "warmup"]
    assert [case["more_than_stock"] for case in cases] == [0.0, 3.0, 4.0, 5.0] and cases[3]["warmup_seconds"] == 30.0
    assert "more than stock" in capsys.readouterr().out


def test_warmup_without_a_gpu(tmp_path, monkeypatch):
    """Without a GPU, the time of `warmup` is not measured."""
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assert cold_start.warmup(tmp_path) is None
