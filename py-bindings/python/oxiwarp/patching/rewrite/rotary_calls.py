"""The functions that rewritten methods call for rotary embeddings, and for the norms of queries and keys that
precede a rotary embedding."""

import functools
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...ops._register import PLAIN, may_write, needs_grad
from ..fusions.core.operands import as_rows
from ..sites import RAN, Site
from .deferred import Deferred, Joined, Normed, Rotated, computed, deferred, rejected
from .operands import FLOAT
from .rotary import (
    CONSTANTS,
    Rotation,
    Signature,
    Unknown,
    leaves_of,
    rotation_of,
    shape_of,
    shapes,
    signature_of,
)
from .traced import Traced, plain_signature

Own = Callable[..., Any]
IN_FLOAT64 = "the rotary function computes in float64; mode='fast' rotates 16-bit tensors in float32"
FIXED = ("function", "target")
"""The operands of a chain with a rotary function that are not arguments of the function."""
MOST_SHAPES = 1024
"""Maximum number of entries in the dictionary `RotaryCalls.known`."""
compiling = torch.compiler.is_compiling


class RotaryCalls:
    """The functions that rewritten methods call for rotary embeddings. The attributes have the options of `patch`."""

    mode: str
    cpu_kernels: bool
    site: Callable[[Any], Site]
    attempt: Callable[..., Any]
    traced: Traced | None
    """Recognises rotary functions under torch.compile."""

    def __init__(self) -> None:
        self.rotations: dict[Any, Rotation | None] = {}
        self.known: dict[Any, Rotation | str] = {}
        """The results of `probed`, by the shapes of the arguments. A lookup here takes less time than
        computing a signature for each call."""

    def rotary(self, at: int, own: Own, options: tuple[Any, ...], **given: Any) -> Any:
        """Compute a call of a rotary function."""
        return self.rotated(at, own, given, self.rotation(at, own, given))

    def rotated(self, at: int, own: Own, given: dict[str, Any], found: Rotation | str) -> Any:
        """Compute the result of a rotary function with a kernel if possible. Otherwise evaluate the original
        expression."""
        if isinstance(found, Rotation):
            args = arguments(given)
            heads, leaves = args[: found.number], leaves_of(args[found.number :])
            made = self.attempt(at, lambda: rotate(found, heads, leaves, self.mode))
            if made is not None:
                return made if found.number > 1 else made[0]
        elif found:
            self.site(at).note(found)
        return own(**{name: computed(value) for name, value in given.items()})

    def rotary_pair(
        self, at: int, own: Own, options: tuple[Any, ...], late: bool = False, *, other: Any, **given: Any
    ) -> tuple[Any, Any]:
        """Compute the results of two calls of a rotary function, one for queries and one for keys. All other
        arguments of both calls are the same.

        If `late` is True, the results may be two `Rotated` objects: placeholders for rotated tensors that are
        not computed yet.
        """
        second = {**given, "a0": other}
        if compiling():
            found = again = self.rotation_traced(at, given, other)
        else:
            x, found = given["a0"], self.rotation(at, own, given)
            alike = type(other) is type(x) and other.shape == x.shape and other.dtype == x.dtype
            again = found if alike else self.rotation(at, own, second)
        if isinstance(found, Rotation) and found.number == 1 and found is again:
            args = arguments(given)
            heads, leaves = (args[0], other), leaves_of(args[1:])

            def run(out: Any) -> Any:
                if out is not None:
                    offset = found.offset(heads[0], leaves)
                    self.site(at).note(RAN)
                    return normed(found, heads, found.tables(leaves, heads[0].dtype), self.mode, out, offset)
                made = self.attempt(at, lambda: rotate(found, heads, leaves, self.mode))
                return made or (self.rotated(at, own, given, ""), self.rotated(at, own, second, ""))

            if late and may_be_late(found, heads, self.mode):
                held: list[Any] = []
                return Rotated(heads, 0, run, held), Rotated(heads, 1, run, held)
            return run(None)
        return self.rotated(at, own, given, found), self.rotated(at, own, second, again)

    def joined_pair(self, at: int, cat: Callable[..., Any], queries: Any, keys: Any, dim: int = 0) -> tuple[Any, Any]:
        """Return `cat(queries, dim)` and `cat(keys, dim)`.

        If a query or key in the lists is not computed yet, the kernel writes it directly into the
        concatenated tensor.
        """
        made = None
        if any([isinstance(x, Deferred) for x in queries]) and cat is torch.cat:
            streams = list(zip(queries, keys, strict=True))
            if why := unjoined(streams, dim):
                self.site(at).note(why)
            else:
                made = self.attempt(at, lambda: written(streams, dim))
        return made or (cat([computed(x) for x in queries], dim), cat([computed(x) for x in keys], dim))

    def rotation(self, at: int, own: Own, given: dict[str, Any]) -> Rotation | str:
        """Return the `Rotation` (how to call `oxiwarp.rope`) that a rotary function computes, or the reason
        why no kernel computes it.

        The first call with a new signature (shapes, dtypes and constants) runs the function on small random tensors.
        Under torch.compile, return "". `rotation_traced` then recognises the rotations that one kernel computes
        together with norms, and Inductor compiles all others.
        """
        if compiling():
            return ""
        x = given["a0"]
        if why := rejected(x, self.cpu_kernels):
            return why
        function = identity(given["function"])
        if function is None:
            return "the rotary function has a closure"
        args = arguments(given)
        target = given.get("target", x)
        if (target if isinstance(target, torch.dtype) else getattr(target, "dtype", None)) != x.dtype:
            return unknown_in(signature_of_call(args)) or "the result has another dtype than the operand"
        key = at, function, fingerprint(args)
        found = self.known.get(key)
        if found is None:
            found = self.probed(at, own, given, args, function)
            if len(self.known) >= MOST_SHAPES:
                self.known.clear()
            self.known[key] = found
        return found

    def probed(
        self, at: int, own: Own, given: dict[str, Any], args: tuple[Any, ...], function: Hashable
    ) -> Rotation | str:
        """Return the `Rotation` (how to call `oxiwarp.rope`) that a rotary function computes, or the reason
        why no kernel does.

        The result depends only on `function` and on the signature of the arguments: shapes, dtypes and
        constants.
        """
        signature = signature_of_call(args)
        if why := unknown_in(signature):
            return why
        names = [name for name in given if name not in FIXED]
        fixed = {"function": given["function"], **({"target": given["a0"].dtype} if "target" in given else {})}

        def found(few: bool) -> Rotation | None:
            key = at, function, signature, few
            if key not in self.rotations:
                self.rotations[key] = rotation_of(
                    lambda *args: own(**fixed, **dict(zip(names, args, strict=True))), signature, few
                )
            return self.rotations[key]

        made = found(False)
        if made is not None and made.has_few_tokens(args):
            made = found(True)
        if made is not None and made.form == "wide_complex" and (self.mode != "fast" or given["a0"].dtype == FLOAT):
            return IN_FLOAT64
        return unrecognised(signature) if made is None else made

    def rotation_traced(self, at: int, given: dict[str, Any], other: Any) -> Rotation | str:
        """Return the `Rotation` of two calls under torch.compile, or "". `other` is the first argument of the second
        call.

        If no kernel computes the norms together with the rotation, the result is "". Inductor then compiles the
        original code.
        """
        heads = given["a0"], other
        args = arguments(given)
        if self.traced is None or "target" in given or not all([isinstance(x, Normed | Joined) for x in heads]):
            return ""
        signature, second = plain_signature(args), plain_signature((other,))
        if signature is None or second is None or second[0] != signature[0]:
            return ""
        fields = self.traced.rotation(at, signature, self.mode)
        found = None if fields is None else Rotation(*fields)
        return "" if found is None or found.has_few_tokens(args) else found

    def rotary_part(
        self, at: int, own: Own, options: tuple[Any, ...], dim: int, start: int, stop: int, in_place: bool, **given: Any
    ) -> Any:
        """Rotate the tokens from `start` to `stop` of the tensor `a0`. Return all tokens of `a0`.

        `dim` is the token dimension of `a0`. One of `start` and `stop` is None. `in_place` says whether the
        original method writes to `a0`. `a0` may be a placeholder for a norm that is not computed yet; the
        result is then a new tensor.
        """
        x = given["a0"]
        index = (*(slice(None),) * dim, slice(start, stop))
        if isinstance(x, Joined):
            x = x.now()
        if not compiling() and (isinstance(x, Normed) or not in_place):
            first, last, _ = slice(start, stop).indices(x.shape[dim])
            given["a0"] = x.viewed("__getitem__", (index,)) if isinstance(x, Normed) else x[index]
            found = self.rotation(at, own, given)
            if isinstance(found, Rotation) and first < last and self.takes_part(found, dim):
                leaves = leaves_of(arguments(given)[1:])
                run = functools.partial(normed, found, (x,), found.tables(leaves, x.dtype), self.mode, offset=first)
                made = self.attempt(at, lambda: run()[0])
                if made is not None:
                    return made
        x = computed(x)
        given["a0"] = x[index]
        rotated = self.rotary(at, own, options, **given)
        if in_place:
            x[index] = rotated
            return x
        kept = (*index[:-1], slice(stop, None) if start is None else slice(start))
        rest = x[kept]
        return torch.cat([rotated, rest] if start is None else [rest, rotated], dim)

    def takes_part(self, found: Rotation, dim: int) -> bool:
        """Return whether `qk_norm_rope` can normalize all tokens and rotate only some of them. `dim` is the
        index of the token dimension."""
        known = found.number == 1 and found.whole and found.form != "matrices"
        return known and found.layout.find("S") == dim and (found.mode == "exact" or self.mode == "fast")

    def deferred_norm(self, module: Any, x: Any, wide: bool = False) -> Any:
        """Return the norm of queries or keys, or a `Normed` (a placeholder for the norm, which is not
        computed yet).

        If `wide` is True, the original code casts the norm's input to float32 and its result back.
        """
        return deferred(module, x.now() if isinstance(x, Deferred) else x, self.cpu_kernels, wide)

    def head_norm(self, at: int, module: Any, x: Any, wide: bool = False) -> Any:
        """Compute a norm of queries or keys with a kernel, or with the module if the kernel cannot run.

        The kernel adds the squares of a row in the same order as the module, so both results have the same bits.
        """
        made = deferred(module, x, self.cpu_kernels, wide)
        if not isinstance(made, Normed):
            if not compiling():
                self.site(at).note("the norm has another formula, or the operand has no kernel")
            return made
        found = self.attempt(at, made.kernel)
        return made.original() if found is None else found


