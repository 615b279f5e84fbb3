"""Changes for test_patch_matrix.py that transform the call of a model. Each change is a generator function.

Examples: torch.func, torch.compile, torch.export.
"""

import torch
from patch_changes import change
from patch_changes_calls import tensors
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel


@change()
def called_functionally(model):
    """Call the model with other parameters through `functional_call`."""
    other = {name: x * 1.25 for name, x in model.named_parameters()}
    yield lambda **inputs: functional_call(model, other, (), inputs)


@change("-mochi", kernels=None)
def ensemble(model):
    """Map the call over stacked parameters with vmap."""
    stacked = {name: torch.stack([x, x * 1.25]) for name, x in model.named_parameters()}

    def call(**inputs):
        run = lambda parameters: tuple(tensors(functional_call(model, parameters, (), inputs)))  # noqa: E731
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.vmap(run)(stacked)

    yield call


@change("-mixtral", kernels=False)
def forward_mode(model):
    """Compute forward-mode derivatives for tangents of the parameters."""

    def call(**inputs):
        given = {name: x.detach() for name, x in model.named_parameters()}
        run = lambda parameters: tuple(tensors(functional_call(model, parameters, (), inputs)))  # noqa: E731
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(run, (given,), ({name: x * 0.1 for name, x in given.items()},))

    yield call


@change(kernels=None)
def functional_gradients(model):
    """Compute gradients of the parameters with `torch.func.grad`."""

    def call(**inputs):
        given = {name: x.detach() for name, x in model.named_parameters()}
        loss = lambda p: sum(y.square().mean() for y in tensors(functional_call(model, p, (), inputs)))  # noqa: E731
        with torch.enable_grad():
            return torch.func.grad(loss)(given)

    yield call


@change(kernels=None, orders=("before", "after"))
def compiled(model):
    """Trace the model with Dynamo and run the graph in eager torch."""
    torch.compiler.reset()
    yield torch.compile(model, backend="eager")
    torch.compiler.reset()


@change(kernels=None, bits=False, orders=("before", "after"))
def exported(model):
    """Export the model at each call and run the exported program."""

    def call(**inputs):
        return torch.export.export(model, (), inputs, strict=False).module()(**inputs)

    yield call
