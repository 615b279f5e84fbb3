"""A differential fuzzer of the public operators: random calls, compared with float64 formulas and with torch.

`draw` makes random arguments, `precision` runs one formula in float64, with simulated rounding errors, or in torch's
own dtypes. Each family of operators has a module with generators and formulas; `checks` compares, `engine` runs cases,
minimises a failing one and describes it, and `__main__` is the command line.

Hypothesis is not used. A case must be repeatable from an operator, a seed and a number, for hours and without a
database, and Hypothesis has no access to its k-th example. `engine.minimise` has its idea of shrinking: a case is a
list of choices, of which 0 is the simplest, and choices are lowered as long as the same check fails.
"""

from . import attention, elementwise, loss, modulation, norms, rotary  # noqa: F401  they fill the table
from .case import OPERATORS
from .engine import Outcome, Tally, key_of, minimise, run_case, run_number

__all__ = ["OPERATORS", "Outcome", "Tally", "key_of", "minimise", "run_case", "run_number"]
