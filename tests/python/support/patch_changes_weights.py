"""Changes for the patch matrix that affect parameters: parametrizations, masks, weights that are not parameters."""

import contextlib

from patch_changes import change, linears, norms
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

# `remove_parametrizations` deletes a property from the class of the module and ignores base classes. It fails
# if oxiwarp's subclass is the class and the property belongs to the base.
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
    """Prune norms and linears. Each gets a mask as a buffer, and a hook that applies the mask."""
    paths = norms(model) + linears(model)
    for path in paths:
        prune.random_unstructured(model.get_submodule(path), "weight", amount=0.3)
    yield
    for path in paths:
        prune.remove(model.get_submodule(path), "weight")


@contextlib.contextmanager
def weights_exchanged(model, paths, give):
    """Within the context, replace the `weight` parameter of each module by calling `give(module, 2 * weight)`."""
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
