"""Saves work for the attention masks of transformers.

If the caller of a model gives no positions, the model counts them: 0, 1, 2 and so on. A function of transformers that
makes a mask then looks for packed sequences in these positions, and Python waits for the GPU. The rewritten method does
not pass counted positions to this function. If attention needs no mask tensor, the method makes none. transformers also
makes none in eager mode, but under torch.compile only from torch 2.14 on.
"""

import ast
from collections.abc import Callable
from typing import Any

import torch

from .flow import Read
from .method import PREFIX

MASK = "mask"
POSITIONS = "position_ids"
COUNTED = PREFIX + "counted"
"""Variable of a rewritten method: whether the caller gave no positions."""
MODULE = "transformers.masking_utils"
CAUSAL = "create_causal_mask"
WITHOUT_MASK = ("sdpa", "oxiwarp")
"""Implementations of attention that take None for a causal mask."""
OPTIONS = {"attention_mask", "config", "inputs_embeds", "past_key_values", POSITIONS}


def replace_masks(tree: ast.FunctionDef, add: Callable[[ast.expr], Any]) -> bool:
    """Replace the calls in `tree` that make masks from counted positions. Return whether there are such calls.

    `add` adds a call to the report of `patch`.
    """
    if not counts_positions(tree):
        return False
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and makes_mask(node)]
    others = ast.Name(tree.args.kwarg.arg, ast.Load()) if tree.args.kwarg else ast.Constant(None)
    for call in made:
        add(call)
        counted = ast.IfExp(ast.Name(COUNTED, ast.Load()), ast.Name(POSITIONS, ast.Load()), ast.Constant(None))
        call.args = [call.func, counted, others]
        call.func = ast.Name(PREFIX + MASK, ast.Load())
    if made:
        test = ast.Compare(ast.Name(POSITIONS, ast.Load()), [ast.Is()], [ast.Constant(None)])
        first = ast.Assign([ast.Name(COUNTED, ast.Store())], test)
        at = 1 if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant) else 0
        tree.body.insert(at, ast.copy_location(first, tree.body[at]))
    return bool(made)


def counts_positions(tree: ast.FunctionDef) -> bool:
    """Return whether a method counts the positions if its parameter `position_ids` is None, and never changes the
    positions otherwise."""
    names = [one.arg for one in (*tree.args.args, *tree.args.kwonlyargs)]
    stores = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and POSITIONS in Read(node).stores]
    branches = [
        node for node in stores if isinstance(node, ast.If) and ast.unparse(node.test) == f"{POSITIONS} is None"
    ]
    if POSITIONS not in names or len(branches) != 1 or branches[0].orelse:
        return False
    body = branches[0].body
    counted = [one for one in body if POSITIONS in Read(one).stores]
    outside = [one for one in stores if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign) and one not in body]
    plain = counted and all(isinstance(one, ast.Assign) for one in counted) and not outside
    return bool(plain) and is_count(counted[0].value) and all(is_view(one.value) for one in counted[1:])  # type: ignore[attr-defined]


def is_count(node: ast.expr) -> bool:
    """Return whether an expression is `torch.arange(n)` or `torch.arange(n) + offset`, or a row of it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.right, ast.Name):
        return is_count(node.left)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.arange":
        return len(node.args) in (1, 2)
    rows = node.func.value if is_unsqueeze(node) else None  # type: ignore[attr-defined]
    return rows is not None and is_count(rows)


def is_view(node: ast.expr) -> bool:
    """Return whether an expression is `position_ids.unsqueeze(0)`."""
    return is_unsqueeze(node) and ast.unparse(node.func.value) == POSITIONS  # type: ignore[attr-defined]


def is_unsqueeze(node: ast.expr) -> bool:
    """Return whether an expression is `x.unsqueeze(0)`."""
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "unsqueeze" and ast.unparse(node.args) == "0"  # type: ignore[attr-defined]


def makes_mask(call: ast.Call) -> bool:
    """Return whether a call may make an attention mask from positions.

    The positions are a keyword argument, or an element of a dict that is passed as `**arguments`.
    """
    if not isinstance(call.func, ast.Name) or "mask" not in call.func.id or call.args:
        return False
    return any(word.arg in (None, POSITIONS) for word in call.keywords)


def mask(function: Callable[..., Any], counted: Any, others: dict[str, Any] | None, **given: Any) -> Any:
    """Return the attention mask `function(**given)`.

    `counted` are the positions if the model counted them, or None. `others` are the arguments that the model passes to
    attention.
    """
    if getattr(function, "__module__", "") != MODULE or given.get("attention_mask") is not None:
        return function(**given)
    known = counted is not None and given.get(POSITIONS) is counted
    if needs_none(function, known, others, given):
        return None
    return function(**{**given, POSITIONS: None} if known else given)


def needs_none(function: Callable[..., Any], counted: bool, others: Any, given: dict[str, Any]) -> bool:
    """Return whether attention needs no mask tensor, because each token attends to itself and all earlier tokens.

    `counted` says whether the positions are those that the model counted.
    """
    config, cache = given.get("config"), given.get("past_key_values")
    if function.__name__ != CAUSAL or torch.compiler._is_exporting_flag or not given.keys() <= OPTIONS:
        return False
    if getattr(config, "_attn_implementation", None) not in WITHOUT_MASK or not getattr(config, "is_causal", True):
        return False
    if (others or {}).get("is_causal") is False:
        return False
    if cache is None:
        return counted
    if type(cache).__name__ != "DynamicCache":
        return False
    tokens: int = given["inputs_embeds"].shape[1]
    return tokens == 1 or cache.get_seq_length() == 0


__all__ = ["MASK", "mask", "replace_masks"]
