"""Tests that the CPU executor and a Hopper GPU give the same bits for the same calls."""

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
MADE_BY_TORCH = {"rope_3d"}
"""Functions whose cosines and sines torch computes on the device of the call. Their last bits depend on the device."""


def results_on(device, name, number):
    """Return a random case and its results on a device. The results are None if the operator rejects the call."""
    operator = fuzz.OPERATORS[name]
    with torch.no_grad():
        case = operator.draw(Draw(fuzz.key_of(name, SEED, number), None, device))
        try:
            return case, [y.cpu() for y in run(operator, case, case.given())]
        except Refused:
            return case, None


def close(ours, others):
    """Assert that the results differ by at most the rounding of a cosine or sine, and of the result."""
    for one, other in zip(ours, others, strict=True):
        step, finite = torch.finfo(one.dtype).eps, one[one.isfinite()].double()
        scale = float(finite.abs().max()) if finite.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=2 * step, atol=2 * step * scale, equal_nan=True)


@pytest.mark.parametrize("name", sorted(fuzz.OPERATORS))
def test_bits(name, cuda):
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("no Hopper GPU, whose bits the executor has")
    for number in range(CASES):
        case, ours = results_on("cuda", name, number)
        _, others = results_on("cpu", name, number)
        assert (ours is None) == (others is None), (
            f"OXIWARP_SEED={SEED}, case {number}: only one device rejects the call"
        )
        if ours is not None:
            if name in MADE_BY_TORCH:
                close(ours, others)
                continue
            try:
                same_bits(ours, others, "bits", "GPU and executor")
            except (Failed, AssertionError) as error:
                pytest.fail(f"OXIWARP_SEED={SEED}, case {number}: {error}", pytrace=False)


def test_wrong_bits():
    """The comparison finds a difference of one bit."""
    found = (results_on("cpu", "rms_norm", number) for number in range(CASES))
    case, ours = next((case, ours) for case, ours in found if ours is not None and ours[0].numel())
    same_bits(ours, ours, "bits", "GPU and executor")
    wrong = ours[0].clone()
    wrong.view(torch.int32 if wrong.dtype == torch.float32 else torch.int16).view(-1)[-1] ^= 1
    with pytest.raises(Failed, match="GPU and executor"):
        same_bits(ours, [wrong], "bits", "GPU and executor")
