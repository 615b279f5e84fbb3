"""`oxiwarp.patch` changes a model in place, so that its blocks and norms run oxiwarp kernels. `unpatch`
restores the model.

Three subpackages make the new methods. `fusions` recognises blocks and attention processors by their source code, and
has hand-written methods for them. `norms` runs the original `forward` of a norm on a small tensor, and recognises the
norm by the result. `rewrite` rewrites expressions in the source of other methods. The module `class_swap` replaces the
method of an object.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from . import fusions, old_names  # noqa: F401  old module names for pickles
from .class_swap import Recipe, Unsuitable, base_of, is_replaced, recipe_of, replace, restore
from .inductor import is_decoders
from .norms.forward import NormRecipe
from .norms.gated import GatedNormRecipe
from .norms.probe import DtypePair, Formula
from .norms.recognise import Probed, is_candidate, recognise, takes_gate, weight_name
from .report import NO_KERNEL, Report
from .rewrite import recipe as rewrite

# Maps the mode of `patch` to a text for the report. The text says how closely the results of the RMSNorm
# kernel agree with those of a module's original `forward` in eager mode. In both modes, the kernel rounds at
# the same points as the original `forward`, because these roundings take no extra time. Only the order in
# which the squares of a row are summed is different.
EXACTNESS = {"exact": "same roundings", "fast": "same roundings"}
BLOCK = re.compile(r"(Block|Layer|Attention|AttnProcessor|Mlp|MLP|FeedForward)[\d_]*$")
"""Pattern for names of classes that are parts of a transformer."""
EXCLUDED = "excluded by only= or skip="
PATCHED_BEFORE = "excluded now, patched before"
NO_GPU = (
    "This machine has no CUDA GPU: the oxiwarp kernels will not run here. "
    "Patched modules run their original methods. (cpu_kernels=True runs the kernels on the CPU executor.)"
)


class Settings(NamedTuple):
    """The options of one `patch` call.

    Each recipe contains these options. A recipe is the data with which the new method of a replaced object is made.
    """

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
    """Replace methods of objects in a model, so that its blocks, attention processors, feed-forwards and
    norms run oxiwarp kernels.

    The model `x` is changed in place. Parameters, state dict, hooks, `.to()`, offloading, `torch.compile`, training,
    copying and pickling keep working. You may patch before or after `.to("cuda")`, and before or after enabling
    offloading. If the kernels do not support a call, the original method runs. Examples are calls with CPU tensors,
    float64 tensors or tensor subclasses, and calls under autocast or in forward-mode AD.

    Args:
        x: a diffusers pipeline (any object with `.components`), a transformers pipeline (any object with `.model`), or
            an nn.Module.
        mode (str): with "exact", the kernels round at the same points as the original methods. With "fast", a kernel
            that replaces several operations rounds once, instead of once per operation. "fast" also computes GELU in
            the epilogue of the preceding matrix multiplication, and sets `attention` to True by default. Not every
            kernel is faster with "fast". For each replaced class, the report says how closely the results agree with
            those of the original method.
        only, skip (str or list of str): `fnmatch` patterns of class names or dotted module names. `patch` considers
            the modules that match `only` and do not match `skip`. Default: all modules.
        cpu_kernels (bool): if True, replaced methods also run the kernels for CPU tensors, on the CPU
            executor. The CPU executor is slow. It is meant for tests and demonstrations.
        allow_empty (bool): if True and nothing was replaced, return a report without replacements instead of
            raising RuntimeError.
        attention (bool or None): if True, replaced attention processors call `oxiwarp.attention` for tensor sizes at
            which it was measured to be faster than torch's attention. Such measurements exist only for compute
            capability 9.0. `oxiwarp.attention` rounds differently from torch's attention. None means True with
            `mode="fast"` and False with `mode="exact"`.

    Returns:
        `Report`, which lists the replaced objects, and the objects that were not replaced, with the reason.

    Raises:
        TypeError: `x` is neither a pipeline nor an nn.Module, or a pattern is not a string.
        ValueError: `mode` is neither "exact" nor "fast".
        RuntimeError: nothing was replaced, and `allow_empty` is False. Also raised if an error occurs while
            an object is replaced; the message then names the object. After such an error, `x` is in the same
            state as before the call.

    Note:
        If `x` is already patched, its replaced objects get the `mode`, `cpu_kernels` and `attention` of this call.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.RMSNorm(8))
        >>> report = oxiwarp.patch(model)
        >>> oxiwarp.unpatch(model)
        1
    """
    if mode not in EXACTNESS:
        raise ValueError(f"patch: mode is {mode!r}, expected 'exact' or 'fast'")
    report = Report(mode)
    # `device_count` only calls NVML. Other functions would initialize CUDA in this process, and processes
    # that it forks afterwards could then not use CUDA.
    if not cpu_kernels and torch.cuda.device_count() == 0:
        report.warning = NO_GPU
    wanted = mode == "fast" if attention is None else attention
    settings = Settings(mode, cpu_kernels, fusions.attention_measured() if wanted else None)
    only, skip = as_patterns("only", only, ["*"]), as_patterns("skip", skip, [])
    probed: Probed = {}
    # The objects whose methods this call replaced, each with its previous recipe, or None if it was not
    # patched before.
    done: list[tuple[Any, Recipe | None]] = []
    # Maps dotted module names to remarks for the report.
    inner: dict[str, str] = {}
    considered: set[int] = set()
    try:
        names, owners = names_of(x), owners_of(x)
        for name, part in candidates(x):
            considered.add(id(part))
            cls, before = base_of(part), recipe_of(part)
            own = names.get(id(part), [name])
            if not matches(only, own, cls) or matches(skip, own, cls):
                what = (
                    {"reason": EXCLUDED}
                    if before is None
                    else {**outcome(before, mode, part), "reason": PATCHED_BEFORE}
                )
                report.add(name, fusions.dotted(cls), **what)
                continue
            recipe = replace_one(report, name, part, settings, probed, inner.get(name, ""), owners.get(id(part)))
            if recipe is not None:
                done.append((part, before))
                inner.update(not_called(name, recipe))
    except BaseException:
        for part, before in done:
            put_back(part, before)
        raise
    if not done and not allow_empty:
        raise RuntimeError(f"patch: nothing to replace in {type(x).__name__} (allow_empty=True accepts that)\n{report}")
    report.notes.extend(without_chain(x, considered))
    report.notes.extend(fusions.notes(report.ops, decoder=any(is_decoders(base_of(part)) for part, _ in done)))
    if settings.attention and any(not isinstance(part, nn.Module) for part, _ in done):
        report.notes.append(fusions.attention_note(settings.attention))
    return report


def unpatch(x: Any) -> int:
    """Restore the original class and method of every object in `x` that `patch` replaced.

    Args:
        x: a pipeline or an nn.Module, as for `patch`.

    Returns:
        int, the number of restored objects. It is 0 if `x` is not patched.

    Raises:
        TypeError: `x` is neither a pipeline nor an nn.Module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.RMSNorm(8))
        >>> report = oxiwarp.patch(model)
        >>> oxiwarp.unpatch(model)
        2
    """
    return sum(restore(part) for part in replaced_parts(x))


@contextmanager
def patched(x: Any, **options: Any) -> Iterator[Report]:
    """Patch `x` during a `with` block, and restore the previous state after the block.

    Objects that were already patched before the block have their previous options again after the block.

    Args:
        x: a pipeline or an nn.Module, as for `patch`.
        **options: keyword arguments for `patch`.

    Returns:
        Context manager. The target of `with ... as` is the `Report` of `patch`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `patch`, when the block is entered.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.RMSNorm(8))
        >>> with oxiwarp.patched(model) as report:
        ...     y = model(torch.ones(1, 8))
        >>> oxiwarp.unpatch(model)
        0
    """
    # Keep references to all modules and processors of `x`, so that objects that the `with` block removes from
    # `x` can be restored, too. The references also prevent Python from freeing such an object and giving its
    # `id` to a new one.
    before = {id(part): (part, recipe_of(part)) for _, part in named_parts(x)}
    before |= {id(part): (part, recipe_of(part)) for part in replaced_parts(x)}
    report = patch(x, **options)
    try:
        yield report
    finally:
        for part, recipe in ({id(part): (part, None) for part in replaced_parts(x)} | before).values():
            put_back(part, recipe)


def replace_one(
    report: Report, name: str, part: Any, settings: Settings, probed: Probed, remark: str, owner: Any
) -> Recipe | None:
    """Replace the method of `part`, and return the recipe (the data that the new method needs).

    If no replacement is possible, return None. In both cases, add `part` to the report, with the text `remark`. If
    `part` is an attention processor, `owner` is the module that has this processor.
    """
    path = fusions.dotted(base_of(part))
    try:
        recipe = recipe_for(part, settings, probed, owner)
        replace(part, recipe)
    except Unsuitable as why:
        report.add(name, path, reason=str(why))
        return None
    except Exception as error:
        raise RuntimeError(f"patch: {name or 'x'} ({path}): {type(error).__name__}: {error}") from error
    what = outcome(recipe, settings.mode, part)
    report.watch(path, type(part))
    report.add(name, path, **{**what, "reason": "; ".join(filter(None, (remark, what["reason"])))})
    return recipe


def put_back(x: Any, recipe: Recipe | None) -> None:
    """Give `x` the new method that `recipe` describes. If `recipe` is None, give `x` its original method."""
    if recipe is None:
        restore(x)
    else:
        replace(x, recipe)


def recipe_for(x: Any, settings: Settings, probed: Probed, owner: Any) -> Recipe:
    """Return the recipe for `x`: the data that the new method of `x` needs.

    If no replacement is possible, raise `Unsuitable` with the reason.
    """
    cls = base_of(x)
    found, why = fusions.find(cls), None
    if found is not None:
        fusion, known = found
        try:
            fusion.check(x, cls, known)
            return fusions.FusedRecipe(fusion.name, *settings, fusion.kinds(x))
        except Unsuitable as error:
            why = error
    elif isinstance(x, nn.Module) and is_candidate(x):
        try:
            formulas, eps_name = recognise(x, probed)
            kind = GatedNormRecipe if takes_gate(cls) else NormRecipe
            return kind(formulas, eps_name, settings.cpu_kernels, weight_name(x))
        except Unsuitable as error:
            why = error
    # Rewrite the method if possible. A fusion (a hand-written replacement for the method) may replace more
    # operations than the rewriting does. Therefore, the report also says why the fusion of the class does not
    # apply, if there is one.
    text = "" if found is None or why is None else str(why)
    try:
        recipe = rewrite.recipe_for(x, *settings, text, owner)
    except Unsuitable as error:
        raise why or error from None
    if recipe is None:
        raise why or Unsuitable("it has no chain of operations for which there is a kernel")
    return recipe


def outcome(recipe: Any, mode: str, x: Any) -> dict[str, str]:
    """Return what the report says about a replaced object `x`: operators, exactness and a remark. The result
    is a dict of keyword arguments for `Report.add`.

    `recipe` is the data that the new method of `x` needs.
    """
    if isinstance(recipe, NormRecipe):
        op = "rms_norm_gated" if isinstance(recipe, GatedNormRecipe) else "rms_norm"
        return {"op": op, "exactness": EXACTNESS[mode], "reason": remark(recipe.formulas)}
    if isinstance(recipe, rewrite.RewrittenRecipe):
        return recipe.outcome()
    fusion = fusions.FUSIONS.get(recipe.fusion)
    if fusion is None:  # A pickle of an older version contains this recipe, see `FusedRecipe.methods`.
        return {"op": NO_KERNEL, "exactness": "bit-exact", "reason": ""}
    asked = recipe.attention and fusion.method == "__call__"
    exactness = fusion.promise(recipe.mode) + (", but for the attention" if asked else "")
    return {"op": fusion.ops, "exactness": exactness, "reason": "" if fusion.kernels else "; ".join(fusion.chains)}


def not_called(name: str, recipe: Recipe) -> dict[str, str]:
    """Return a dict with a remark for each submodule that the new method of the module `name` does not call.
    The remarks are for the report.

    The keys of the dict are the dotted names of these submodules.
    """
    if not isinstance(recipe, fusions.FusedRecipe):
        return {}
    fusion = fusions.FUSIONS[recipe.fusion]
    owner = name.removesuffix("processor") if fusion.method == "__call__" else f"{name}." if name else ""
    return {owner + path: f"used where {fusion.name} runs its own" for path in fusion.skips}


def candidates(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield a pair (dotted name, object) for each candidate in `x`.

    A candidate is an object whose method `patch` may be able to replace. There are three kinds: an RMSNorm, an object
    whose class has a fusion, and an object with a method that oxiwarp may rewrite. A fusion is a hand-written
    replacement for the method of a known class. A rewritten method is the original method with kernel calls in place of
    some operations.
    """
    for name, part in named_parts(x):
        cls = base_of(part)
        norm = isinstance(part, nn.Module) and is_candidate(part)
        if norm or fusions.find(cls) is not None or rewrite.method_of(cls) is not None:
            yield name, part


