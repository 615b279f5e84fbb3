"""Rewrites a method so that kernels compute its chains (expressions that one kernel may compute).

Each chain becomes a call of a function. If a kernel supports the operands, this function runs the kernel.
Otherwise it evaluates the original expression.
"""

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch.nn.functional as F

from ..inductor import is_decoders
from .blocks import Block, blocks
from .direct_calls import replace_calls
from .flow import evaluated_once, is_activation, is_self, is_simple
from .formulas import CLASS, function_at, is_for_other_device
from .head_norms import WideNorms, head_norms, wideness
from .helpers import Helper, helper_name, helpers_of
from .identities import replace_identities
from .inline import Inlining
from .joins import JOINED_ACTIVATION, Joins
from .likely import is_likely, is_modulation, is_sigmoid
from .linears import of_gelu, with_linear
from .masks import replace_masks
from .method import PREFIX, check_source, compiled, decorated, tree_of, undecorated
from .operands import activation_of
from .pairs import Pair, is_modulated_later, joined, keep_terms, may_join, norms_in, placed, reads_sum
from .patterns import (
    ACTIVATION,
    FACTOR_NORM,
    GATED,
    MODULATED,
    MODULATION,
    NORM,
    SUM,
    TANH_SUM,
    Chain,
    Finder,
    orders,
)
from .rotary_rewriter import (
    JOINED_PAIR,
    ROTARY,
    ROTARY_PAIR,
    ROTARY_PART,
    Deferring,
    assigned,
    local_functions,
    next_rotation,
    part_of,
    rotary_chain,
)
from .sums import LaterSums
from .traced import RotaryCall
from .twice import twice_modulated
from .unfused import UNFUSED, unfused_chain
from .views import join_views

