"""Reads the syntax tree of a method, and compiles a changed syntax tree to a new method. The new method has
the globals and closure of the original."""

import ast
import dis
import inspect
import sys
import textwrap
import tokenize
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

PREFIX = "_oxiwarp_"
"""Prefix of the names that a rewritten method uses for functions of oxiwarp."""


class Unreadable(Exception):
    """Raised if a method cannot be rewritten. The message contains the reason."""


def tree_of(function: FunctionType) -> ast.FunctionDef:
    """Return the syntax tree of `function`. The nodes of the tree have the line numbers that they have in the
    source file.

    Raise `Unreadable` if the source is not available, or if a function compiled from the tree would behave
    differently.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise Unreadable("it is a generator or a coroutine")
    try:
        lines, first = inspect.getsourcelines(function)
        module = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        raise Unreadable("its source is not available") from None
    tree = module.body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        raise Unreadable("its source does not start with its definition")
    # The source file may be newer than the loaded module. Therefore compare the line number and the parameter
    # names in the file with the loaded code.
    code = function.__code__
    if (
        code.co_varnames[: code.co_argcount] != tuple(arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args))
        or first != code.co_firstlineno
    ):
        raise Unreadable("its source has changed since it was imported")
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name.startswith("__") and not name.endswith("__"):
            raise Unreadable(f"it uses the private name {name}")
        if isinstance(node, ast.Name) and name in ("locals", "vars", "eval", "exec"):
            raise Unreadable(f"it calls {name}, which may read all local variables")
    ast.increment_lineno(module, first - 1)
    tree.decorator_list = []
    return tree


def check_source(function: FunctionType) -> None:
    """Raise `Unreadable` if the source file does not match the loaded code object of `function`, for example
    after an edit.

    This check takes about a millisecond, so callers check only functions that they want to rewrite.
    """
    if not same_code(function.__code__, compiled(function, tree_of(function), {}).__code__):
        raise Unreadable("its source has changed since it was imported")


def same_code(code: CodeType, made: CodeType) -> bool:
    """Return whether two code objects have the same names, line numbers, operators, local variables and
    constants.

    The bytecode is not compared, because Python 3.11 compiles `F.silu(x)` differently if it knows that `F` is a module.
    """
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(code, name) != getattr(made, name) for name in names) or outline(code) != outline(made):
        return False
    pairs = zip(code.co_consts, made.co_consts, strict=False)
    return len(code.co_consts) == len(made.co_consts) and all(
        same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else same_constant(a, b)
        for a, b in pairs
    )


def same_constant(a: Any, b: Any) -> bool:
    """Return whether two constants are equal. In strings, such as docstrings, differences in the indentation
    of lines are ignored."""
    both = isinstance(a, str) and isinstance(b, str)
    return a == b or (both and [line.strip() for line in a.split("\n")] == [line.strip() for line in b.split("\n")])


def outline(code: CodeType) -> tuple[list[tuple[str, int | None]], set[int | None]]:
    """Return the operators and local variables that a code object uses, in order, and the set of its line
    numbers."""
    kinds = ("BINARY", "COMPARE", "UNARY", "LOAD_FAST", "STORE_FAST", "LOAD_DEREF", "STORE_DEREF")
    found = [(step.opname, step.arg) for step in dis.get_instructions(code) if step.opname.startswith(kinds)]
    return found, {line for _, _, line in code.co_lines()} - {code.co_firstlineno}


def undecorated(function: FunctionType) -> FunctionType:
    """Return the function inside of all decorators that use `functools.wraps`."""
    inner: Any = getattr(function, "__wrapped__", None)
    return function if inner is None else undecorated(inner)


def decorated(function: FunctionType, new: FunctionType) -> FunctionType:
    """Return a copy of the decorated function `function`. In the copy, the decorators call `new` instead of
    the undecorated function.

    The wrapper that a decorator returned must have the decorated function in its closure. Otherwise raise
    `Unreadable`.
    """
    inner: Any = getattr(function, "__wrapped__", None)
    if inner is None:
        return new
    cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
    holds = [holds_function(cell, inner) for cell in cells]
    if sum(holds) != 1:
        raise Unreadable("it has an unknown decorator")
    changed = decorated(inner, new)
    closure = tuple(CellType(changed) if held else cell for cell, held in zip(cells, holds, strict=True))
    outer = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    outer.__kwdefaults__ = function.__kwdefaults__
    outer.__dict__.update(function.__dict__, __wrapped__=changed)
    outer.__module__, outer.__qualname__, outer.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return outer


def holds_function(cell: CellType, function: Any) -> bool:
    """Return whether a cell of a closure contains `function`. For an empty cell, return False."""
    try:
        return cell.cell_contents is function
    except ValueError:
        return False


def compiled(function: FunctionType, tree: ast.FunctionDef, names: Mapping[str, Any]) -> FunctionType:
    """Compile `tree`, the changed syntax tree of `function`, to a new function. `names` are additional
    variables that the new function can read.

    The new function uses the globals, default values and closure cells of `function`. It also has the name,
    file and line numbers of `function`, so tracebacks and profilers show the original source.
    """
    code = function.__code__
    outer = ast.FunctionDef(
        name=f"{PREFIX}outer",
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(name) for name in dict.fromkeys((*code.co_freevars, *names))],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=[tree],
        decorator_list=[],
    )
    # Remove default values and annotations, so that they are not evaluated again. The new function gets these
    # objects from the original function.
    arguments = tree.args
    for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if arg is not None:
            arg.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    tree.returns = None
    # Rename the function. Otherwise, in its body, its name would hide a global variable of the same name.
    tree.name = PREFIX + tree.name
    module = ast.fix_missing_locations(ast.Module(body=[outer], type_ignores=[]))
    flags = code.co_flags & __import__("__future__").annotations.compiler_flag
    made = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
    inner = constant(constant(made, outer.name), tree.name)
    inner = inner.replace(co_name=code.co_name)
    if sys.version_info >= (3, 11):
        inner = inner.replace(co_qualname=code.co_qualname)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] if name in cells else CellType(names[name]) for name in inner.co_freevars)
    new = FunctionType(inner, function.__globals__, function.__name__, function.__defaults__, closure)
    new.__kwdefaults__, new.__doc__ = function.__kwdefaults__, function.__doc__
    new.__module__, new.__qualname__ = function.__module__, function.__qualname__
    new.__dict__.update(function.__dict__)
    new.__annotations__ = function.__annotations__
    return new


def constant(code: CodeType, name: str) -> CodeType:
    """Return the code object of the function `name`, which is a constant of the code object `code`."""
    return next(found for found in code.co_consts if isinstance(found, CodeType) and found.co_name == name)


__all__ = ["PREFIX", "Unreadable", "check_source", "compiled", "decorated", "tree_of", "undecorated"]