def without_chain(x: Any, considered: set[int]) -> list[str]:
    """Return a note for the report: the classes of blocks, layers, attentions and feed-forwards in `x` that are no
    candidates, because no kernel resembles an expression of theirs.

    `considered` has the `id` of each candidate.
    """
    others = (part for _, part in named_parts(x) if id(part) not in considered)
    classes = Counter(base_of(part).__name__ for part in others if is_block(part))
    made = ", ".join(f"{name} × {count}" for name, count in sorted(classes.items()))
    return [f"without an expression that a kernel computes: {made}"] if made else []


def is_block(x: Any) -> bool:
    """Return whether `x` is a block, a layer, an attention, an attention processor or a feed-forward of a model,
    according to the name of its class."""
    cls = base_of(x)
    return BLOCK.search(cls.__name__) is not None and cls.__module__.partition(".")[0] not in (
        "torch",
        "oxiwarp",
        "peft",
    )


def named_parts(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield a pair (dotted name, object) for each module in `x`, and for the attention processor of each
    module that has one.

    Each object is yielded once.
    """
    seen: set[int] = set()
    for name, module in named_modules(x):
        yield name, module
        processor = module.__dict__.get("processor")
        if processor is not None and id(processor) not in seen and hasattr(processor, "__dict__"):
            seen.add(id(processor))
            yield f"{name}.processor" if name else "processor", processor


def owners_of(x: Any) -> dict[int, nn.Module]:
    """Return a dict that maps the `id` of each attention processor in `x` to the module that has this
    processor.

    The dict omits processors that several modules share.
    """
    found: dict[int, list[nn.Module]] = {}
    for _, module in named_modules(x):
        if (processor := module.__dict__.get("processor")) is not None:
            found.setdefault(id(processor), []).append(module)
    return {key: modules[0] for key, modules in found.items() if len(modules) == 1}


def replaced_parts(x: Any) -> list[Any]:
    """Return every object in `x` whose method `patch` replaced: modules, and attention processors.

    A processor may be in any attribute of a module, or in a dict that is an attribute. For example,
    diffusers' `fuse_qkv_projections` stores the previous processors in a dict of the model.
    """
    found: dict[int, Any] = {}
    pending = [part for _, part in named_parts(x)]
    seen = {id(part) for part in pending}
    while pending:
        part = pending.pop()
        if is_replaced(part):
            found[id(part)] = part
        for value in vars(part).values():
            for inner in value.values() if type(value) is dict else (value,):
                # Attention processors have no common base class. Therefore examine every object that may be a
                # processor.
                if id(inner) not in seen and (is_replaced(inner) or is_processor(inner)):
                    seen.add(id(inner))
                    pending.append(inner)
    return list(found.values())


def is_processor(x: Any) -> bool:
    """Return whether `x` may be an attention processor: a callable object that is neither a module nor a
    class.
    """
    return callable(x) and not isinstance(x, (nn.Module, type)) and type(getattr(x, "__dict__", None)) is dict


def names_of(x: Any) -> dict[int, list[str]]:
    """Return a dict that maps the `id` of each module in `x` to all dotted names of the module.

    A module that is used in several places has several names.
    """
    names: dict[int, list[str]] = {}
    for prefix, root in roots(x):
        for name, module in root.named_modules(prefix=prefix, remove_duplicate=False):
            names.setdefault(id(module), []).append(name)
    return names


def named_modules(x: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield a pair (dotted name, module) for each module in `x`, each module once."""
    seen: set[nn.Module] = set()
    for prefix, root in roots(x):
        yield from root.named_modules(memo=seen, prefix=prefix)


def roots(x: Any) -> list[tuple[str, nn.Module]]:
    """Return pairs (name, module) of the root modules of `x`: `x` itself, the components of a pipeline, or
    `x.model`.
    """
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
    """Return the patterns as a list, or `default` if `patterns` is None.

    `argument` is the name of the argument for the error message: "only" or "skip".
    """
    if patterns is None:
        return default
    made = list(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]
    for pattern in made:
        if not isinstance(pattern, str):
            got = f"the class {pattern.__name__}" if isinstance(pattern, type) else repr(pattern)
            raise TypeError(f"patch: {argument} has {got}, expected class names or dotted names, as strings")
    return made


def matches(patterns: Iterable[str], names: list[str], cls: type) -> bool:
    """Return whether one of `patterns` matches the name of the class `cls` or one of the dotted names
    `names`.
    """
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in (*names, cls.__name__))


def remark(formulas: dict[DtypePair, Formula]) -> str:
    """Return a remark for the report that names the dtypes for which a replaced norm runs its original
    forward.

    If there are no such dtypes, the remark is an empty string.
    """
    covered = {dtype for dtype, weight_dtype in formulas if weight_dtype in (None, dtype)}
    missing = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if dtype not in covered]
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in missing)
    return f"its own forward for {names}" if names else ""


__all__ = ["patch", "patched", "unpatch"]
