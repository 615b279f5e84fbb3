"""Tests of the benchmark programs: output files, failures, and the time limit. Invented times replace
measurements on a GPU."""

import csv
import json
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import attention  # noqa: E402
import bench  # noqa: E402
import curve  # noqa: E402
import environment  # noqa: E402
import exactness  # noqa: E402
import timing  # noqa: E402
from clock import Clock  # noqa: E402
from forms import BIT_EXACT, Source  # noqa: E402
from ops import OPS  # noqa: E402
from results import Measurement, Results  # noqa: E402

TIME = timing.Time(10.0, 9.0, 11.0)


@pytest.fixture(autouse=True)
def made_up_gpu(monkeypatch):
    """Replace the GPU's properties and times with invented values.

    The benchmark programs install a SIGTERM handler. After the test, this fixture restores the previous
    handler.
    """
    taken = signal.getsignal(signal.SIGTERM)
    versions = dict.fromkeys(environment.PACKAGES, "1")
    facts = {"gpu": "a GPU", "date": "2026-11-20T00:00:00", "commit": "0" * 40, "versions": versions}
    monkeypatch.setattr(environment, "environment", lambda: dict(facts))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(timing, "copy_turn", lambda device: (None, 1))
    monkeypatch.setattr("compile_ahead.in_processes", lambda arguments, seconds: "compiled nothing")
    yield
    signal.signal(signal.SIGTERM, taken)


