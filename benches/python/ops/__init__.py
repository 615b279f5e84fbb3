"""Every op that is measured, family by family: a family is a plot.

Every module of this folder has `FORMS`, which are its measurements, and `FAMILY`, the family that they belong to.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from forms import Form, Shape

# Families are measured in this order, others after these.
FIRST = ("norms", "modulation", "rope", "activations", "losses", "backward")


def found() -> dict[str, tuple[Form, ...]]:
    """The forms of each family. Within a family, they have the order of the modules' names."""
    families: dict[str, tuple[Form, ...]] = dict.fromkeys(FIRST, ())
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        families[module.FAMILY] = families.get(module.FAMILY, ()) + module.FORMS
    return families


FAMILIES = found()
FORMS = tuple(form for forms in FAMILIES.values() for form in forms)
OPS = tuple(dict.fromkeys(form.op for form in FORMS))
FAMILY_OF = {form.op: family for family, forms in FAMILIES.items() for form in forms}


def check_names(only: list[str] | None) -> None:
    """Ends the program where an op that is asked for is none: a run of nothing would look like one that went well."""
    if unknown := sorted(set(only or ()) - set(OPS)):
        raise SystemExit(f"--only {', '.join(unknown)}: no such op; there are {', '.join(OPS)}")


def selected(only: list[str] | None) -> list[Form]:
    """The forms of these ops, or all."""
    return [form for form in FORMS if only is None or form.op in only]


def timed_cases(only: list[str] | None, quick: bool) -> Iterator[tuple[Form, str, Shape]]:
    """Form, model and shape of every measurement; quick: the first of each op."""
    seen = set()
    for form in selected(only):
        for model, shape in form.cases if form.timed else ():
            if quick and form.op in seen:
                continue
            seen.add(form.op)
            yield form, model, shape


__all__ = ["FAMILIES", "FAMILY_OF", "FORMS", "OPS", "check_names", "selected", "timed_cases"]
