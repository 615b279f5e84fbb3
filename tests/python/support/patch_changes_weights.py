"""Changes for test_patch_matrix.py that affect parameters. Each change is a generator function.

Examples: parametrizations, pruning masks, and weights that are plain tensors or buffers.
"""

import contextlib

from patch_changes import change, linears, norms
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

# torch's `parametrize` adds a property to the class of a module. If the module is patched afterwards, its
# class is a subclass made by oxiwarp, and the property belongs to the base class. `remove_parametrizations`
# then fails, because it deletes the property only from the module's own class.
PATCHED_OVER = "remove_parametrizations of a module that was patched after it was parametrized"


class Scale(nn.Module):
    """A parametrization that multiplies a tensor by 1.5."""

    def forward(self, x):
        return x * 1.5


@change(leaves=True, orders=("after", "around"))
def norms_parametrized(model):
    paths = norms(model)
    for path in paths:
        parametrize.register_parametrization(model.get_submodule(path), "weight", Scale())
    yield
    for path in paths:
        parametrize.remove_parametrizations(model.get_submodule(path), "weight", leave_parametrized=False)


WITH_TABLES = ("wan", "vace", "pixart", "ltx", "ltx2", "ltx2.3")


@change(*WITH_TABLES, leaves=True, known={"before-*": PATCHED_OVER, "within-*": PATCHED_OVER})
def tables_parametrized(model):
    """Parametrize the modulation tables, which are parameters of the blocks."""
    owners = [module for module in model.modules() if hasattr(module, "scale_shift_table")]
    for module in owners:
        parametrize.register_parametrization(module, "scale_shift_table", Scale())
    yield
    for module in owners:
        parametrize.remove_parametrizations(module, "scale_shift_table", leave_parametrized=False)


@change(grad=True)
def linears_weight_norm(model):
    for path in linears(model):
        parametrizations.weight_norm(model.get_submodule(path))
    yield


@change(grad=True)
def linears_old_weight_norm(model):
    paths = linears(model)
    for path in paths:
        nn.utils.weight_norm(model.get_submodule(path))
    yield
    for path in paths:
        nn.utils.remove_weight_norm(model.get_submodule(path))


@change(grad=True)
def pruned(model):
    """Prune norms and linears. torch gives each module a mask as a buffer, and a hook that multiplies the
    weight by the mask."""
    paths = norms(model) + linears(model)
    for path in paths:
        prune.random_unstructured(model.get_submodule(path), "weight", amount=0.3)
    yield
    for path in paths:
        prune.remove(model.get_submodule(path), "weight")


@contextlib.contextmanager
def weights_exchanged(model, paths, give):
    """Remove the `weight` parameter of each module, and call `give(module, 2 * weight)` to add a replacement.

    When the context ends, the parameters are restored.
    """
    old = []
    for path in paths:
        module = model.get_submodule(path)
        old.append((module, dict(module._parameters)))
        weight = module.weight.detach() * 2
        del module.weight
        give(module, weight)
    yield
    for module, parameters in old:
        del module.weight
        module._parameters.clear()
        module._parameters.update(parameters)


@change()
def norm_weights_as_tensors(model):
    with weights_exchanged(model, norms(model), lambda module, weight: setattr(module, "weight", weight)):
        yield


@change()
def norm_weights_as_buffers(model):
    with weights_exchanged(model, norms(model), lambda module, weight: module.register_buffer("weight", weight)):
        yield


@change()
def linear_weights_as_tensors(model):
    with weights_exchanged(model, linears(model), lambda module, weight: setattr(module, "weight", weight)):
        yield