SUM_AND_NORM, NORM_TWICE = "sum_and_norm", "norm_twice"
ATTENTION, GELU = "attention", "gelu"
HEAD_NORM = "head_norm"
ATTENTIONS = ("dispatch_attention_fn", "scaled_dot_product_attention")
"""Attention functions of diffusers and torch. A patched method may run `oxiwarp.attention` instead of
them."""
KERNELS = {
    (GATED,): ("gated_residual",),
    (MODULATED,): ("ada_norm",),
    (MODULATION,): ("modulate",),
    (ACTIVATION,): (
        *("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "sigmoid_and_mul", "relu2_and_mul"),
        *("gelu_new", "gelu_fast", "gelu_quick"),
    ),
    (MODULATED, MODULATED): ("ada_norm_pair", "ada_norm"),
    (GATED, MODULATED): ("gated_residual_ada_norm",),
    (SUM, MODULATED): ("gated_residual_ada_norm",),
    (GATED, NORM): ("gated_residual_ada_norm",),
    (SUM, NORM): ("add_rms_norm", "gated_residual_ada_norm"),
    (FACTOR_NORM,): ("ada_norm",),
    (TANH_SUM,): ("residual_tanh_gated_rms_norm",),
    (ROTARY,): ("qk_norm_rope", "rope"),
    (ATTENTION,): ("attention",),
    (GELU,): ("gelu", "gelu_tanh"),
    (HEAD_NORM,): ("qk_norm_rope",),
    (JOINED_PAIR,): ("qk_norm_rope",),
    (JOINED_ACTIVATION,): ("gelu", "gelu_tanh", "silu", "relu2", "silu_and_mul"),
}
"""The operators that may compute an expression, by the kinds of the expression. A sum and its norm are two
kinds."""
OF_OWNER = (HEAD_NORM, JOINED_PAIR, JOINED_ACTIVATION)
"""The kinds of expressions whose module may belong to the owner of an attention processor, as `attn.norm_q`."""


@dataclass
class Found:
    """A chain (an expression that one kernel may compute) in a method, as the report describes it."""

    ops: tuple[str, ...]
    """Names of the operators that may compute the chain. At run time, one of them is used."""
    line: int
    source: str
    """The original expression."""
    functions: dict[str, Any]
    """Functions that the chain calls, by name. The source of these functions is part of the chain."""
    norm: str = ""
    """Name of the attribute of `self` that is the norm, or "" if the norm is not an attribute of `self`."""
    act: str = ""
    """Name of the attribute of `self` that is the activation, or ""."""
    reason: str = ""
    """The reason why no kernel computes the chain, or "" if a kernel may compute it."""
    owner: str = ""
    """Name of the method's parameter, such as "attn", whose attribute is the norm or the activation, or ""."""
    factor: bool = False
    """Whether the norm multiplies its result by its second argument."""


@dataclass
class Rewritten:
    """A rewritten method. Calls of the functions in `calls.py` have replaced its chains (expressions that one
    kernel may compute)."""

    tree: ast.FunctionDef
    chains: list[Found]
    inlined: dict[str, FunctionType]
    """The methods of the class whose statements were inserted into this method, by name."""
    helpers: dict[str, Helper]
    """Functions that the method calls and that are rewritten too, by name."""
    linears: list[int] = field(default_factory=list)
    """The source lines of the linears that one kernel may compute together with a chain."""
    opens: bool = False
    """Whether the method may get or return a placeholder for a sum: see `layers.py`."""
    masks: bool = False
    """Whether the method makes attention masks: see `masks.py`."""
    rotary: dict[int, RotaryCall] = field(default_factory=dict)
    """The calls of rotary functions that rotate queries, and then keys, by the index of the chain."""

    def bind(self, own: FunctionType, calls: Mapping[str, Any]) -> FunctionType:
        """Return the rewritten method as a function that can replace the original method `own`.

        `calls` contains the functions that the rewritten method calls, by name. Each function runs a kernel
        or evaluates an original expression.
        """
        names = {f"{PREFIX}{op}": call for op, call in calls.items()}
        names |= {helper_name(name): helper.bind(names) for name, helper in self.helpers.items()}
        return decorated(own, compiled(undecorated(own), copy.deepcopy(self.tree), names))

    @property
    def source(self) -> str:
        """The source code of the rewritten method."""
        return ast.unparse(self.tree)


class Nested(ast.NodeTransformer):
    """Replaces the chains (expressions that one kernel may compute) in one statement, including chains in
    operands of other chains.

    Nested functions, and statements inside the statement, such as the body of an `if`, are not changed.
    """

    def __init__(self, rewriting: "Rewriting", block: Block, at: int, split: bool = True) -> None:
        self.rewriting, self.block, self.at, self.split = rewriting, block, at, split
        self.absorbed: dict[str, ast.stmt | None] = {}
        self.known: set[int] = set()
        """The `id` of each node in a chain that no kernel computes."""

    def visit(self, node: ast.AST) -> Any:
        """Return the replacement of a node."""
        if isinstance(node, ast.Lambda) or (isinstance(node, ast.stmt) and not is_simple(node)):
            return node
        if isinstance(node, ast.expr) and (known := self.rewriting.computed.get(id(node))):
            return ast.copy_location(ast.Name(known[0], ast.Load()), node)
        if isinstance(node, ast.Call | ast.BinOp) and (chains := self.chains(node)):
            # Do not replace this norm if a later statement modulates it or casts the modulated norm. When the
            # rewriter comes to that statement, it replaces both by one kernel.
            part = (len(chains) == 2 and chains[1].op == NORM) or chains[-1].op == MODULATED
            if part and is_modulated_later(self.block, self.at, node, self.rewriting.space):
                return node
            for chain in chains:
                self.absorbed |= chain.used()
            return self.rewriting.call(chains, self)
        if isinstance(node, ast.Call) and (op := self.function_in_place_of(node)):
            node.args = [ast.Constant(self.rewriting.add(Chain(op, node, {}))), node.func, *node.args]
            node.func = ast.copy_location(ast.Name(PREFIX + op, ast.Load()), node)
            made: ast.Call = self.generic_visit(node)  # type: ignore[assignment]
            if op == GELU and not self.rewriting.nested:
                of_gelu(made, self.rewriting.add_linear)
            return made
        if id(node) not in self.known and isinstance(node, ast.expr) and (unfused := unfused_chain(node)):
            self.known |= {id(part) for part in ast.walk(node)}
            return self.rewriting.unfused(unfused, self.generic_visit(node))
        return self.generic_visit(node)

    def chains(self, node: ast.expr) -> tuple[Chain, ...]:
        """Return the chain (expression that one kernel may compute) whose last operation is `node`, in a
        tuple. If there is none, return ().

        Also return () if the names in the expression suggest that it computes something else. If `node` is the norm of
        a sum, return two chains: the sum and the norm.
        """
        rewriting = self.rewriting
        finder = Finder(self.block, self.at, rewriting.space, self.split)
        found = finder.find(node)
        norm = found or finder.find(node, NORM)
        if norm is not None and norm.op in (MODULATED, NORM):
            total = finder.find(norm.operands["x"], GATED, SUM)
            if total is not None and may_join(total, norm):
                return total, norm
        found = found or rotary_chain(node, rewriting.space, rewriting.local)
        if found is None or (found.op == GATED and not is_likely(found, self.block.statements[self.at])):
            return ()
        if found.op == MODULATION and not is_modulation(found) and not self.is_of_activation(found):
            return ()
        return () if is_sigmoid(found) and self.is_branch(node) else (found,)

    def is_of_activation(self, modulation: Chain) -> bool:
        """Return whether the expression `modulation` is `(up + 1) * glu` with an activation `glu = gate *
        sigmoid(gate)`, as in GPT-OSS."""
        x = modulation.operands["x"]
        at = self.block.defined(x.id, self.at) if isinstance(x, ast.Name) else None
        value = x if at is None else self.block.statements[at].value  # type: ignore[attr-defined]
        calls = [value, *(factor for factor, _ in orders(value))]
        return any(isinstance(call, ast.Call) and is_activation(call.func) for call in calls)

    def function_in_place_of(self, node: ast.Call) -> str:
        """If `node` calls an attention or GELU function, return the name of the function in `calls.py` that
        replaces it. Otherwise return ""."""
        if is_attention(node.func):
            return ATTENTION
        gelu = len(node.args) == 1 and value_of(node.func, self.rewriting.space) is F.gelu
        return GELU if gelu and [word.arg for word in node.keywords] in ([], ["approximate"]) else ""

    def is_branch(self, node: ast.expr) -> bool:
        """Return whether the current statement assigns the product `node` to a variable, and a later
        statement adds this variable to a residual.

        An example is `y = sigmoid(gate) * y`, followed by `x = x + y`. Both statements together are a gated
        residual, which one kernel computes.
        """
        block, statement = self.block, self.block.statements[self.at]
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or statement.value is not node:  # type: ignore[attr-defined]
            return False
        for later in range(self.at + 1, len(block.statements)):
            if not is_simple(block.statements[later]):
                continue
            for part in evaluated_once(block.statements[later]):
                total = isinstance(part, ast.BinOp) and Finder(block, later, self.rewriting.space).find(part, GATED)
                if total and target.id in total.used() and block.defined(target.id, later) == self.at:
                    return is_likely(total, block.statements[later])
            if target.id in block.reads[later].stores:
                break
        return False


class Rewriting:
    """Rewrites a method `own`, or a function `own` that a method calls.

    A chain is an expression that one kernel may compute. If `own` is a called function, `found` is the list
    of chains of the calling method. The chains of `own` are then appended to this list. `opened` says whether the
    argument and the result of the method may be placeholders for sums.
    """

    def __init__(self, own: FunctionType, found: list[Found] | None = None, opened: bool = False) -> None:
        self.own, self.opened = undecorated(own), opened
        self.tree = tree_of(self.own)
        self.space = {**self.own.__globals__, CLASS: class_of(self.own)}
        self.local = local_functions(self.tree)
        self.nested, self.found = found is not None, [] if found is None else found
        self.linears: list[int] = []
        self.rotary: dict[int, RotaryCall] = {}
        self.computed: dict[int, tuple[str, ast.expr]] = {}
        """Norms that are computed together with the sum before them. By the `id` of the norm's node: the
        variable with the result, and the node itself. Keeping the node prevents a new node from getting the
        `id` of a deleted node."""

    def run(self) -> Rewritten:
        """Rewrite the method."""
        join_views(self.tree)
        inlining = Inlining(self.tree, self.space[CLASS], self.own.__globals__)
        inlining.run()
        others = [node.body for node in ast.walk(self.tree) if isinstance(node, ast.If) and is_for_other_device(node)]
        for block in list(blocks(self.tree)):
            if all(block.statements is not body for body in others):
                self.rewrite(block)
        sums = LaterSums(self.tree, self.add, self.found, self.opened)
        sums.run()
        WideNorms().visit(self.tree)
        Joins(self.tree, self.add).run()
        Deferring(self.tree).run()
        for call in head_norms(self.tree):
            at = self.add(Chain(HEAD_NORM, call, {"norm": call.func}))
            call.args = [ast.Constant(at), call.func, *call.args, *wideness(call)]
            call.func = ast.copy_location(ast.Name(PREFIX + HEAD_NORM, ast.Load()), call)
        replace_identities(self.tree, lambda node: value_of(node, self.space), self.add_other)
        masks = replace_masks(self.tree, self.add_other)
        if self.space[CLASS] is not None and is_decoders(self.space[CLASS]):
            replace_calls(self.tree, self.space[CLASS])
        if self.found:
            check_source(self.own)
        helpers = {} if self.nested else helpers_of(self.tree, self.own, self.helper)
        tree = ast.fix_missing_locations(self.tree)
        return Rewritten(tree, self.found, inlining.inlined, helpers, self.linears, sums.opens, masks, self.rotary)

    def add_other(self, node: ast.expr) -> None:
        """Record an expression that the rewritten method avoids. No kernel computes it."""
        self.found.append(Found((), node.lineno, ast.unparse(node), {}))

    def helper(self, function: FunctionType) -> ast.FunctionDef:
        """Rewrite `function`, which the method calls, and return its changed syntax tree."""
        return Rewriting(function, self.found).run().tree

    def rewrite(self, block: Block) -> None:
        """Replace the chains (expressions that one kernel may compute) in each statement of a block."""
        pending: dict[int, list[ast.stmt]] = {}
        for at in range(len(block.statements)):
            if self.rotated_part(block, at) or self.rotations(block, at) or self.modulations(block, at):
                continue
            pair = self.pair(block, at)
            if pair is None:
                nested = Nested(self, block, at)
                changed = nested.visit(block.statements[at])
                self.put(block, at, changed, nested.absorbed)
                continue
            statement, absorbed = self.both(block, at, pair)
            if pair.early:
                self.put(block, at, statement, absorbed)
            else:
                before, after = keep_terms(statement, pair) if pair.kept else (ast.Pass(), [])
                pending.setdefault(pair.last, []).extend([statement, *after])
                self.put(block, at, ast.copy_location(before, statement), absorbed)
                block.move(at, pair.last, statement)
        for at, statements in sorted(pending.items(), reverse=True):
            block.statements[at:at] = statements

    def rotations(self, block: Block, at: int) -> bool:
        """If the statement with index `at` rotates queries and the next statement rotates keys, replace both.
        Return whether they were replaced."""
        own = assigned(block.statements[at])
        first = None if own is None else rotary_chain(own[1], self.space, self.local)
        found = None if first is None else next_rotation(block, at, first, self.local, self.space)
        if own is None or first is None or found is None:
            return False
        index, second = found
        operands = [ast.keyword(name, node) for name, node in first.operands.items()]
        operands.append(ast.keyword("other", second.operands["a0"]))
        chain = self.add(first)
        arguments: list[ast.expr] = [ast.Constant(chain), first.own(), *constants(first)]
        self.rotary[chain] = RotaryCall(first.own(), ast.unparse(first.operands["function"]))
        call = called(ROTARY_PAIR, arguments, operands, first.node)
        other = block.statements[index]
        names: list[ast.expr] = [ast.Name(name, ast.Store()) for name in (own[0], assigned(other)[0])]  # type: ignore[index]
        made = ast.Assign([ast.Tuple(names, ast.Store())], call)
        block.update(at, ast.copy_location(made, block.statements[at]))
        block.update(index, ast.copy_location(ast.Pass(), other))
        return True

    def modulations(self, block: Block, at: int) -> bool:
        """If the statement with index `at` computes a norm that two statements modulate, replace all three.
        Return whether they were replaced."""
        found = twice_modulated(block, at, self.space)
        if found is None:
            return False
        (_, first, second), chains = found
        chain = self.add(*chains)
        temporary = f"{PREFIX}second_{chain}"
        nested = [Nested(self, block, place, split=False) for place in (first, second)]
        operands = [ast.keyword(name, nested[0].visit(node)) for name, node in chains[0].in_order()]
        for name in ("scale", "shift"):
            operands.append(ast.keyword(f"{name}2", nested[1].visit(chains[1].operands[name])))
        call = called(NORM_TWICE, [self.changed(chain), *(one.own() for one in chains)], operands, chains[0].node)
        absorbed = [one.used() | part.absorbed for one, part in zip(chains, nested, strict=True)]
        removed = [
            block.defined(name, place) for place, names in zip((first, second), absorbed, strict=True) for name in names
        ]
        own: list[ast.expr] = [assigned_name(block.statements[first]), ast.Name(temporary, ast.Store())]
        made = [ast.Assign([ast.Tuple(own, ast.Store())], call)]
        made.append(ast.Assign([assigned_name(block.statements[second])], ast.Name(temporary, ast.Load())))
        for place, statement in zip((first, second), made, strict=True):
            block.update(place, ast.copy_location(statement, block.statements[place]))
        for index in {at, *removed}:
            assert index is not None
            block.update(index, ast.copy_location(ast.Pass(), block.statements[index]))
        return True

    def rotated_part(self, block: Block, at: int) -> bool:
        """Replace the statement with index `at`, if this statement applies RoPE to a slice of a variable, such as
        its text tokens. The new statement calls a helper. Return whether the statement was replaced."""
        statement = block.statements[at]
        part = part_of(statement, self.space, self.local)
        if part is None:
            return False
        chain = part.chain
        own: list[ast.expr] = [ast.Constant(self.add(chain)), chain.own(), *constants(chain)]
        limits = [ast.Constant(None) if limit is None else limit for limit in part.limits]
        own += [ast.Constant(part.dim), *limits, ast.Constant(part.in_place)]
        operands = [
            ast.keyword(name, ast.Name(part.variable, ast.Load()) if name == "a0" else node)
            for name, node in chain.operands.items()
        ]
        call = called(ROTARY_PART, own, operands, chain.node)
        made = ast.Assign([ast.Name(part.variable, ast.Store())], call)
        block.update(at, ast.copy_location(made, statement))
        return True

    def put(self, block: Block, at: int, statement: ast.stmt, absorbed: dict[str, ast.stmt | None]) -> None:
        """Replace the statement with index `at` by `statement`. Remove the definitions of variables whose
        values are part of `statement`.

        `absorbed` maps the names of these variables to a statement that replaces the definition, or to None.
        """
        removed = [(block.defined(name, at), kept) for name, kept in absorbed.items()]
        block.update(at, statement)
        for index, kept in removed:
            assert index is not None
            block.update(index, kept or ast.copy_location(ast.Pass(), statement))

    def call(self, chains: tuple[Chain, ...], nested: Nested) -> ast.expr:
        """Return the call that replaces the expression in `chains`. If `chains` has two elements, a sum and
        its norm, one call replaces both."""
        at, last = self.add(*chains), chains[-1]
        owns, options = [chain.own() for chain in chains], sum(map(constants, chains), [])
        whole = last if len(chains) == 1 else joined(*chains)
        found = None if self.nested else with_linear(whole, nested.block, nested.at, self.add_linear)
        operands = []
        for name, node in whole.in_order():
            value: ast.expr
            if found is None or found.operand is not node:
                value = nested.visit(node)
            elif found.variable:  # The statement with the call of the linear is rewritten already.
                nested.absorbed[found.variable], value = None, found.call
            else:
                value = nested.visit(found.call)
            operands.append(ast.keyword(name, value))
        return called(whole.op, [self.changed(at), *owns, *options], operands, last.node)

    def add_linear(self, call: ast.expr) -> int:
        """Record a linear that one kernel may compute together with a chain, and return its index."""
        self.linears.append(call.lineno)
        return len(self.linears) - 1

    def unfused(self, chain: Chain, node: Any) -> ast.expr:
        """Return a call that evaluates the original expression `node`, and counts the expression as not fused
        for the report of `patch`."""
        at = self.add(chain)
        return called(UNFUSED, [ast.Constant(at), node, ast.Constant(chain.options["reason"])], [], chain.node)

    def changed(self, at: int) -> ast.expr:
        """Return the first argument for a call that replaces a `Chain` (an expression that one kernel may
        compute).

        This argument is `at`, the index of the `Chain`. If the `Chain` contains the source of functions, the
        argument is `(at, function, ...)`.
        """
        functions = [ast.parse(name, mode="eval").body for name in self.found[at].functions]
        return ast.Tuple([ast.Constant(at), *functions], ast.Load()) if functions else ast.Constant(at)

    def pair(self, block: Block, at: int) -> Pair | None:
        """If the statement with index `at` assigns a sum to a variable, and a later statement normalises it,
        return the `Pair` of sum and norm. Otherwise return None."""
        statement = block.statements[at]
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target = statement.targets[0]
        total = Finder(block, at, self.space).find(statement.value, GATED, SUM)
        if total is None or not isinstance(target, ast.Name):
            return None
        for pattern in (MODULATED, NORM):
            for last in range(at + 1, len(block.statements)):
                for norm in norms_in(block, last, pattern, target.id, self.space):
                    if block.defined(target.id, last) == at and (found := placed(block, at, last, total, norm)):
                        return found
                if target.id in block.reads[last].stores:
                    break
        return None

    def both(self, block: Block, at: int, pair: Pair) -> tuple[ast.stmt, dict[str, ast.stmt | None]]:
        """Return two values: the statement that computes a sum and its norm, and the variables whose values
        became part of the sum.

        This method removes the definitions of variables whose values became part of the norm. The caller removes the
        definitions for the sum.
        """
        total, norm, variable = pair.total, pair.norm, pair.variable
        index = self.add(total, norm)
        temporary = f"{PREFIX}normed_{index}"
        self.computed[id(norm.node)] = temporary, norm.node
        owns = [total.own(), norm.own()]
        nested, later = Nested(self, block, at), Nested(self, block, pair.last, split=False)
        operands = [ast.keyword(name, nested.visit(node)) for name, node in total.in_order()]
        for name, node in norm.in_order():
            if not reads_sum(node, variable):
                operands.append(ast.keyword(f"norm_{name}", later.visit(node)))
        casts_to_sum = "target" in norm.operands and reads_sum(norm.operands["target"], variable)
        options: list[ast.expr] = [*constants(total), *constants(norm), ast.Constant(casts_to_sum)]
        call = called(SUM_AND_NORM, [self.changed(index), *owns, *options], operands, total.node)
        names: list[ast.expr] = [ast.Name(name, ast.Store()) for name in (variable, temporary)]
        for name in norm.used() | later.absorbed:
            place = block.defined(name, pair.last)
            assert place is not None
            block.update(place, ast.copy_location(ast.Pass(), block.statements[place]))
        made = ast.copy_location(ast.Assign([ast.Tuple(names, ast.Store())], call), block.statements[at])
        return made, total.used() | nested.absorbed

    def add(self, *chains: Chain) -> int:
        """Record an expression that one kernel may compute, for the report of `patch`, and return its index.
        For a sum and its norm, `chains` has two elements."""
        names = KERNELS[tuple(chain.options.get("kind", chain.op) for chain in chains)]
        functions = {name: function_at(name, self.space) for chain in chains for name in sorted(chain.called())}
        if chains[0].op == ACTIVATION and "act" in chains[0].operands:
            op = activation_of(value_of(chains[0].operands["act"], self.space), chains[0].options["approximate"])
            names = names if isinstance(op, str) else (op.__name__,)
        source = "; ".join(ast.unparse(chain.node) for chain in chains)
        norm, act = (attribute_of(chains[-1].operands.get(name)) for name in ("norm", "act"))
        owner, module = "", chains[-1].operands.get("act" if chains[-1].op == JOINED_ACTIVATION else "norm")
        if chains[-1].op in OF_OWNER and not (norm or act) and isinstance(module, ast.Attribute):
            owner, name = ast.unparse(module.value), module.attr
            norm, act = ("", name) if chains[-1].op == JOINED_ACTIVATION else (name, "")
        reason = chains[0].options.get("reason", "")
        factor = chains[-1].op in (FACTOR_NORM, TANH_SUM)
        self.found.append(Found(names, chains[0].line, source, functions, norm, act, reason, owner, factor))
        return len(self.found) - 1


def assigned_name(statement: ast.stmt) -> ast.expr:
    """Return the variable of a statement `name = value`, as the target of another statement."""
    own = assigned(statement)
    assert own is not None
    return ast.Name(own[0], ast.Store())


def is_attention(function: ast.expr) -> bool:
    """Return whether a called function is one of `ATTENTIONS`."""
    if isinstance(function, ast.Attribute):
        return function.attr in ATTENTIONS and not is_self(function.value)
    return isinstance(function, ast.Name) and function.id in ATTENTIONS


def value_of(node: ast.expr, space: Mapping[str, Any]) -> Any:
    """Return the object that an expression such as `F` or `F.gelu` refers to, if `F` is a global variable in
    `space`. Otherwise return None."""
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, space), node.attr, None)
    return space.get(node.id) if isinstance(node, ast.Name) and node.id != CLASS else None


def class_of(method: FunctionType) -> Any:
    """Return the class that a method belongs to, according to the method's `__qualname__`, or None."""
    found: Any = None
    for at, name in enumerate(method.__qualname__.split(".")[:-1]):
        found = getattr(found, name, None) if at else method.__globals__.get(name)
    return found if isinstance(found, type) and vars(found).get(method.__name__) is not None else None


def attribute_of(node: ast.expr | None) -> str:
    """If `node` is an attribute of `self`, return the name of the attribute. Otherwise return ""."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def constants(chain: Chain) -> list[ast.expr]:
    """Return a list with one constant: a tuple for the call that replaces a `Chain` (an expression that one
    kernel may compute).

    The tuple contains the name of the pattern that `chain` matches, and then the options of `chain`, such as
    its casts.
    """
    options: Any = (chain.op, *chain.options.values())
    return [ast.Constant(options)]


def called(op: str, args: list[ast.expr], keywords: list[ast.keyword], node: ast.expr) -> ast.expr:
    """Return the syntax tree of a call of the function `op` in `calls.py`."""
    return ast.copy_location(ast.Call(ast.Name(f"{PREFIX}{op}", ast.Load()), args, keywords), node)
