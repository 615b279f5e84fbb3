"""Finds expressions in a method that one kernel may compute, such as `x + gate * y` and `norm(x) * (1 +
scale)`."""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .blocks import Block
from .expressions import (
    is_norm_call,
    is_number,
    is_parameter,
    is_product,
    is_share,
    is_value,
    orders,
    same_dtype,
    sigmoid_of,
    tanh_of,
    with_factor,
    without_cast,
    without_float,
    without_tanh,
)
from .flow import Read, is_activation, shared_by
from .formulas import formula_of, function_at, function_name, is_cheap
from .method import PREFIX
from .views import one_plus, view_of, viewed

GATED, MODULATED, SUM, NORM = "gated_residual", "modulated_norm", "plain_sum", "plain_norm"
ACTIVATION, MODULATION = "gated_activation", "modulation"
FACTOR_NORM, TANH_SUM = "factor_norm", "tanh_sum"


@dataclass
class Chain:
    """An expression that one kernel may compute."""

    op: str
    """Name of the function in `calls.py` that computes the expression at run time."""
    node: ast.expr
    """The expression."""
    operands: dict[str, ast.expr]
    """The subexpressions that are computed before the kernel runs, by the name of the argument that they
    become."""
    options: dict[str, Any] = field(default_factory=dict)
    """Constant arguments of the function in `calls.py`."""
    inlined: dict[int, ast.expr] = field(default_factory=dict)
    """Nodes that are read as other expressions, by their `id`. Examples are a variable that stands for its
    value, and a view such as `(1 + scale)[i]`."""
    names: dict[int, str] = field(default_factory=dict)
    """The names of the variables among the nodes of `inlined`, by the `id` of the node."""
    functions: dict[int, str] = field(default_factory=dict)
    """The called functions whose source is part of the expression: their names, by the `id` of the call."""

    kept: dict[str, ast.stmt] = field(default_factory=dict)
    """Statements that must replace the definitions of variables in the expression, by the name of the
    variable."""

    @property
    def line(self) -> int:
        """The line in which the expression starts."""
        return self.node.lineno

    def own(self) -> ast.Lambda:
        """Return the expression as a lambda whose parameters are the operands."""
        own = Own(self)
        body = own.visit(self.node)
        return function_of(list(self.operands), body, own.renamed)

    def keeps_order(self) -> bool:
        """Return whether the rewritten method may evaluate all operands of the expression first, before the
        operations of the expression.

        In the original code, an operation (a cast or a norm) may read a tensor before a later operand modifies
        this tensor. If so, to evaluate all operands first would change the result.
        """
        # Of the operand `target`, the code reads only the dtype.
        operands = [node for name, node in self.operands.items() if name != "target"]
        reads = [Read(operand) for operand in operands]
        wide = self.options.get("wide", ())
        if (self.op in (GATED, SUM) and not any(wide)) or self.casts_after_arguments():
            return True
        values = [shared_by(operand, calls=False) - {"self"} for operand in operands]
        return not any(
            read.effects and set(read.loads) & value
            for at, read in enumerate(reads)
            for index, value in enumerate(values)
            if index != at
        )

    def casts_after_arguments(self) -> bool:
        """Return whether the expression is a call of a function with a known formula, and each argument is an
        operand of the chain."""
        call = without_cast(self.node)[0]
        call = call if id(call) in self.functions else self.node
        if id(call) not in self.functions or not isinstance(call, ast.Call):
            return False
        operands = {id(node) for node in self.operands.values()}
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return all(id(argument) in operands or is_cheap(argument) for argument in arguments)

    def evaluates_once(self) -> bool:
        """Return whether the original expression can run after its operands were computed, without running
        the side effects of an operand twice.

        The original expression runs if no kernel supports the operands. An operand may be an intermediate
        value inside a called function. The original expression then calls this function again and evaluates
        its arguments again, so these arguments must have no side effects.
        """
        own = Own(self)
        own.visit(self.node)
        known = {id(call) for call in own.calls}
        for call in (node for outer in own.calls for node in ast.walk(outer) if isinstance(node, ast.Call)):
            is_operand = isinstance(call.func, ast.Name) and call.func.id in self.operands
            if id(call) not in known and not is_operand and Read(ast.Call(call.func, [], [])).effects:
                return False
        return True

    def used(self) -> dict[str, ast.stmt | None]:
        """Return a dict. Its keys are the variables whose values are part of the expression.

        The value for a variable is the statement that must replace the definition of the variable, or None if
        the definition is removed.
        """
        own = Own(self)
        own.visit(self.node)
        return {name: self.kept.get(name) for name in own.used}

    def called(self) -> set[str]:
        """Return the names of the called functions whose formulas are part of the expression."""
        own = Own(self)
        own.visit(self.node)
        return own.called

    def in_order(self) -> list[tuple[str, ast.expr]]:
        """Return the names and expressions of the operands, in the order in which the original expression
        evaluates them."""
        at = {id(node): index for index, node in enumerate(walk(self))}
        return sorted(self.operands.items(), key=lambda item: at.get(id(item[1]), len(at)))