def may_be_late(how: Rotation, heads: tuple[Any, ...], mode: str) -> bool:
    """Return whether the rotation of `heads` (queries and keys) may be computed later, when the tensor for its results
    is known.

    This requires that one kernel computes norms and rotation, and that this kernel may write into a slice of
    a larger tensor.
    """
    if how.joint is None or how.form == "matrices" or (how.mode == "fast" and mode == "exact"):
        return False
    return not any([isinstance(x, Joined) for x in heads]) and not recorded([heads])


def unjoined(streams: list[tuple[Any, Any]], dim: int) -> str:
    """Return the reason why kernels cannot write the queries and keys of `streams` into concatenated tensors, or ""."""
    rank = len(streams[0][0].shape)
    if dim % rank == rank - 1 or recorded([[x] for x in tensors_of(streams)]):
        return "autograd or a transform of torch.func is active"
    at = dim % rank
    for own, first in enumerate(streams[0]):
        shapes = [[*stream[own].shape[:at], *stream[own].shape[at + 1 :]] for stream in streams]
        if any([shape != shapes[0] for shape in shapes]):
            return "the parts differ in shape"
        if any([stream[own].dtype != first.dtype for stream in streams]):
            return "the parts differ in dtype"
    return ""


def written(streams: list[tuple[Any, Any]], dim: int) -> tuple[Tensor, ...]:
    """Return two tensors: the queries and the keys of all `streams`, such as text and image, concatenated
    along `dim`.

    Raise RuntimeError if a kernel does not support one of the tensors. The caller has checked the other tensors
    with `unjoined`.
    """
    firsts = streams[0]
    at, outs = dim % len(firsts[0].shape), []
    like = tensors_of(streams)[0]
    for own, first in enumerate(firsts):
        shape = list(first.shape)
        for stream in streams[1:]:
            shape[at] += stream[own].shape[at]
        outs.append(like.new_empty(shape, dtype=first.dtype))
    begin = 0
    for stream in streams:
        size = stream[0].shape[at]
        places = tuple([out.narrow(at, begin, size) for out in outs])
        begin += size
        x, y = stream
        if isinstance(x, Rotated) and isinstance(y, Rotated) and x.run is y.run and not x.held:
            x.run(places)
        elif isinstance(x, Normed) and isinstance(y, Normed):
            normed(None, stream, (), "exact", places)
        else:
            for place, one in zip(places, stream, strict=True):
                place.copy_(computed(one))
    return tuple(outs)


