"""A fuzzer of the public operators: it compares the results of random calls with float64 formulas and with
torch.

The fuzzer has these modules:

- `draw` makes random arguments.
- `precision` evaluates a formula in float64, in float64 with simulated rounding errors, or in float32.
- `attention`, `norms` and similar modules contain the formulas of the operators, and generators of random
  calls.
- `checks` compares the results of a call with the expected results.
- `engine` runs cases (calls with their checks) and simplifies a failing case.
- `__main__` is the command line.

The name of an operator, a seed and a number identify a case, so that no database of cases is needed. The library
Hypothesis is not used, because it cannot run the k-th random example without the examples before it. All random choices
of a case are recorded as integers, and 0 is the simplest choice. To simplify a failing case, `engine.minimise` lowers
these integers as long as the same check fails, as Hypothesis does.
"""

from . import attention, elementwise, loss, modulation, norms, products, quantize, rotary  # noqa: F401  registers operators
from .case import OPERATORS
from .engine import Outcome, Tally, key_of, minimise, run_case, run_number

__all__ = ["OPERATORS", "Outcome", "Tally", "key_of", "minimise", "run_case", "run_number"]
