"""Tests of `torch.library.opcheck` for every registered operator: schema, fake kernel, autograd and AOTAutograd.

The arguments are generated from the operators' schemas. The test files of the individual operators run
opcheck with further arguments.
"""

import pytest
import torch
from operator_calls import calls

from oxiwarp.ops._roles import OPERATORS, Role

CALLS = calls()
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def registered():
    return {
        schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas() if schema.name[:9] == "oxiwarp::"
    }


def test_all():
    assert OPERATORS.keys() == registered()
    assert {name.partition(",")[0] for name in CALLS} == registered()


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name, device):
    operator, arguments = CALLS[name](device)
    # torch's check of the schema compares tensor arguments by operators that it lacks for 8-bit floats.
    checks = CHECKS[Role.QUANTIZED in operator.roles.values() :]
    torch.library.opcheck(operator.overload, arguments, test_utils=checks)
