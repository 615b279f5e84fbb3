"""Calls a model with and without `patch`, and reports for each chain that the model ran whether a kernel computed it.

A chain is a sequence of torch operations that one kernel could compute. `loose_chains.py` finds the chains in
the source of the model. Each chain gets one of these states:

- "kernel": an oxiwarp kernel computed the chain at least once.
- "original": `patch` rewrote the chain, but torch computed it in every call, because no kernel supported the
  arguments. `report.ran()` gives the reason.
- "left": `patch` recognises the chain, but does not replace the method that contains it, because no kernel
  supports the modules of the method.
- "missed": `patch` does not recognise the chain.
"""

import ast
import copy
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType
from typing import Any

import loose_chains
import torch
from loose_chains import Loose, Place
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp
from oxiwarp.patching import named_parts
from oxiwarp.patching.class_swap import base_of, recipe_of
from oxiwarp.patching.fusions import FUSIONS, FusedRecipe, find
from oxiwarp.patching.fusions.core.source import resolve
from oxiwarp.patching.norms.forward import NormRecipe
from oxiwarp.patching.rewrite.method import PREFIX, undecorated
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe, found_in, impossible, methods_of, rewritten_from
from oxiwarp.patching.rewrite.sums import AFTER, LATER
from oxiwarp.patching.sites import RAN, Site, sites_of

KERNEL, ORIGINAL, LEFT, MISSED = "kernel", "original", "left", "missed"
STATES = (KERNEL, ORIGINAL, LEFT, MISSED)
LIBRARIES = ("diffusers", "transformers")
MODULE_CALL = nn.modules.module.__file__
NO_LAUNCH = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "_local_scalar_dense", "item")

Line = tuple[str, int]
"""A file and a line number."""


