"""Tests that the CPU executor and a Hopper GPU give the same bits for the same calls."""

import importlib
import os
import random

import fuzz
import pytest
import torch
from fuzz.checks import Failed, Refused, run, same_bits
from fuzz.draw import Draw

SEED = int(os.environ.get("OXIWARP_SEED", 0 if os.environ.get("CI") else random.randrange(2**31)))
CASES = 25
"""Number of random calls per operator."""


def results_on(device, name, number):
    """Return a random case and its results on a device. The results are None if the operator rejects the call."""
    operator = fuzz.OPERATORS[name]
    with torch.no_grad():
        case = operator.draw(Draw(fuzz.key_of(name, SEED, number), None, device))
        try:
            if "reduction" in case.options:
                # torch adds the losses of the rows, in an order that depends on the device.
                case.options["reduction"] = "none"
            return case, [y.cpu() for y in run(operator, case, case.given())]
        except Refused:
            return case, None


@pytest.fixture
def cpu_tables(monkeypatch):
    """Make `rope_3d` compute its tables of cosines and sines on the CPU for all devices.

    `rope_3d` computes its tables with torch's operators. If `coordinates` are given, the angles are float32,
    and their last bits on a GPU and on the CPU differ. With the same tables on both devices, the tests
    compare only the kernel.
    """
    module = importlib.import_module("oxiwarp.ops.rope")
    of_grid, of_coordinates, cpu = module.grid_tables, module.ltx_tables, torch.device("cpu")

    def grid_tables(grid, splits, theta, device):
        return tuple(table.to(device) for table in of_grid(grid, splits, theta, cpu))

    def ltx_tables(coordinates, dim, theta):
        return tuple(table.to(coordinates.device) for table in of_coordinates(coordinates.cpu(), dim, theta))

    monkeypatch.setattr(module, "grid_tables", grid_tables)
    monkeypatch.setattr(module, "ltx_tables", ltx_tables)


@pytest.mark.parametrize("name", sorted(fuzz.OPERATORS))
def test_bits(name, cuda, cpu_tables):
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("no Hopper GPU, whose bits the executor has")
    for number in range(CASES):
        case, ours = results_on("cuda", name, number)
        _, others = results_on("cpu", name, number)
        assert (ours is None) == (others is None), (
            f"OXIWARP_SEED={SEED}, case {number}: only one device rejects the call"
        )
        if ours is not None:
            try:
                same_bits(ours, others, "bits", "GPU and executor")
            except (Failed, AssertionError) as error:
                pytest.fail(f"OXIWARP_SEED={SEED}, case {number}: {error}", pytrace=False)


def test_wrong_bits():
    """The comparison finds a difference of one bit."""
    found = (results_on("cpu", "rms_norm", number) for number in range(CASES))
    ours = next(ours for _, ours in found if ours is not None and ours[0].numel() and not ours[0].isnan().any())
    same_bits(ours, ours, "bits", "GPU and executor")
    wrong = ours[0].clone()
    wrong.view(torch.int32 if wrong.dtype == torch.float32 else torch.int16).view(-1)[-1] ^= 1
    with pytest.raises(Failed, match="GPU and executor"):
        same_bits(ours, [wrong], "bits", "GPU and executor")
