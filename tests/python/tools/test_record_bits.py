"""Tests of the program that records the bits of results on a GPU. One test compares the CPU executor with such
a record. The tests need no GPU."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkout import ROOT

import oxiwarp

sys.path.append(str(ROOT / "benches" / "python"))

import record_bits  # noqa: E402

CPU = torch.device("cpu")
OPS = ["gated_residual"]
GPU_RECORD = Path(__file__).parents[1] / "data" / "bits.json.xz"
"""The record of a Hopper GPU. If a test says that calls or inputs changed, make the record again on such a GPU:
`python benches/python/record_bits.py tests/python/data/bits.json.xz`."""
NOT_RECORDED = {
    "linear_fp8/8-bit, accumulation in float32",
    "linear_fp8/8-bit, fast accumulation",
    "linear_fp8/8-bit, few rows",
    "norm_gated_residual/LayerNorm with weight and bias",
    "norm_gated_residual/RMSNorm with weight: Z-Image, Lumina 2",
    "norm_gated_residual/float32 residual, 16-bit branch",
    "qk_norm_rope/per head, halves, rows of the tables chosen by positions",
    "quantize_fp8/scales per block",
    "quantize_fp8/scales per row",
    "residual_tanh_gated_rms_norm/float32 residual, 16-bit branch",
    "rope/halves, rows of the tables chosen by positions",
}
"""Uses of ops that are newer than the record."""


def test_a_record_is_compared():
    """If recorded calls run again, their results have the recorded bits. One wrong checksum in the record is
    reported as a difference."""
    record = record_bits.recorded(OPS, CPU)
    assert len(record) > 10 and record_bits.differences(record, OPS, CPU) == []
    for key, whose in [(next(iter(record)), "exact"), (next(iter(record)), record_bits.EAGER)]:
        wrong = copy.deepcopy(record)
        wrong[key][whose][0][-1] ^= 1
        (line,) = record_bits.differences(wrong, OPS, CPU)
        assert line.startswith(f"{key}: 1 of ")


def test_checksums_ignore_the_bits_of_nan():
    one, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FFFFFFF))
    assert record_bits.checksums(one) == record_bits.checksums(other) != record_bits.checksums(torch.ones(1))


def test_the_executor_has_the_bits_of_a_gpu():
    """The CPU executor's results of all recorded calls have the bits of oxiwarp's results on a Hopper GPU.

    The results that are documented as bit-exact also have the bits of the models' eager code on this GPU.
    """
    command = [sys.executable, ROOT / "benches" / "python" / "record_bits.py", "--compare", GPU_RECORD]
    # The program runs in a new process, because a process reads `OXIWARP_EXECUTOR_HOPPER` only once.
    environment = {**os.environ, "OXIWARP_EXECUTOR_HOPPER": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_the_record_has_all_calls():
    """The record contains every call, except the calls of ops in `NOT_RECORDED`, and it contains no other
    call."""
    facts, record = record_bits.read(GPU_RECORD)
    assert facts["compute_capability"] == "9.0" and facts["driver"] and facts["versions"]["torch"] and facts["commit"]
    forms = {key: form for key, form, _ in record_bits.calls(None)}
    assert record.keys() <= forms.keys()
    assert {f"{form.op}/{form.chain}" for key, form in forms.items() if key not in record} == NOT_RECORDED
    for key, checksums in record.items():
        assert checksums.keys() - {record_bits.EAGER} == {record_bits.INPUTS, *forms[key].modes}


@pytest.mark.parametrize("name", ["bits.json", "bits.json.xz"])
def test_program(name, tmp_path, monkeypatch, capsys):
    """The program writes a record, and its comparison fails if one checksum is wrong."""
    file = tmp_path / name

    def run(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["record_bits.py", "--only", *OPS, *options, str(file)])
        return record_bits.main()

    assert run("--device", "cpu") == 0 and run("--compare") == 0
    facts, record = record_bits.read(file)
    key = next(iter(record))
    for kind, text in [("fast", "chunks differ from oxiwarp's on the GPU"), (record_bits.INPUTS, "the inputs differ")]:
        wrong = copy.deepcopy(record)
        wrong[key][kind][0][-1] ^= 1
        record_bits.write(file, facts, wrong)
        capsys.readouterr()
        assert run("--compare") == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{key}: ") and text in line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_portable_inputs(dtype):
    """Inputs of a 16-bit type are rounded float32 inputs, so that they are equal in all versions of torch."""
    wide, narrow = (record_bits.PortableSource(CPU, kind) for kind in (torch.float32, dtype))
    for create in (lambda source: source.weight(100), lambda source: source.normal(5, 7)):
        torch.manual_seed(0)
        right = create(wide).to(dtype)
        torch.manual_seed(0)
        assert torch.equal(create(narrow), right)


def test_the_erf_of_a_record():
    """Inside the context `erf_of`, GELU uses the `erf` of the CUDA version that the record names. Afterwards,
    it uses the `erf` of the installed torch."""
    x = torch.linspace(-4, 4, 10_000)
    own, results = oxiwarp.gelu(x), []
    for cuda in ("12.8", "13.1", "13.2"):
        with record_bits.erf_of({"cuda": cuda}):
            results.append(oxiwarp.gelu(x))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])
    assert torch.equal(oxiwarp.gelu(x), own)
