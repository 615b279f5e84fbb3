"""Modules that pickles name, under the names that they had: a pickle of a patched model loads after they have moved.

Such a pickle names `_new` of `class_swap.py` and the classes of recipes, each with its module; that of a report names
those of `report.py`. Here these modules get their old names too, below the package that holds them. A recipe goes by
the names of its fields and of its fusion, which are kept as well. Whoever moves one of these modules again adds a line.
"""

import sys

from . import class_swap, fusions, report
from .fusions.core import recipe
from .norms import forward, probe

OLD_NAMES = {
    "fusions": fusions,  # imported before what was in it
    "fusions._fusion": recipe,
    "norms": forward,
    "probe": probe,
    "replacement": class_swap,
    "report": report,
}

for name, module in OLD_NAMES.items():
    sys.modules.setdefault(f"{__package__.rpartition('.')[0]}.{name}", module)

__all__ = ["OLD_NAMES"]
