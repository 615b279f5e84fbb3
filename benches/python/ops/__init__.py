"""Lists the measured ops by family, e.g. "norms". Each family has one plot.

Every module of this folder has two constants. `FORMS` lists the measured uses of ops, and `FAMILY` is the
family of the module's ops.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from forms import Form, Shape

# The first families of ops in the output, in this order. All other families follow.
FIRST = ("norms", "modulation", "rope", "activations", "losses", "backward")


def found() -> dict[str, tuple[Form, ...]]:
    """Return the forms (measured uses of ops) of each family, in the order of their modules' names."""
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
    """Exit with an error if `--only` names an unknown op. Otherwise a run without any measurement would look
    successful."""
    if unknown := sorted(set(only or ()) - set(OPS)):
        raise SystemExit(f"--only {', '.join(unknown)}: no such op; there are {', '.join(OPS)}")


def selected(only: list[str] | None) -> list[Form]:
    """Return the forms (measured uses of ops) of the ops named in `only`, or all forms if `only` is None."""
    return [form for form in FORMS if only is None or form.op in only]


def timed_cases(only: list[str] | None, quick: bool) -> Iterator[tuple[Form, str, Shape]]:
    """Yield every case to time, as (form, model, shape). With `quick`, yield only the first case of each
    op."""
    seen = set()
    for form in selected(only):
        for model, shape in form.cases if form.timed else ():
            if quick and form.op in seen:
                continue
            seen.add(form.op)
            yield form, model, shape


__all__ = ["FAMILIES", "FAMILY_OF", "FORMS", "OPS", "check_names", "selected", "timed_cases"]
