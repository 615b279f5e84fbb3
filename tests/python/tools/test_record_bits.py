"""Tests of the program that records the bits of results on a GPU. The tests need no GPU."""

import copy
import sys

import torch
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import record_bits  # noqa: E402

CPU = torch.device("cpu")
OPS = ["gated_residual"]


def test_a_record_is_compared():
    """The calls have the recorded bits again, and one wrong checksum is a difference."""
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
