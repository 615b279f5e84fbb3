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
LOGARITHMS = {"attention": 1, "cross_entropy": 0, "softmax": 0}
"""Maps an operator to the first of its results that may depend on a logarithm. The executor rounds `lg2`
correctly, and the GPU does not."""
LOGARITHM_ERROR = 2.0**-20


def results_on(device, name, number):
    """Return a random case and its results on a device. The results are None if the operator rejects the call."""
    operator = fuzz.OPERATORS[name]
    with torch.no_grad():
        case = operator.draw(Draw(fuzz.key_of(name, SEED, number), None, device))
        try:
            return case, [y.cpu() for y in run(operator, case, case.given())]
        except Refused:
            return case, None


def compare(name, case, ours, others):
    """Raise `Failed` unless the results have the same bits, apart from logarithms."""
    exact = len(ours)
    if name in LOGARITHMS and (name != "softmax" or case.options.get("log")):
        exact = LOGARITHMS[name]
    same_bits(ours[:exact], others[:exact], "bits", "GPU and executor")
    for one, other in zip(ours[exact:], others[exact:], strict=True):
        step = torch.finfo(one.dtype).eps
        torch.testing.assert_close(one, other, rtol=step + LOGARITHM_ERROR, atol=LOGARITHM_ERROR, equal_nan=True)


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
            try:
                compare(name, case, ours, others)
            except (Failed, AssertionError) as error:
                pytest.fail(f"OXIWARP_SEED={SEED}, case {number}: {error}", pytrace=False)


def test_wrong_bits():
    """The comparison finds a difference of one bit."""
    found = (results_on("cpu", "rms_norm", number) for number in range(CASES))
    case, ours = next((case, ours) for case, ours in found if ours is not None and ours[0].numel())
    compare("rms_norm", case, ours, ours)
    wrong = ours[0].clone()
    wrong.view(torch.int32 if wrong.dtype == torch.float32 else torch.int16).view(-1)[-1] ^= 1
    with pytest.raises(Failed, match="GPU and executor"):
        compare("rms_norm", case, ours, [wrong])