def tensors_of(streams: list[tuple[Any, Any]]) -> list[Any]:
    """Return one tensor for each query and key of several streams. If a query or key is a norm that is not
    computed yet, return the norm's input."""
    heads = [one.heads if isinstance(one, Rotated) else (one,) for stream in streams for one in stream]
    return [one.x if isinstance(one, Normed) else one for parts in heads for one in parts]


def arguments(given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a rotary function in the order of the function's parameters. In `given`, the arguments
    have this order, too, because Python evaluates them in this order.
    """
    return tuple([value for name, value in given.items() if name not in FIXED])


def fingerprint(args: tuple[Any, ...] | list[Any]) -> tuple[Any, ...]:
    """Return a fingerprint of the arguments of a call, to use as a cache key. It has the shape and dtype of
    each tensor, and the type and value of each constant.

    Arguments with equal fingerprints have equal signatures (`signature_of_call`). A fingerprint takes less
    time to compute than a signature.
    """
    found: list[Any] = []
    for x in args:
        kind = type(x)
        if kind in PLAIN or issubclass(kind, Deferred):
            found += (x.shape, x.dtype)
        elif issubclass(kind, tuple | list):
            found.append(fingerprint(x))
        else:
            found += (kind, x if issubclass(kind, CONSTANTS) else None)
    return tuple(found)


def signature_of_call(args: tuple[Any, ...]) -> Signature:
    """Return the signature of the arguments of a rotary function: shape properties, dtypes and constants.
    Queries and keys may be `Deferred` objects (placeholders for tensors)."""
    return tuple(shape_of(value) if isinstance(value, Deferred) else signature_of(value) for value in args)


def unknown_in(signature: Signature) -> str:
    """Return the reason why an argument has no signature (shapes, dtypes and constants), or "" if all arguments have
    one.
    """
    return str(next((one for one in signature if type(one) is Unknown), ""))


def unrecognised(signature: Signature) -> str:
    """Return the reason why no kernel computes a rotary function for arguments with this signature."""
    wide = {one.dtype for one in shapes(signature)} & {torch.complex128, torch.float64}
    return f"a rotary table is {wide.pop()}" if wide else "no kernel computes the rotary function"


def identity(function: Any) -> Any:
    """Return a hashable key that identifies `function`, or None if `function` has a closure or is not
    hashable.

    If a function is nested in another one and has no closure, its key stays the same whenever the outer function
    defines it again.
    """
    if type(function) is not FunctionType:
        return function if isinstance(function, Hashable) else None
    if function.__closure__:
        return None
    return function if function.__kwdefaults__ else (function.__code__, function.__defaults__)


def rotate(how: Rotation, heads: tuple[Any, ...], leaves: tuple[Tensor, ...], mode: str) -> tuple[Tensor, ...]:
    """Rotate queries, keys or both. If their norms are not computed yet, compute norms and rotation in one
    kernel if possible."""
    if (turned := how.turned) is not None and all([is_turned(x) for x in heads]):
        # A result with the memory order of the operands, as torch's, saves a copy after the attention.
        rotated = rotate(turned, tuple([x.transpose(1, 2) for x in heads]), leaves, mode)
        return tuple([x.transpose(1, 2) for x in rotated])
    plain = how.mode == "fast" and mode == "exact"  # The fused kernel would not round the result of the norm.
    if plain or how.joint is None or not any([isinstance(x, Deferred) for x in heads]):
        return rotate_tensors(how, heads, leaves, mode)
    streams = [heads]
    if any([isinstance(x, Joined) for x in heads]):
        streams = streams_of(how, heads) if how.tokens == "all" else []
    if not streams or (how.form == "matrices" and recorded(streams)):
        return rotate_tensors(how, heads, leaves, mode)
    tables = how.tables(leaves, heads[0].dtype)
    if len(streams) == 1:
        return normed(how, streams[0], tables, mode, offset=how.offset(heads[0], leaves))
    tokens = how.joint
    sizes = [stream[0].shape[tokens] for stream in streams]
    if recorded(streams):
        made = [normed(how, stream, cut(how, tables, sizes, at), mode) for at, stream in enumerate(streams)]
        return tuple(torch.cat(ones, tokens) for ones in zip(*made, strict=True))
    outs = tuple(
        streams[0][at].new_empty(x.shape) if isinstance(streams[0][at], Tensor) else streams[0][at].x.new_empty(x.shape)
        for at, x in enumerate(heads)
    )
    for at, stream in enumerate(streams):
        places = tuple(out.narrow(tokens, sum(sizes[:at]), sizes[at]) for out in outs)
        normed(how, stream, cut(how, tables, sizes, at), mode, places)
    return outs


def is_turned(x: Any) -> bool:
    """Return whether the heads of a token are adjacent in memory, although the dimension of heads comes before the
    dimension of tokens. `x` is a query or a key."""
    own = x.x if isinstance(x, Normed) else x
    return isinstance(own, Tensor) and own.shape[2] > 1 and own.stride(1) < own.stride(2)


def streams_of(how: Rotation, heads: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Split concatenated queries and keys into streams, such as text and image. Return the query and key of
    each stream.

    If queries and keys are not concatenated along the token dimension with the same sizes, return [].
    """
    tokens = how.joint
    assert tokens is not None
    parts = [x.parts(tokens) if isinstance(x, Deferred) else [x] for x in heads]
    if any([part is None for part in parts]):
        return []
    sizes = [[one.shape[tokens] for one in part] for part in parts]  # type: ignore[union-attr]
    if any([size != sizes[0] for size in sizes]):
        return []
    return list(zip(*parts, strict=True))


def rotate_tensors(how: Rotation, heads: tuple[Any, ...], leaves: tuple[Tensor, ...], mode: str) -> tuple[Tensor, ...]:
    """Rotate queries, keys or both. If their norms are not computed yet, compute the norms first."""
    own = tuple([as_rows(x.now() if isinstance(x, Deferred) else x) for x in heads])
    # The gradient kernel of `rope` supports rotations, not general matrices.
    if how.form == "matrices" and needs_grad(*own):
        raise RuntimeError("a table of matrices has no gradient kernel")
    return how.rotate(own, leaves, mode)


def recorded(streams: list[Any]) -> bool:
    """Return whether kernels are not allowed to write the queries and keys of `streams` into slices of a larger tensor.

    This is the case if autograd records the operation, or if a transform of torch.func is active.
    """
    for stream in streams:
        for one in stream:
            x, held = (one.x, (one.norm.weight, one.norm.bias)) if isinstance(one, Normed) else (one, ())
            if needs_grad(x, *held) or not may_write(x):
                return True
    return False


def cut(how: Rotation, tables: tuple[Tensor, ...], sizes: list[int], at: int) -> tuple[Tensor, ...]:
    """Return the rows of the rotary tables for the tokens of the stream with index `at`, such as the text
    tokens. `sizes` has the number of tokens of each stream."""
    return tuple(
        table.narrow(-3 if table.dim() == 4 and not how.heads_first else -2, sum(sizes[:at]), sizes[at])
        for table in tables
    )


def normed(
    how: Rotation | None,
    heads: tuple[Any, ...],
    tables: tuple[Tensor, ...],
    mode: str,
    out: tuple[Tensor, ...] | None = None,
    offset: int | None = None,
) -> tuple[Tensor, ...]:
    """Normalize and rotate queries, keys or both of one stream, such as the text tokens.

    If `out` is given, write the results there. If `how` is None, only normalize. If the tables have fewer
    tokens than the queries, `offset` is the index of the first rotated token.
    """
    kinds = [one.kind() if isinstance(one, Normed) else None for one in heads]
    if kinds[-1] != kinds[0]:
        outs: list[Any] = [None] * len(heads) if out is None else [(one,) for one in out]
        return tuple(normed(how, (one,), tables, mode, place)[0] for one, place in zip(heads, outs, strict=True))
    options: dict[str, Any] = {"norm": None}
    if kinds[0] is not None:
        norm, eps, across = kinds[0]
        options = {"norm": norm, "eps": eps, "across_heads": across}
        for name, one in zip("qk", heads, strict=False):
            options |= {f"{name}_weight": one.norm.weight, f"{name}_bias": one.norm.bias}
    own = [as_rows(one.x if isinstance(one, Normed) else one) for one in heads]
    cos, sin, *_ = (*tables, None, None)
    if how is not None:
        options |= {"interleaved": how.interleaved, "rotary_dim": how.rotary_dim, "heads_first": how.heads_first}
    made = ops.qk_norm_rope(
        own[0],
        own[1] if len(own) == 2 else None,
        cos,
        sin,
        **options,
        offset=offset,
        mode="fast" if mode == "fast" else "exact",
        out=out if out is None or len(own) == 2 else out[0],  # type: ignore[arg-type]
    )
    return made if isinstance(made, tuple) else (made,)


__all__ = ["RotaryCalls"]
