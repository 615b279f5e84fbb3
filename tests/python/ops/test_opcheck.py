"""Tests of `torch.library.opcheck` for every registered operator: schema, fake kernel, autograd and AOTAutograd.

The arguments are generated from the operators' schemas. The test files of the individual operators run
opcheck with further arguments.
"""

import pytest
import torch
from operator_calls import calls

from oxiwarp.ops._roles import OPERATORS

CALLS = calls()


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
    torch.library.opcheck(operator.overload, arguments)
