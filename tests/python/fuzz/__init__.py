"""A differential fuzzer of the public operators: random calls, compared with float64 formulas and with torch.

`draw` makes random arguments. `precision` runs a formula in float64, with simulated rounding errors, or in torch's
dtypes. Each family of operators has a module with generators and formulas. `checks` compares the results. `engine`
runs cases and minimises a failing one. `__main__` is the command line.

The fuzzer does not use Hypothesis, which has no access to its k-th example. Here an operator, a seed and a number
identify a case, without a database. `engine.minimise` shrinks a failing case as Hypothesis does. A case is a list of
integers, of which 0 is the simplest choice. `minimise` lowers them as long as the same check fails.
"""

from . import attention, elementwise, loss, modulation, norms, rotary  # noqa: F401  registers operators
from .case import OPERATORS
from .engine import Outcome, Tally, key_of, minimise, run_case, run_number

__all__ = ["OPERATORS", "Outcome", "Tally", "key_of", "minimise", "run_case", "run_number"]
