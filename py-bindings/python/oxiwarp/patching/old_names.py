"""Registers renamed Python modules under their old names, so that older pickles of patched models still load.

A pickle of a patched model contains the names of the Python modules that define `class_swap._new`, `FusedRecipe` and
`NormRecipe`. A pickle of a `Report` contains the name of the module that defines `Report`. Some of these modules were
renamed, so this file adds their old names to `sys.modules`. If you rename one of them again, add its old name to
`OLD_NAMES`.

A recipe is the data that the new method of a patched object needs. A pickled recipe also contains the names
of its fields. A pickled `FusedRecipe` contains the name of its fusion. The names of the fields and of the
fusions must not change. If the fusion was removed, the object runs its original method.
"""

import sys

from . import class_swap, fusions, report
from .fusions.core import recipe
from .norms import forward, probe

OLD_NAMES = {
    "fusions": fusions,  # listed before the modules that this package contains
    "fusions._fusion": recipe,
    "norms": forward,
    "probe": probe,
    "replacement": class_swap,
    "report": report,
}

for name, module in OLD_NAMES.items():
    sys.modules.setdefault(f"{__package__.rpartition('.')[0]}.{name}", module)

__all__ = ["OLD_NAMES"]