def walk(chain: Chain) -> Iterator[ast.AST]:
    """Yield the syntax tree nodes of `chain` (an expression that one kernel may compute), in the order in
    which Python evaluates them."""
    ends = {id(node) for node in chain.operands.values()}

    def visit(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if id(node) in ends:
            return
        if id(node) in chain.inlined and id(node) not in chain.functions:
            yield from visit(chain.inlined[id(node)])
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return visit(chain.node)


class Own(ast.NodeTransformer):
    """Copies the original expression of a chain, as the body of a function whose parameters are the operands.

    In the copy, each operand is replaced by the name of its parameter. Each inlined variable is replaced by
    the expression that the method assigned to this variable.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.parameters = {id(node): name for name, node in chain.operands.items()}
        self.used: set[str] = set()
        self.called: set[str] = set()
        self.calls: list[ast.Call] = []
        """Copies of the calls to functions whose source is part of the expression."""
        self.renamed: set[str] = set()
        """Variables of the method that have the same name as a parameter. In the copy, their names get a
        prefix."""

    def visit(self, node: ast.AST) -> Any:
        """Return the copy of a node."""
        if name := self.parameters.get(id(node)):
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        if name := self.chain.functions.get(id(node)):
            self.called.add(name)  # The original expression calls the function.
            made = self.generic_visit(copy.copy(node))
            assert isinstance(made, ast.Call)
            self.calls.append(made)
            return made
        elif id(node) in self.chain.inlined:
            if name := self.chain.names.get(id(node)):
                self.used.add(name)
            return self.visit(self.chain.inlined[id(node)])
        if isinstance(node, ast.Name) and node.id in self.chain.operands:
            self.renamed.add(node.id)
            return ast.copy_location(ast.Name(PREFIX + node.id, node.ctx), node)
        return self.generic_visit(copy.copy(node))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Replace the fields of a copied node by copies."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [self.visit(item) if isinstance(item, ast.AST) else item for item in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


class Finder:
    """Looks for chains (expressions that one kernel may compute) in the statement with index `at` of a block.

    In a chain, the expression that defines a variable may replace the variable. If `split` is True, this expression may
    contain calls with side effects, which then stay in the definition of the variable.
    """

    def __init__(self, block: Block, at: int, space: Mapping[str, Any], split: bool = True) -> None:
        self.block, self.at, self.space, self.split = block, at, space, split
        self.start()

    def start(self) -> None:
        """Forget the variables and functions that the previous search inlined."""
        self.inlined: dict[int, ast.expr] = {}
        self.names: dict[int, str] = {}
        self.functions: dict[int, str] = {}
        self.kept: dict[str, ast.stmt] = {}

    def see(self, node: ast.expr) -> ast.expr:
        """For a variable, return the expression that defines it, if this expression may be evaluated here
        instead. For a call of a function with a known formula, return the formula.

        Return any other expression unchanged.
        """
        if isinstance(node, ast.Call) and (name := function_name(node.func)):
            if id(node) not in self.inlined:
                formula = formula_of(node, function_at(name, self.space), self.space)
                if formula is None:
                    return node
                self.inlined[id(node)], self.functions[id(node)] = formula, name
            return self.inlined[id(node)]
        if not isinstance(node, ast.Name):
            return node
        if id(node) not in self.inlined:
            if node.id in self.names.values():  # In `y = y[0]`, the inner `y` has an earlier value.
                return node
            found = self.block.expanded(node.id, self.at, self.split)
            if found is None:
                return node
            value, kept = found
            if kept is not None:
                self.kept[node.id] = kept
            self.inlined[id(node)], self.names[id(node)] = value, node.id
        return self.inlined[id(node)]

    def without_casts(self, node: ast.expr) -> tuple[ast.expr, ast.expr | None]:
        """Return an expression without its casts, and the dtype to which it is cast.

        There may be two casts: in `f(x).type_as(x)`, the formula of `f` may also cast to the dtype of `x`.
        Both are then removed.
        """
        result, target = without_cast(self.see(node) if isinstance(node, ast.Call) else node)
        if target is None:
            return result, None
        inner, other = without_cast(self.see(result))
        return (inner, target) if other is not None and same_dtype(target, other) else (self.see(result), target)

    def chain(self, op: str, node: ast.expr, operands: dict[str, ast.expr | None], **options: Any) -> Chain:
        """Return a `Chain` (an expression that one kernel may compute) for `node`. Operands that are None are
        omitted."""
        given = {name: operand for name, operand in operands.items() if operand is not None}
        seen = dict(self.inlined), dict(self.names), dict(self.functions), dict(self.kept)
        return Chain(op, node, given, options, *seen)

    def find(self, node: ast.expr, *patterns: str) -> Chain | None:
        """Return the `Chain` whose last operation is `node`, or None.

        A `Chain` is an expression that one kernel may compute. `patterns` are names of methods of this class,
        each of which matches one kind of expression.
        """
        for pattern in (
            getattr(self, name)
            for name in patterns or (MODULATED, FACTOR_NORM, TANH_SUM, GATED, MODULATION, ACTIVATION)
        ):
            self.start()
            found = pattern(node)
            if found and found.keeps_order() and found.evaluates_once():
                return found
        return None

    def gated_residual(self, node: ast.expr) -> Chain | None:
        """Match `x + gate * y`.

        Also accept casts of `x`, `gate` and `y` to float32. The product or the sum may then be cast back to
        the original dtype.
        """
        total, target = self.without_casts(node)
        if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add):
            return None
        for residual, branch in ((total.left, total.right), (total.right, total.left)):
            product, of_branch = without_float(self.see(branch))
            product, rounded = without_cast(product) if target is None else (product, None)
            product = self.see(product)
            x, wide_x = without_float(residual)
            if not is_product(product) or of_branch or is_product(self.see(x)) or not is_value(x):
                continue
            assert isinstance(product, ast.BinOp)
            factors = product.left, product.right
            if any(is_number(self.see(factor)) or is_share(self.see(factor)) for factor in factors):
                continue
            (a, wide_a), (b, wide_b) = (without_float(factor) for factor in factors)
            if not (is_value(a) and is_value(b)):
                continue
            operands = {"x": x, "a": a, "b": b, "target": target or rounded}
            wide = wide_x, wide_a, wide_b
            return self.chain("gated_residual", node, operands, wide=wide, inner=rounded is not None)
        return None

    def plain_sum(self, node: ast.expr) -> Chain | None:
        """Match `x + y`."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        if not all(is_value(part) and not is_number(part) for part in (node.left, node.right)):
            return None
        return self.chain("plain_sum", node, {"x": node.left, "y": node.right})

    def plain_norm(self, node: ast.expr) -> Chain | None:
        """Match `norm(x)`.

        Also accept a cast of `x` to float32, and a cast of the norm's result back to the original dtype.
        """
        call, target = without_cast(node)
        if target is not None:
            call = self.see(call)
        if not is_norm_call(call):
            return None
        assert isinstance(call, ast.Call)
        x, wide = without_float(call.args[0])
        return self.chain("plain_norm", node, {"norm": call.func, "x": x, "target": target}, wide=wide)

    def modulated_norm(self, node: ast.expr) -> Chain | None:
        """Match `norm(x) * (1 + scale) + shift`, also without the shift.

        Also accept casts of `x`, `scale` and `shift` to float32, and a cast of the result back to the
        original dtype.
        """
        return self.shifted(node, self.modulated)

    def modulation(self, node: ast.expr) -> Chain | None:
        """Match `x * (1 + scale) + shift`, also without the shift.

        Also accept casts of `x`, `scale` and `shift` to float32, and a cast of the result back to the
        original dtype.
        """
        return self.shifted(node, self.scaled)

    def shifted(self, node: ast.expr, match: Callable[..., Chain | None]) -> Chain | None:
        """Match a sum `product + shift`, or a product without a shift. The function `match` checks the
        product.
        """
        result, target = self.without_casts(node)
        if isinstance(result, ast.BinOp) and isinstance(result.op, ast.Add):
            for product, shift in ((result.left, result.right), (result.right, result.left)):
                if is_value(shift) and (found := match(node, product, shift, target)):
                    return found
            return None
        return match(node, result, None, target)

    def modulated(
        self, node: ast.expr, product: ast.expr, shift: ast.expr | None, target: ast.expr | None
    ) -> Chain | None:
        """Match `product`, if it is `norm(x) * (1 + scale)`. `shift` is the term that `node` adds to the
        product, or None."""
        for normed, factor in orders(self.see(product)):
            scale = self.scale_of(factor)
            if scale is None:
                continue
            call, cast = without_cast(self.see(normed))
            call = self.see(call)
            if not is_norm_call(call) or (cast is not None and target is not None):
                continue
            assert isinstance(call, ast.Call)
            x, wide = without_float(call.args[0])
            operands = {"norm": call.func, "x": x, "scale": scale, "shift": shift, "target": target or cast}
            return self.chain("modulated_norm", node, operands, wide=wide, inner=cast is not None)
        return None

    def scaled(
        self, node: ast.expr, product: ast.expr, shift: ast.expr | None, target: ast.expr | None
    ) -> Chain | None:
        """Match `product`, if it is `x * (1 + scale)`. Reject `0.5 * x * (1 + tanh(...))`, which is a GELU
        activation."""
        for value, factor in orders(self.see(product)):
            scale = self.scale_of(factor)
            x, wide = without_float(value)
            if scale is None or not is_value(scale) or is_number(scale) or is_parameter(scale):
                continue
            inner = self.see(x)
            of_number = isinstance(inner, ast.BinOp) and (is_number(inner.left) or is_number(inner.right))
            if not is_value(x) or is_number(x) or of_number:
                continue
            return self.chain(MODULATION, node, {"x": x, "scale": scale, "shift": shift, "target": target}, wide=wide)
        return None

    def factor_norm(self, node: ast.expr) -> Chain | None:
        """Match `norm(x, 1 + scale)`: a norm that multiplies its result by its second argument. `scale` may
        be cast to float32."""
        found = with_factor(node)
        if found is None:
            return None
        norm, x, factor = found
        scale = self.scale_of(factor)
        if scale is None or not is_value(scale):
            return None
        scale, wide = without_float(scale)
        return self.chain(FACTOR_NORM, node, {"norm": norm, "x": x, "scale": scale}, wide=wide)

    def tanh_sum(self, node: ast.expr) -> Chain | None:
        """Match `x + norm(y, torch.tanh(gate))`. The second argument may also be a view of the result of
        `tanh`."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        for x, other in ((node.left, node.right), (node.right, node.left)):
            found = with_factor(self.see(other))
            gate = None if found is None else without_tanh(found[2])
            if found is None or gate is None or not is_value(x):
                continue
            norm, y, factor = found
            chain = self.chain(TANH_SUM, node, {"x": x, "norm": norm, "y": y, "gate": gate})
            chain.inlined[id(factor)] = tanh_of(gate)
            return chain
        return None

    def gated_activation(self, node: ast.expr) -> Chain | None:
        """Match `activation(gate) * up` and `gate.sigmoid() * up`."""
        for first, up in orders(self.see(node) if isinstance(node, ast.Call) else node):
            call = self.see(first)
            if not isinstance(call, ast.Call) or not is_value(up) or is_number(up):
                continue
            if gate := sigmoid_of(call):
                return self.chain(ACTIVATION, node, {"gate": gate, "up": up}, approximate="")
            if len(call.args) != 1:
                continue
            options = {keyword.arg: keyword.value for keyword in call.keywords}
            approximate = options.pop("approximate", ast.Constant(""))
            if options or not isinstance(approximate, ast.Constant) or not is_activation(call.func):
                continue
            operands: dict[str, ast.expr | None] = {"act": call.func, "gate": call.args[0], "up": up}
            return self.chain(ACTIVATION, node, operands, approximate=approximate.value)
        return None

    def scale_of(self, factor: ast.expr) -> ast.expr | None:
        """If `factor` is `1 + scale` or `scale + 1`, return `scale`. Otherwise return None.

        If `factor` is a view such as `(1 + scale)[i]`, return the same view of the scale: `scale[i]`.
        """
        factor = self.see(factor)
        if (x := viewed(factor)) is None:
            return one_plus(factor)
        inner = self.scale_of(x)
        if inner is None:
            return None
        scale = view_of(inner, factor)
        total = ast.BinOp(ast.copy_location(ast.Constant(1), factor), ast.Add(), scale)
        self.inlined[id(factor)] = ast.copy_location(total, factor)
        return scale


def function_of(names: list[str], body: ast.expr, renamed: set[str]) -> ast.Lambda:
    """Return the syntax tree of `lambda *names: body`.

    For each variable in `renamed`, the lambda has one more parameter. It is named like the variable, with a prefix, and
    its default value is the variable.
    """
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in (*names, *(PREFIX + name for name in sorted(renamed)))],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[ast.Name(name, ast.Load()) for name in sorted(renamed)],
    )
    return ast.Lambda(arguments, body)


__all__ = [
    "ACTIVATION",
    "FACTOR_NORM",
    "GATED",
    "MODULATED",
    "MODULATION",
    "NORM",
    "SUM",
    "TANH_SUM",
    "Chain",
    "Finder",
    "function_of",
    "orders",
    "walk",
]