class Trace:
    """Records which source lines a model runs. For each function and each module, it also records the lines
    that call the function or module."""

    def __init__(self) -> None:
        self.lines: set[Line] = set()
        self.functions: dict[Line, set[Line]] = {}
        self.modules: dict[Line, dict[int, nn.Module]] = {}
        self.known: dict[str, bool] = {}

    def __enter__(self) -> "Trace":
        self.before = sys.gettrace()
        sys.settrace(self.called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def watched(self, file: str) -> bool:
        """Return whether a file belongs to one of `LIBRARIES`."""
        if file not in self.known:
            self.known[file] = any(f"/{name}/" in file for name in LIBRARIES) and not file.startswith("<")
        return self.known[file]

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Record the call of a function."""
        code = frame.f_code
        module = frame.f_locals.get("self") if code.co_name == "forward" else None
        watched = self.watched(code.co_filename)
        if not watched and not isinstance(module, nn.Module):
            return None
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename == MODULE_CALL:
            caller = caller.f_back
        at = (caller.f_code.co_filename, caller.f_lineno) if caller is not None else ("", 0)
        if isinstance(module, nn.Module):
            self.modules.setdefault(at, {})[id(module)] = module
        if not watched:
            return None
        self.functions.setdefault((code.co_filename, code.co_firstlineno), set()).add(at)
        return self.stepped

    def stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Record a line."""
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.stepped

    def ran(self, path: str, chain: Loose) -> bool:
        """Return whether the model ran a source line of the chain (a sequence of operations).

        The sum or product in the chain may be on an earlier line, in another branch of an `if`. That line
        must have run too.
        """
        parts = [(chain.line, chain.end)] + ([(chain.part[0], chain.part[2])] if chain.part else [])
        return all(any((path, line) in self.lines for line in range(first, last + 1)) for first, last in parts)


class Operators(TorchDispatchMode):
    """Counts the operators that torch dispatches. Views and allocations are not counted, because they launch
    no kernel."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += launches(function)
        return function(*args, **(kwargs or {}))


def launches(function: Any) -> bool:
    """Return whether an operator launches a kernel on a GPU."""
    schema = getattr(function, "_schema", None)
    if schema is None:  # a higher-order operator
        return True
    infos = [item.alias_info for item in schema.returns]
    is_view = infos and all(info is not None and not info.is_write for info in infos)
    return not is_view and schema.name.partition("::")[2] not in NO_LAUNCH


@dataclass
class Cover:
    """How `patch` computes a chain (a sequence of operations): in a rewritten method, in a fusion (a
    hand-written method that replaces the original one), or in a replaced norm."""

    how: str
    """"rewritten" (the method was rewritten), "fusion" (a kernel replaces the method) or "norm" (a kernel
    computes the norm in the chain)."""
    site: Site | None
    """The counter of the calls, or None if `patch` does not replace the method."""
    reason: str = ""
    """The reason why `patch` does not replace the method."""


@dataclass
class Region:
    """The expressions of a method that the rewriter of `patch` recognised as one chain (one sequence of
    operations)."""

    places: set[Place]
    lines: tuple[int, int]
    """First and last line of the expressions."""
    functions: set[Line]
    """Functions whose source is part of the chain, by file and first line."""
    ops: tuple[str, ...]
    cover: Cover


@dataclass
class Covers:
    """Everything that `patch` computes in a model."""

    regions: dict[str, list[Region]] = field(default_factory=dict)
    """The chains of rewritten methods, by file."""
    functions: dict[Line, list[Cover]] = field(default_factory=dict)
    """For each function whose chains are all computed: how they are computed, by file and first line of the
    function."""
    norms: dict[int, Cover] = field(default_factory=dict)
    """For each norm: how it is computed, by the `id` of its module."""


def code_of(function: Any) -> Line:
    """Return the file and the first line of a function."""
    code = undecorated(function).__code__
    return code.co_filename, code.co_firstlineno


def covers_of(model: nn.Module) -> Covers:
    """Return everything that `patch` computes in a patched model."""
    covers, rewritten = Covers(), set()
    for _, part in named_parts(model):
        base, recipe = base_of(part), recipe_of(part)
        sites = sites_of(type(part))
        if isinstance(recipe, NormRecipe):
            covers.norms[id(part)] = Cover("norm", sites[0])
            # The kernel of a replaced norm computes everything in the `forward` of the norm, including `y *
            # (1 + weight)`.
            covers.functions.setdefault(code_of(base.forward), []).append(Cover("fusion", sites[0]))
        elif isinstance(recipe, FusedRecipe) and sites:
            add_fusion(covers, part, recipe, Cover("fusion", sites[0]))
        elif isinstance(recipe, RewrittenRecipe):
            if "norm" in base.__name__.lower():  # a modulated norm
                covers.norms[id(part)] = Cover("norm", sites[0])
            if type(part) in rewritten:
                continue
            rewritten.add(type(part))
            rest = iter(sites)
            for method in methods_of(base):
                own = getattr(base, method)
                add_rewritten(covers, own, [Cover("rewritten", next(rest)) for _ in found_in(own)])
        elif recipe is None:
            for method in methods_of(base):
                own = getattr(base, method)
                reasons = [impossible(part, chain, None, None) or "" for chain in found_in(own)]
                add_rewritten(covers, own, [Cover("rewritten", None, reason) for reason in reasons])
    return covers


def add_fusion(covers: Covers, part: Any, recipe: FusedRecipe, cover: Cover) -> None:
    """Record in `covers` a method that a fusion replaces, and the functions and modules that the model no
    longer calls because of the fusion."""
    fusion, base = FUSIONS[recipe.fusion], base_of(part)
    known = (find(base) or (None, base))[1]
    functions = [getattr(base, fusion.method), *(resolve(name, base, known) for name in fusion.sources)]
    for kind in recipe.kinds or ():
        if kind is not None:
            functions.append(kind[0].forward)
    for function in functions:
        if isinstance(function, FunctionType):
            covers.functions.setdefault(code_of(function), []).append(cover)
    covers.norms[id(part)] = Cover("norm", cover.site)


def add_rewritten(covers: Covers, own: FunctionType, found: list[Cover]) -> None:
    """Record in `covers` the expressions that `patch` rewrote in the method `own`. `found` has one `Cover`
    for each of them.

    A `Cover` says how `patch` computes an expression.
    """
    rewritten = rewritten_from(own)
    assert not isinstance(rewritten, str)
    inner = undecorated(own)
    first = inspect.getsourcelines(inner)[0][0]
    indent = len(first) - len(first.lstrip())
    places: dict[int, set[Place]] = {}
    lines: dict[int, list[int]] = {}
    norms: set[Place] = set()
    trees = [(rewritten.tree, indent), *((helper.tree, 0) for helper in rewritten.helpers.values())]
    for node, indent in ((node, columns) for tree, columns in trees for node in ast.walk(tree)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or PREFIX not in node.func.id:
            continue
        at = index_of(node)
        if at is not None:
            places.setdefault(at, set()).update(places_of(node, indent))
            if node.func.id.endswith("head_norm"):
                places[at].add(in_file(node, indent))
            if node.func.id.endswith(AFTER):  # The kernel of the norm computes the sum too.
                x = next(word.value for word in node.keywords if word.arg == "x")
                names = {part.id for part in ast.walk(x) if isinstance(part, ast.Name)}
                for tree, columns in trees:
                    places[at].update(sums_in(tree, names, columns))
            # One call may replace two rotations: the rotation of the queries and the rotation of the keys.
            # The keys are then in the argument `other`.
            lines.setdefault(at, []).extend(word.value.lineno for word in node.keywords if word.arg == "other")
        elif "norm" in node.func.id:
            norms.add(in_file(node, indent))
    for at, (chain, cover) in enumerate(zip(rewritten.chains, found, strict=True)):
        own_places = places.get(at, set())
        reach = [line for place in own_places for line in (place[0], place[2])] + lines.get(at, []) or [chain.line]
        functions = {code_of(function) for function in chain.functions.values() if isinstance(function, FunctionType)}
        own_places |= norms if "qk_norm_rope" in chain.ops else set()
        region = Region(own_places, (min(reach), max(reach)), functions, chain.ops, cover)
        covers.regions.setdefault(inner.__code__.co_filename, []).append(region)


def sums_in(tree: ast.AST, names: set[str], indent: int) -> Iterator[Place]:
    """Yield the source positions of the sums that are assigned to the variables `names` and that the kernel
    of a later norm computes."""
    assigned = [
        (node.targets[0].id, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]
    # If the code has `b = later_sum(...)` and then `a = b`, the sum of `a` was assigned to `b`. Therefore
    # also look for sums that are assigned to `b`.
    names = names | {value.id for name, value in assigned if name in names and isinstance(value, ast.Name)}
    for name, value in assigned:
        called = value.func if isinstance(value, ast.Call) and name in names else None
        if isinstance(called, ast.Name) and called.id == PREFIX + LATER:
            yield in_file(value, indent)
            yield from places_of(value, indent)


def index_of(call: ast.Call) -> int | None:
    """Return the first argument of `call`: the index of the rewritten expression that `call` computes. Return
    None if the first argument is no index."""
    at = call.args[0] if call.args else None
    at = at.elts[0] if isinstance(at, ast.Tuple) else at
    return at.value if isinstance(at, ast.Constant) else None


def in_file(node: ast.expr, indent: int) -> Place:
    """Return the position of a node in the original file. Before the rewriter parsed the source, it removed
    `indent` columns of indentation."""
    line, column, end, last = loose_chains.place(node)
    return line, column + indent, end, last + indent


def places_of(call: ast.Call, indent: int) -> Iterator[Place]:
    """Yield the source positions of the expressions that a call in a rewritten method computes. The operands
    of these expressions are not included."""
    if isinstance(call.func, ast.Name) and call.func.id.endswith("unfused"):
        yield from (in_file(node, indent) for node in ast.walk(call.args[1]) if isinstance(node, ast.BinOp))
    for own in call.args:
        if isinstance(own, ast.Lambda):
            for node in ast.walk(own.body):
                if isinstance(node, ast.BinOp | ast.Call):
                    yield in_file(node, indent)


def inside(place: Place | None, region: Region) -> bool:
    """Return whether the expression at the source position `place` belongs to `region`, or True if `place` is
    None.

    A `Region` is the source of a chain of operations that the rewriter of `patch` replaced.
    """
    return place is None or place in region.places


def found_for(chain: Loose, path: str, first: int, caller: Line | None, trace: Trace, covers: Covers) -> list[Cover]:
    """Return how `patch` computes `chain`. The function that contains `chain` starts in line `first` of the
    file `path`.

    A chain is a sequence of operations that one kernel could compute. If the function is not a method, `caller` is the
    line that calls it. This line may be in a rewritten chain that includes the code of the function. The kernel of the
    rewritten chain then also computes `chain`.
    """
    found = list(covers.functions.get((path, first), ()))
    for region in covers.regions.get(path, ()):
        whole = inside(chain.whole, region) and inside(chain.total, region)
        rope = chain.kind == loose_chains.ROTARY and any("rope" in op for op in region.ops)
        if whole or (rope and region.lines[0] <= chain.end and chain.line <= region.lines[1]):
            found.append(region.cover)
    # If every line that calls the function is in a rewritten chain, and these chains include the function's
    # code, their kernels compute the function's operations.
    callers = trace.functions.get((path, first), set()) if caller is None else {caller}
    parts = [calling(line, (path, first), covers) for line in callers]
    found += sum(parts, []) if all(parts) else []
    if caller is not None:
        for function in loose_chains.functions_of(caller[0], caller[0]).values() if caller[0] else ():
            if function.first <= caller[1] <= function.last:
                found += covers.functions.get((caller[0], function.first), ())
    if chain.kind in (loose_chains.SUM_NORM, loose_chains.QK_NORM):
        for line in range(chain.line, chain.end + 1):
            norms = [covers.norms[key] for key in trace.modules.get((path, line), {}) if key in covers.norms]
            # The chain of a norm of queries or keys consists only of the norm, so the norm's kernel computes
            # the whole chain. A rotation after the norm is a separate chain.
            alone = chain.kind == loose_chains.QK_NORM
            found += [replace(norm, how="fusion") if alone else norm for norm in norms]
        if not found:  # A kernel may have computed the norm without the sum.
            found += [item.cover for item in covers.regions.get(path, ()) if chain.whole in item.places]
    return found


def calling(caller: Line, function: Line, covers: Covers) -> list[Cover]:
    """Return how `patch` computes the rewritten chains (sequences of operations) that contain the line `caller` and
    include the code of `function`.

    The line `caller` calls this function.
    """
    regions = covers.regions.get(caller[0], ())
    return [
        region.cover
        for region in regions
        if function in region.functions and region.lines[0] <= caller[1] <= region.lines[1]
    ]


def is_norm_there(chain: Loose, path: str, trace: Trace) -> bool:
    """Return whether the norm module of a chain (a sequence of operations) was a norm when the model ran, and
    not `nn.Identity`."""
    lines = range(chain.line, chain.end + 1)
    modules = [module for line in lines for module in trace.modules.get((path, line), {}).values()]
    return not modules or any(not isinstance(module, nn.Identity) for module in modules)


@dataclass(frozen=True)
class Outcome:
    """How a chain (a sequence of operations) was computed in one call of a model."""

    state: str
    how: str = ""
    """How `patch` computes the chain: "rewritten", "fusion" or "norm"."""
    reason: str = ""
    """Why no kernel ran."""


def outcome(covers: list[Cover], before: Mapping[int, Counter[str]]) -> Outcome:
    """Return how a chain (a sequence of operations) was computed.

    `before` maps the `id` of each counter to its counts before the call of the model.
    """
    results = []
    for cover in covers:
        if cover.site is None:
            results.append(Outcome(LEFT, cover.how, cover.reason))
            continue
        now = cover.site.outcomes - before.get(id(cover.site), Counter())
        kernels = now.pop(RAN, 0)
        if kernels or not now:  # not counted: a kernel replaced its caller
            results.append(Outcome(KERNEL, cover.how))
        else:
            results.append(Outcome(ORIGINAL, cover.how, now.most_common(1)[0][0]))
    order = {name: at for at, name in enumerate(("rewritten", "fusion", "norm", ""))}
    return min(results, key=lambda made: (STATES.index(made.state), order[made.how]), default=Outcome(MISSED))


def chains_of(trace: Trace) -> Iterator[tuple[Loose, str, int, Line | None]]:
    """Yield each chain that ran, the path of its file, the first line of its function, and the line that
    calls the function.

    A chain is a sequence of operations that one kernel could compute. A chain in a function that is not a
    method is yielded once for each line that calls the function. For a method, the calling line is None.
    """
    for (path, first), callers in sorted(trace.functions.items()):
        file = path.rpartition("site-packages/")[2]
        for chain in loose_chains.loose_in(path, file, first):
            if not trace.ran(path, chain):
                continue
            if chain.kind in (loose_chains.SUM_NORM, loose_chains.QK_NORM) and not is_norm_there(chain, path, trace):
                continue
            if chain.in_method:
                yield chain, path, first, None
            else:
                yield from ((chain, path, first, caller) for caller in sorted(callers))


Key = tuple[str, str, int, str, str]
"""File, kind, line, owner and source of a chain."""


@dataclass
class Result:
    """The results of one model in one dtype."""

    chains: dict[Key, Outcome]
    operators: tuple[int, int]
    """Number of operators in one call without `patch`, and in one call with `patch`."""
    difference: float
    """Norm of the difference of the outputs with and without `patch`, divided by the norm of the output."""
    restored: bool
    """Whether the output has the same bits after `unpatch`."""


def key_of(chain: Loose, caller: Line | None) -> Key:
    """Return the dictionary key that identifies a chain (a sequence of operations).

    If the function of the chain is not a method, the key contains the line that calls the function.
    """
    if caller is None:
        return chain.file, chain.kind, chain.line, chain.owner, chain.source
    file = caller[0].rpartition("site-packages/")[2]
    inner = [f for f in loose_chains.functions_of(*([caller[0]] * 2)).values() if f.first <= caller[1] <= f.last]
    owner = max(inner, key=lambda function: function.first).owner if inner else ""
    return file, chain.kind, caller[1], owner, f"{chain.owner}: {chain.source}"


def tensors_of(output: Any) -> list[Tensor]:
    """Return the floating-point tensors of an output."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def difference(made: list[Tensor], expected: list[Tensor]) -> float:
    """Return the norm of `made - expected`, divided by the norm of `expected`.

    The result is 0.0 only if both outputs have the same bits.
    """
    if len(made) == len(expected) and all(map(same_bits, made, expected)):
        return 0.0
    pairs = [(a.double().nan_to_num(), b.double().nan_to_num()) for a, b in zip(made, expected, strict=True)]
    above, below = sum((a - b).square().sum() for a, b in pairs), sum(b.square().sum() for _, b in pairs)
    return max(float((above / below).sqrt()), 1e-30)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def call(model: nn.Module, arguments: dict[str, Any]) -> list[Tensor]:
    """Call a model with a copy of the arguments, and return the tensors of its output."""
    torch.manual_seed(0)
    with torch.no_grad():
        return [tensor.clone() for tensor in tensors_of(model(**copy.deepcopy(arguments)))]


def study(model: nn.Module, arguments: dict[str, Any]) -> tuple[Result, list[Tensor]]:
    """Call a model without `patch`, with `patch`, and after `unpatch`.

    Return two values: the results, and the output tensors of the call without `patch`.
    """
    with Trace() as trace:
        stock = call(model, arguments)
    plain = counted(model, arguments)
    oxiwarp.patch(model, cpu_kernels=True, allow_empty=True)
    covers = covers_of(model)
    before = {id(site): site.outcomes.copy() for _, part in named_parts(model) for site in sites_of(type(part))}
    patched = call(model, arguments)
    chains = {}
    for chain, path, first, caller in chains_of(trace):
        made = outcome(found_for(chain, path, first, caller, trace, covers), before)
        key = key_of(chain, caller)
        if key not in chains or STATES.index(made.state) > STATES.index(chains[key].state):
            chains[key] = made
    fused = counted(model, arguments)
    oxiwarp.unpatch(model)
    restored = difference(call(model, arguments), stock) == 0.0
    return Result(chains, (plain, fused), difference(patched, stock), restored), stock


def counted(model: nn.Module, arguments: dict[str, Any]) -> int:
    """Return the number of operators that one call of the model dispatches, or 0 if this model cannot run in
    a dispatch mode."""
    try:
        with Operators() as operators:
            call(model, arguments)
    # flex_attention compiles itself, which fails while a dispatch mode is active.
    except RuntimeError as error:
        if "torch dispatch mode" not in str(error):
            raise
        return 0
    return operators.count
