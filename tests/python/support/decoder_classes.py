"""Finds the transformers classes whose source a decoder fusion supports. Many are copies of each other."""

import ast
import functools
import importlib
import importlib.util
import pathlib
import re

import pytest

from oxiwarp.patching.fusions import FUSIONS, find, fingerprint_of

CLASS = re.compile(r"^class (\w+).*?(?=^[^\s)])", re.MULTILINE | re.DOTALL)


def forwards(text, ending):
    """Yield the source of `forward` of each class whose name has this ending.

    Only these classes are parsed. Parsing the whole text takes ten times as long.
    """
    for found in CLASS.finditer(text + "\nend"):
        if found[1].endswith(ending):
            for node in ast.parse(found[0]).body[0].body:
                if isinstance(node, ast.FunctionDef) and node.name == "forward":
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    yield "".join(found[0].splitlines(keepends=True)[first - 1 : node.end_lineno])


@functools.cache
def known(fusion):
    """Return the supported classes by name.

    A module is imported only if its text has such a class, because transformers has about 400 modules.
    """
    spec, fusion = importlib.util.find_spec("transformers"), FUSIONS[fusion]
    if spec is None:
        pytest.skip("no transformers")
    ending = fusion.classes[0].rpartition("*")[2]
    models, classes = pathlib.Path(spec.submodule_search_locations[0], "models"), {}
    for path in sorted(models.glob("*/modeling_*.py")):
        prints = {fingerprint_of(source) for source in forwards(path.read_text(), ending)}
        if not prints.intersection(fusion.sources["forward"]):
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, cls in vars(module).items():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                found = find(cls)
                if found is not None and found[0] is fusion and fusion.difference(cls, cls) is None:
                    classes[name] = cls
    return classes
