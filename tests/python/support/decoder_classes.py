"""Finds the classes of transformers that a decoder fusion supports. A fusion is a replacement for a `forward`
method.

A fusion supports a class if it lists the hash of the source code of the class's `forward`. In many classes, this source
code is the same.
"""

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
    """Yield the source code of `forward` of each class in `text` whose name ends with `ending`.

    Only the text of these classes is parsed. Parsing the whole file takes ten times as long.
    """
    for found in CLASS.finditer(text + "\nend"):
        if found[1].endswith(ending):
            for node in ast.parse(found[0]).body[0].body:
                if isinstance(node, ast.FunctionDef) and node.name == "forward":
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    yield "".join(found[0].splitlines(keepends=True)[first - 1 : node.end_lineno])


@functools.cache
def known(fusion):
    """Return the transformers classes that `fusion` (a replacement for a `forward` method) supports, by name.

    transformers has about 400 modules. To save time, only modules whose text contains a supported class are
    imported.
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
