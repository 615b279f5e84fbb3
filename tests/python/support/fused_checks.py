"""Checks of patched models with fused blocks. In a fused block, `patch` has replaced the method `forward` by a
hand-written one.

The expected oxiwarp operators must run, the results must equal the results of the unpatched model, and
`unpatch` must work.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp
from oxiwarp.patching.fusions.core.ops import INDUCTOR


class Operators(TorchDispatchMode):
    """Counts the calls of oxiwarp's operators."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "oxiwarp":
            self.calls[func.name().removeprefix("oxiwarp::")] += 1
        return func(*args, **kwargs or {})


def counts(calls, expected):
    """Return the number of calls of each operator in `expected`."""
    return {name: calls.get(name, 0) for name in expected}


def run(model, inputs):
    """Call the model. Return the results that are tensors, and the number of calls of each oxiwarp operator."""
    with Operators() as operators:
        results = model(**inputs)
    return [result for result in results if isinstance(result, torch.Tensor)], dict(operators.calls)


def check_model(make, make_input, dtype, device, expected, modes=("exact", "fast"), bits=True):
    """Check that a patched model calls its operators as often as `expected` says, and gives correct results.

    If `bits` is true, results in mode "exact" on a GPU must equal the unpatched model bit for bit. In all
    other cases, they may differ by the rounding errors of their dtype.
    """
    model, inputs = make(dtype, device), make_input(dtype, device)
    stock, none = run(model, inputs)
    assert not none and all(result.isfinite().all() for result in stock)
    wider = [result.double() for result in run(make(torch.float32, device), make_input(torch.float32, device))[0]]
    for mode in modes:
        report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
        patched, calls = run(model, inputs)
        assert counts(calls, expected) == expected, f"{mode}: {calls}\n{report}"
        for ours, own, right in zip(patched, stock, wider, strict=True):
            assert ours.dtype == own.dtype and ours.shape == own.shape
            if bits and mode == "exact" and torch.device(device).type == "cuda":
                assert torch.equal(ours, own), f"{(ours != own).sum()} of {own.numel()} differ"
            close(ours, own, right)
        assert oxiwarp.unpatch(model) == report.replaced
        back, none = run(model, inputs)
        assert not none and all(map(torch.equal, back, stock))


def close(ours, own, right):
    """Check that the patched result `ours` and the unpatched result `own` differ by at most twice the rounding error.

    The rounding error is the difference between `own` and `right`, the unpatched float32 result. If `own` is also
    float32, the results may differ by 1e-5 of the largest value.
    """
    off, own_off = (ours.double() - own.double()).abs(), (own.double() - right).abs()
    if own.dtype == torch.float32:
        assert off.max() <= 1e-5 * own.abs().max(), off.max()
    else:
        assert off.mean() <= own_off.mean() and off.max() <= 2 * own_off.max(), (off.mean(), own_off.mean(), off.max())


def check_compiled(model, inputs, expected, fullgraph=True):
    """Check that torch.compile does not change the results of the patched model.

    The graph must have the expected oxiwarp operators. Operators in `INDUCTOR` need not be in the graph,
    because Inductor generates their code.
    """
    expected = {name: count for name, count in expected.items() if name not in INDUCTOR}
    oxiwarp.patch(model, cpu_kernels=True)
    eager, _ = run(model, inputs)
    torch._dynamo.reset()
    nodes = Counter()

    def backend(graph, example_inputs):
        from torch._dynamo.backends.registry import lookup_backend

        targets = (node.target for node in graph.graph.nodes if node.op == "call_function")
        nodes.update(t.name().removeprefix("oxiwarp::") for t in targets if getattr(t, "namespace", "") == "oxiwarp")
        return lookup_backend("aot_eager")(graph, example_inputs)

    compiled = torch.compile(model, fullgraph=fullgraph, backend=backend)(**inputs)
    compiled = [result for result in compiled if isinstance(result, torch.Tensor)]
    assert counts(nodes, expected) == expected
    for ours, right in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, right)
    torch._dynamo.reset()


def check_gradients(model, inputs, expected):
    """Check the gradients of a patched model against the gradients of the unpatched model, in float32.

    The oxiwarp operators must run although the calls record gradients.
    """

    def gradients():
        with torch.enable_grad():
            results, calls = run(model, inputs)
            sum(result.square().mean() for result in results).backward()
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
        return found, calls

    stock, _ = gradients()
    oxiwarp.patch(model, cpu_kernels=True)
    patched, calls = gradients()
    assert counts(calls, expected) == expected
    for name, gradient in patched.items():
        own = stock[name]
        assert (gradient is None) == (own is None), name
        assert own is None or (gradient - own).abs().max() <= 1e-5 * own.abs().max() + 1e-9, name


def check_unknown_source(monkeypatch, model, classes, fusions):
    """Check that `patch` skips objects whose method has unknown source code, and that it reports the reason.

    A fusion (a replacement for a method) applies only to methods with known source code.
    """
    from oxiwarp.patching.fusions import FUSIONS

    for cls, name in zip(classes, fusions, strict=True):
        method = FUSIONS[name].method
        own = getattr(cls, method)

        def changed(self, *args, own=own, **kwargs):
            return own(self, *args, **kwargs)

        with monkeypatch.context() as patches:
            patches.setattr(cls, method, changed)
            report = oxiwarp.patch(model, allow_empty=True)
            reasons = {row.reason for row in report if row.module_class.endswith(cls.__qualname__)}
            assert len(reasons) == 1 and f"{method} is not the one that {name} knows" in reasons.pop()
            oxiwarp.unpatch(model)