def run(module, monkeypatch, folder, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", "--out", str(folder), *options])
    return module.main()


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def measurement(case, copy, rounds, results, device, alone) -> Measurement:
    form, model, shape = case
    results.copies.append(4000.0)
    times = {"oxiwarp": TIME, "eager": TIME, "torch.compile(chain)": TIME}
    return Measurement(form.op, form.chain, model, shape, 10**8, 10**8, times, {"oxiwarp": 0.001})


def test_bench_writes_as_it_goes_and_leaves_out_what_there_is_no_time_for(monkeypatch, tmp_path, capsys):
    """`bench.py` writes the results of an op to its files before it measures the next op.

    After SIGTERM, `bench.py` finishes the current case, reports the remaining cases as left out, and draws
    its plots.
    """
    seen = []

    def measure(case, *rest):
        ops = [form.op for form, *_ in seen]
        if case[0].op == "gelu" and "gelu" not in ops:  # The results of earlier ops are already in the files.
            assert {line["op"] for line in lines_of(tmp_path / "results.csv")} == set(ops)
        if len(seen) == 5:
            signal.raise_signal(signal.SIGTERM)
        seen.append(case)
        return measurement(case, *rest)

    monkeypatch.setattr(bench, "measure", measure)
    assert run(bench, monkeypatch, tmp_path, "--only", "rope,gelu,gelu_tanh,silu", "--rounds", "2") == 0
    written = {(line["op"], line["model"]) for line in lines_of(tmp_path / "results.csv")}
    assert written == {(form.op, model) for form, model, _ in seen} and len(seen) == 6
    left_out = json.loads((tmp_path / "environment.json").read_text())["left_out"]
    assert left_out[-1] == "silu Llama 8B" and len(left_out) + len(seen) == 10
    out = capsys.readouterr().out
    assert "left out: " in out and "1 of 10: rope, " in out and "6 of 10: " in out
    assert (tmp_path / "overview.png").exists() and (tmp_path / "goals.csv").exists()


@pytest.mark.parametrize("program", [bench, curve, exactness])
def test_an_op_that_is_none(program, monkeypatch, tmp_path):
    """If `--only` names an unknown op, a benchmark program exits with an error and writes no file."""
    with pytest.raises(SystemExit, match="--only reelu: no such op; there are .*rms_norm,"):
        run(program, monkeypatch, tmp_path, "--only", "silu,reelu")
    assert not list(tmp_path.iterdir())


def test_a_failure_behind_the_last_op_loses_nothing(monkeypatch, tmp_path):
    """bench.py measures ops first and overheads last. If the measurement of overheads fails, results.csv
    still has all ops."""

    def fail(*_):
        raise RuntimeError("a fresh process failed")

    monkeypatch.setattr(bench, "measure", measurement)
    monkeypatch.setattr(bench, "measure_overheads", fail)
    with pytest.raises(RuntimeError, match="a fresh process failed"):
        run(bench, monkeypatch, tmp_path, "--quick", "--rounds", "2")
    assert {line["op"] for line in lines_of(tmp_path / "results.csv")} == set(OPS)


def test_a_goal_on_every_case_is_not_met_by_some(monkeypatch, tmp_path):
    """If one case or its baseline did not run, a performance goal for all cases of an op is "not measured".

    If one of the measured cases misses the goal, the goal fails.
    """

    def measured(case, *rest):
        found = measurement(case, *rest)
        if case[1] == "LTX 161 frames":
            del found.times["torch.compile(chain)"]
        if case[0].op == "gelu":
            found.times["torch.compile(chain)"] = timing.Time(9.0, 9.0, 9.0)
        if case[0].op == "silu":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(bench, "measure", measured)
    assert run(bench, monkeypatch, tmp_path, "--only", "gelu,gelu_tanh,gelu_new,silu", "--rounds", "2") == 0
    met = {line["goal"]: (line["met"], line["figure"].rpartition(";")[2]) for line in lines_of(tmp_path / "goals.csv")}
    assert met["gelu: faster than torch.compile"] == ("FAIL", " 1 of 1 below")
    assert met["gelu_new: faster than torch.compile"] == ("pass", " 0 of 1 below")
    assert met["gelu_tanh: faster than torch.compile"] == ("not measured", " 0 of 2 below, 1 not measured")
    assert met["silu: faster than torch.compile"] == ("not measured", "not measured")
    assert met["every result right, against float64"] == ("not measured", "5 cases, 1 not measured")


def test_goals_of_shapes_that_were_not_measured(monkeypatch, tmp_path):
    """Performance goals for shapes that `--quick` skips are "not measured"."""
    monkeypatch.setattr(bench, "measure", measurement)
    assert run(bench, monkeypatch, tmp_path, "--only", "rms_norm", "--quick") == 0
    met = {line["goal"]: line["met"] for line in lines_of(tmp_path / "goals.csv")}
    assert met["rms_norm 32768×3072: QuACK's share of copy, 92.9%"] == "not measured"
    assert met["rms_norm 1024×2048: at most 3.9 µs"] == "not measured"


def checked(form, monkeypatch):
    """Check all implementations of an op against its float64 reference. torch.compile is replaced by a
    function that does not compile.

    Return four values: the correct implementations, the size of the results in bytes, messages about wrong
    results of oxiwarp, and messages about failed baselines.
    """
    monkeypatch.setattr("providers.compiled", lambda chain: chain)
    results, shape = Results(), (1, 4, *form.cases[0][1][2:])
    inputs = form.inputs(Source(torch.device("cpu")), shape)
    right, written = bench.right_providers(form, shape, inputs, results, alone=False)
    return right, written, results.wrong, results.dropped


def test_a_peer_that_overwrites_its_inputs_is_right(monkeypatch):
    """A baseline such as Liger's RoPE may overwrite its inputs.

    The check passes copies of the inputs to a baseline that is marked with `overwrites`.
    """
    form = next(form for form in exactness.selected(["rope"]) if "Liger" in form.peers)

    def in_place(_, q, k, cos, sin):
        return tuple(x.copy_(y) for x, y in zip((q, k), form.eager(q, k, cos, sin), strict=True))

    peer = replace(form.peers["Liger"], module="math", call=in_place)
    right, _, wrong, dropped = checked(replace(form, peers={"Liger": peer}), monkeypatch)
    assert {"eager", "oxiwarp", "Liger"} <= set(right) and not wrong and not dropped
    right, *_, dropped = checked(replace(form, peers={"Liger": replace(peer, overwrites=False)}), monkeypatch)
    assert "Liger" not in right and "Liger: relative error" in dropped[0]


def test_a_chain_that_does_not_run_is_no_case(monkeypatch):
    """If the model's torch code runs out of memory, the case is not measured, and oxiwarp's result does not
    count as wrong."""

    def out_of_memory(**_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    form = next(form for form in exactness.selected(["gelu_tanh"]) if form.timed)
    *nothing, dropped = checked(replace(form, eager=out_of_memory), monkeypatch)
    assert nothing == [{}, 0, []] and "OutOfMemoryError: CUDA out of memory" in dropped[0]


@pytest.mark.parametrize("error", [float("nan"), 1.1e-3, None])
def test_attention_that_is_wrong_or_missing(error, monkeypatch, tmp_path):
    """`attention.py` exits with 1 if oxiwarp's error is missing, is NaN, or is too large compared with the
    baseline's error."""

    def measure(case, rounds, error=0.9e-3):
        errors = {"oxiwarp": error, "cuDNN": 1e-3}
        row = partial(attention.Row, case.what, "1", us=1.0, low_us=1.0, high_us=1.0, tflops=1.0, of_cudnn=1.0)
        return [row(provider=name, relative_error=off) for name, off in errors.items() if off is not None]

    def accuracy(kind, sizes, device, error=0.9e-3):
        row = partial(attention.Accuracy, kind, "1")
        return [row(*x) for x in (("oxiwarp", error), ("cuDNN", 1e-3)) if x[1] is not None]

    monkeypatch.setattr(attention, "measure", measure)
    monkeypatch.setattr(attention, "accuracy", accuracy)
    assert run(attention, monkeypatch, tmp_path) == 0
    assert len(lines_of(tmp_path / "attention.csv")) == 2 * len(attention.CASES)
    rows = lines_of(tmp_path / "attention_accuracy.csv")
    assert len(rows) == 2 * len(attention.INPUTS) * len(attention.ACCURACY_SIZES)
    monkeypatch.setattr(attention, "accuracy", partial(accuracy, error=error))
    assert run(attention, monkeypatch, tmp_path) == 1
    monkeypatch.setattr(attention, "accuracy", accuracy)
    monkeypatch.setattr(attention, "measure", partial(measure, error=error))
    assert run(attention, monkeypatch, tmp_path) == 1


def test_exactness_keeps_what_it_compared(monkeypatch, tmp_path, capsys):
    """After SIGTERM, `exactness.py` writes the completed comparisons, and lists the ops that it skipped."""
    monkeypatch.setattr(exactness, "has_ours", lambda form: True)
    asked = []

    def rows_of(form, device, dtype):
        asked.append(form)
        if form.op == "gelu_tanh":
            signal.raise_signal(signal.SIGTERM)
        yield exactness.Row(form, form.modes[0], "Flux", (1, 2, 3), "bfloat16", "chain", 1.0, 0)

    monkeypatch.setattr(exactness, "rows_of", rows_of)
    assert run(exactness, monkeypatch, tmp_path, "--only", "gelu,gelu_tanh,silu") == 0
    assert {form.op for form in asked} == {"gelu", "gelu_tanh"}
    assert {line["op"] for line in lines_of(tmp_path / "exactness.csv")} == {"gelu", "gelu_tanh"}
    assert all(
        line["guarantee"] == BIT_EXACT for line in lines_of(tmp_path / "exactness.csv") if line["mode"] == "exact"
    )
    assert "- silu (Llama): left out, no time" in (tmp_path / "exactness.md").read_text()


def test_a_curve_says_where_it_ends(monkeypatch, tmp_path, capsys):
    """`curve.py` reports an op that fails or needs too much memory. It keeps the measurements of this op at
    smaller sizes."""

    def points_of(form, device):
        for tokens in (1, 1000, 10**6):
            elements = tokens * (10 if form.op == "silu" else 5000)
            if form.op == "gelu" and tokens > 1000:
                raise RuntimeError("an illegal memory access")
            yield curve.Point(form.op, tokens, elements, 4 * elements, tokens / 10 + 3, tokens / 9 + 3, True)

    monkeypatch.setattr(curve, "points_of", points_of)
    monkeypatch.setattr(curve, "copy_bandwidth", lambda device: 4000.0)
    assert run(curve, monkeypatch, tmp_path, "--only", "gelu,gelu_tanh,silu") == 1
    out = capsys.readouterr().out
    assert "FAIL gelu: RuntimeError: an illegal memory access" in out and "silu: no memory beyond 10000000" in out
    assert "gelu_tanh: no" not in out
    ops = [line["op"] for line in lines_of(tmp_path / "curve.csv")]
    assert ops == ["gelu"] * 2 + ["gelu_tanh"] * 3 + ["silu"] * 3 and (tmp_path / "curve.png").exists()


def test_percentiles():
    assert timing.Time.of([3.0]) == timing.Time(3.0, 3.0, 3.0)
    assert timing.Time.of([float(us) for us in range(1, 10)]) == timing.Time(5.0, 1.0, 9.0)


def test_a_clock(monkeypatch):
    assert Clock(0.0).is_over and not Clock(None).is_over and Clock(100.0).left > 90
    clock = Clock(None)
    signal.raise_signal(signal.SIGTERM)
    assert clock.is_over
