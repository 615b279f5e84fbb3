"""`oxiwarp.patch`: kernels for the blocks and norms of a pipeline, a model or a module, in place; `unpatch` takes them
out again.

Blocks and attention processors are known by their source (`fusions/`), norms by what their own forward makes of a small
tensor (`norms/`); how an object gets another method is in `class_swap.py`.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from . import fusions, old_names  # noqa: F401  under which pickles find modules
from .class_swap import Recipe, Unsuitable, base_of, is_replaced, recipe_of, replace, restore
from .inductor import is_decoders
from .norms.forward import NormRecipe
from .norms.probe import DtypePair, Formula
from .norms.recognise import Probed, is_candidate, recognise
from .report import Report

# Per mode: what the kernel promises against the module's own eager forward. Both modes have the same casts in the same
# places for RMSNorm, because it costs nothing; only the order in which a row is summed differs from torch's.
EXACTNESS = {"exact": "same roundings", "fast": "same roundings"}
EXCLUDED = "excluded by only= or skip="
PATCHED_BEFORE = "excluded now, patched before"


class Settings(NamedTuple):
    """What a call of `patch` asks for, beside what is to be replaced."""

    mode: str
    cpu_kernels: bool
    attention: str | None


def patch(
    x: Any,
    mode: str = "exact",
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
    cpu_kernels: bool = False,
    allow_empty: bool = False,
    attention: bool | None = None,
) -> Report:
    """Run blocks, attention processors, feed-forwards and norms of `x` on oxiwarp's kernels, in place.

    Parameters, state dict, hooks, dtype and device moves, offloading, `torch.compile`, training, copying and pickling
    keep working. It may come before or after `.to("cuda")` and before or after offloading. A call that no kernel fits
    goes to the object's own method: a CPU tensor, another dtype, autocast, a tensor subclass, forward-mode AD, inputs
    that a block's kernels do not take.

    Args:
        x: a diffusers pipeline (anything with `.components`), a transformers pipeline (anything with `.model`), or an
            nn.Module.
        mode: "exact", the strictest agreement with the own method that the ops have, or "fast", which rounds once a
            chain and not once a step, has GELUs in the products before them, and implies `attention`. A kernel by
            itself is not always faster so. The report says which agreement there is.
        only, skip: patterns (as for file names) of class names or dotted module names; `only` limits what is looked at,
            `skip` takes out of it.
        cpu_kernels: also run CPU tensors, on the CPU executor. Slow: for tests and demonstrations.
        allow_empty: return an empty report where nothing was replaced, instead of raising.
        attention: let fused attention processors call `oxiwarp.attention` where it was measured to be faster than what
            torch chooses, which is on compute capability 9.0 alone. It rounds otherwise than torch's. None: in mode
            "fast" alone.

    Returns:
        A `Report`: what was replaced, what was left and why. Patching again is fine, and changes mode, `cpu_kernels`
        and `attention`.

    Raises:
        TypeError: `x` is none of these, or a pattern is no string. ValueError: another mode. RuntimeError: nothing was
            replaced, or a module could not be, which is named: then all are as they were before the call.
    """
    if mode not in EXACTNESS:
        raise ValueError(f"patch: mode is {mode!r}, expected 'exact' or 'fast'")
    report = Report(mode)
    wanted = mode == "fast" if attention is None else attention
    settings = Settings(mode, cpu_kernels, fusions.attention_measured() if wanted else None)
    only, skip = as_patterns("only", only, ["*"]), as_patterns("skip", skip, [])
    probed: Probed = {}
    done: list[tuple[Any, Recipe | None]] = []  # what this call replaced, and what it had before
    inner: dict[str, str] = {}  # what replaced blocks call in their own method only, and what the report says of it
    try:
        names = names_of(x)
        for name, part in candidates(x):
            cls, before = base_of(part), recipe_of(part)
            own = names.get(id(part), [name])
            if not matches(only, own, cls) or matches(skip, own, cls):
                what = {"reason": EXCLUDED} if before is None else {**outcome(before, mode), "reason": PATCHED_BEFORE}
                report.add(name, fusions.dotted(cls), **what)
                continue
            recipe = replace_one(report, name, part, settings, probed, inner.get(name, ""))
            if recipe is not None:
                done.append((part, before))
                inner.update(not_called(name, recipe))
    except BaseException:
        for part, before in done:
            put_back(part, before)
        raise
    if not done and not allow_empty:
        raise RuntimeError(f"patch: nothing to replace in {type(x).__name__} (allow_empty=True accepts that)\n{report}")
    report.notes.extend(fusions.notes(report.ops, decoder=any(is_decoders(base_of(part)) for part, _ in done)))
    if settings.attention and any(not isinstance(part, nn.Module) for part, _ in done):
        report.notes.append(fusions.attention_note(settings.attention))
    return report


def unpatch(x: Any) -> int:
    """Give everything in `x` that `patch` replaced its own method back, exactly. Returns how many there were."""
    return sum(restore(part) for part in replaced_parts(x))


@contextmanager
def patched(x: Any, **options: Any) -> Iterator[Report]:
    """`patch` for the length of a `with` block; `options` as for `patch`. What was replaced before stays replaced."""
    # With the parts themselves: one that the block takes out is put back too, and its id is not another's meanwhile.
    before = {id(part): (part, recipe_of(part)) for _, part in named_parts(x)}
    before |= {id(part): (part, recipe_of(part)) for part in replaced_parts(x)}
    report = patch(x, **options)
    try:
        yield report
    finally:
        for part, recipe in ({id(part): (part, None) for part in replaced_parts(x)} | before).values():
            put_back(part, recipe)


def replace_one(report: Report, name: str, part: Any, settings: Settings, probed: Probed, remark: str) -> Recipe | None:
    """Replace one object and say so in the report, or say why not, with no recipe."""
    path = fusions.dotted(base_of(part))
    try:
        recipe = recipe_for(part, settings, probed)
        replace(part, recipe)
    except Unsuitable as why:
        report.add(name, path, reason=str(why))
        return None
    except Exception as error:
        raise RuntimeError(f"patch: {name or 'x'} ({path}): {type(error).__name__}: {error}") from error
    what = outcome(recipe, settings.mode)
    report.add(name, path, **{**what, "reason": "; ".join(filter(None, (remark, what["reason"])))})
    return recipe


def put_back(x: Any, recipe: Recipe | None) -> None:
    """Replaced by this recipe, or not at all."""
    if recipe is None:
        restore(x)
    else:
        replace(x, recipe)


def recipe_for(x: Any, settings: Settings, probed: Probed) -> Recipe:
    """How `x` is replaced. Raises `Unsuitable` with the reason where it is not."""
    found = fusions.find(base_of(x))
    if found is not None:
        fusion, known = found
        fusion.check(x, base_of(x), known)
        return fusions.FusedRecipe(fusion.name, *settings, fusion.kinds(x))
    formulas, eps_name = recognise(x, probed)
    return NormRecipe(formulas, eps_name, settings.cpu_kernels)


def outcome(recipe: Any, mode: str) -> dict[str, str]:
    """What the report says of an object with this recipe."""
    if isinstance(recipe, NormRecipe):
        return {"op": "rms_norm", "exactness": EXACTNESS[mode], "reason": remark(recipe.formulas)}
    fusion = fusions.FUSIONS[recipe.fusion]
    asked = recipe.attention and fusion.method == "__call__"
    exactness = fusion.promise(mode) + (", but for the attention" if asked else "")
    return {"op": fusion.ops, "exactness": exactness, "reason": "" if fusion.kernels else "; ".join(fusion.chains)}


def not_called(name: str, recipe: Recipe) -> dict[str, str]:
    """What the report says of the modules whose work the method of the object `name` does itself, by dotted name."""
    if not isinstance(recipe, fusions.FusedRecipe):
        return {}
    fusion = fusions.FUSIONS[recipe.fusion]
    owner = name.removesuffix("processor") if fusion.method == "__call__" else f"{name}." if name else ""
    return {owner + path: f"used where {fusion.name} runs its own" for path in fusion.skips}


def candidates(x: Any) -> Iterator[tuple[str, Any]]:
    """Name and object of everything in `x` that a kernel may serve: norms, and what a fusion is written for."""
    for name, part in named_parts(x):
        if fusions.find(base_of(part)) is not None or (isinstance(part, nn.Module) and is_candidate(part)):
            yield name, part


def named_parts(x: Any) -> Iterator[tuple[str, Any]]:
    """Dotted name of every module in `x` and of the processors that attention modules hold, each once."""
    seen: set[int] = set()
    for name, module in named_modules(x):
        yield name, module
        processor = module.__dict__.get("processor")
        if processor is not None and id(processor) not in seen and hasattr(processor, "__dict__"):
            seen.add(id(processor))
            yield f"{name}.processor" if name else "processor", processor


def replaced_parts(x: Any) -> list[Any]:
    """Every replaced object that `x` has, each once: modules and processors, and processors that these hold or a model
    keeps for later (`fuse_qkv_projections` keeps those from before)."""
    found: dict[int, Any] = {}
    pending = [part for _, part in named_parts(x)]
    seen = {id(part) for part in pending}
    while pending:
        part = pending.pop()
        if is_replaced(part):
            found[id(part)] = part
        for value in vars(part).values():
            for inner in value.values() if type(value) is dict else (value,):
                # A processor has no class in common with others: what is followed is what holds one that is replaced.
                if id(inner) not in seen and (is_replaced(inner) or is_processor(inner)):
                    seen.add(id(inner))
                    pending.append(inner)
    return list(found.values())


def is_processor(x: Any) -> bool:
    """Whether this may be an attention processor of any library: an object that is called, and no module or class."""
    return callable(x) and not isinstance(x, (nn.Module, type)) and type(getattr(x, "__dict__", None)) is dict


def names_of(x: Any) -> dict[int, list[str]]:
    """All dotted names of each module in `x`, by its `id`: a module may be held in several places."""
    names: dict[int, list[str]] = {}
    for prefix, root in roots(x):
        for name, module in root.named_modules(prefix=prefix, remove_duplicate=False):
            names.setdefault(id(module), []).append(name)
    return names


def named_modules(x: Any) -> Iterator[tuple[str, nn.Module]]:
    """Dotted name and module of everything in `x`, each module once."""
    seen: set[nn.Module] = set()
    for prefix, root in roots(x):
        yield from root.named_modules(memo=seen, prefix=prefix)


def roots(x: Any) -> list[tuple[str, nn.Module]]:
    """The modules that `x` is or holds, with the names by which it holds them."""
    if isinstance(x, nn.Module):
        return [("", x)]
    components = getattr(x, "components", None)
    if isinstance(components, Mapping):
        return [(name, part) for name, part in components.items() if isinstance(part, nn.Module)]
    model = getattr(x, "model", None)
    if isinstance(model, nn.Module):
        return [("model", model)]
    raise TypeError(f"patch: expected a pipeline or an nn.Module, got {type(x).__name__}")


def as_patterns(argument: str, patterns: str | Iterable[str] | None, default: list[str]) -> list[str]:
    """`only` and `skip` as a list."""
    if patterns is None:
        return default
    made = list(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]
    for pattern in made:
        if not isinstance(pattern, str):
            got = f"the class {pattern.__name__}" if isinstance(pattern, type) else repr(pattern)
            raise TypeError(f"patch: {argument} has {got}, expected class names or dotted names, as strings")
    return made


def matches(patterns: Iterable[str], names: list[str], cls: type) -> bool:
    """Whether a pattern fits a dotted name or the class name."""
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in (*names, cls.__name__))


def remark(formulas: dict[DtypePair, Formula]) -> str:
    """Which dtypes keep the module's own forward, where an input in 16 bits does."""
    covered = {dtype for dtype, weight_dtype in formulas if weight_dtype in (None, dtype)}
    missing = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if dtype not in covered]
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in missing)
    return f"its own forward for {names}" if names else ""


__all__ = ["patch", "patched", "unpatch"]
