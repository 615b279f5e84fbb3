"""Changes for test_patch_matrix.py that affect the call of a model.

Each change is a generator function. Examples: autocast, inference mode, checkpoints, threads.
"""

import threading

import torch
from patch_changes import change
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


@change(kernels=False)
def autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        yield


@change(grad=True, kernels=False)
def autocast_gradients(model):
    with torch.autocast("cpu", torch.bfloat16):
        yield


@change()
def inference_mode(model):
    with torch.inference_mode():
        yield


def tensors_of(x, make):
    """Return the arguments `x` of a model call with `make` applied to each tensor."""
    if isinstance(x, torch.Tensor):
        return make(x)
    if isinstance(x, dict):
        return {key: tensors_of(value, make) for key, value in x.items()}
    return tuple(tensors_of(value, make) for value in x) if isinstance(x, tuple) else x


@change()
def inference_tensors(model):
    """Pass inference tensors to a call outside of inference mode."""

    def call(**inputs):
        with torch.inference_mode():
            inputs = tensors_of(inputs, torch.clone)
        return model(**inputs)

    yield call


@change("-vace", "-qwen_image_edit")
def one_of_a_batch(model):
    """Call the model with only the first element of each argument that has batch size 2."""
    yield lambda **inputs: model(**tensors_of(inputs, lambda x: x[:1] if x.dim() and x.shape[0] == 2 else x))


@change()
def strided_arguments(model):
    """Pass non-contiguous slices of larger tensors as arguments."""
    yield lambda **inputs: model(**tensors_of(inputs, sliced))


def sliced(x):
    if x.dim() < 2:
        return x
    wide = x.new_zeros(*x.shape[:-2], x.shape[-2] * 2, x.shape[-1])
    wide[..., ::2, :] = x
    return wide[..., ::2, :]


@change(grad=True)
def saved_on_cpu(model):
    with torch.autograd.graph.save_on_cpu():
        yield


@change(grad=True)
def saved_tensors_packed(model):
    """Copy the tensors that autograd saves, with saved-tensor hooks."""
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        yield


@change(grad=True)
def anomaly_mode(model):
    with torch.autograd.set_detect_anomaly(True):
        yield


def checkpointed(model, use_reentrant):
    """Return a function that calls the model in `torch.utils.checkpoint`. The backward pass runs the
    forward pass again."""

    def call(**inputs):
        x = next(value for value in inputs.values() if isinstance(value, torch.Tensor) and value.is_floating_point())
        x.requires_grad_()
        return checkpoint(lambda _: tuple(tensors(model(**inputs))), x, use_reentrant=use_reentrant)

    return call


def tensors(y):
    values = y.values() if isinstance(y, dict) else y if isinstance(y, tuple) else [y]
    return [x for x in values if isinstance(x, torch.Tensor)]


@change("-transformers", grad=True)
def checkpoint_reentrant(model):
    yield checkpointed(model, use_reentrant=True)


@change("-transformers", grad=True)
def checkpoint_not_reentrant(model):
    yield checkpointed(model, use_reentrant=False)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


@change(kernels=None)
def function_mode(model):
    with Functions():
        yield


@change()
def dispatch_mode(model):
    with Dispatched():
        yield


@change(kernels=None)
def flops_counted(model):
    """Count FLOPs with `FlopCounterMode`, which adds hooks to all modules. Return the count with the result."""

    def call(**inputs):
        with FlopCounterMode(display=False) as counter:
            y = model(**inputs)
        return y, counter.get_total_flops()

    yield call


@change("-mochi", "-qwen_image", "-qwen_image_edit", kernels=None)
def fake_tensors(model):
    """Call the model with fake tensors and return only dtypes and shapes."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield lambda **inputs: shapes(model(**tensors_of(inputs, mode.from_tensor)))


def shapes(y):
    return [(x.dtype, x.shape) for x in tensors(y)]


@change(kernels=None)
def default_dtype(model):
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@change()
def default_device(model):
    with torch.device("cpu"):
        yield


@change()
def deterministic(model):
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@change(kernels=None)
def called_by_threads(model):
    """Call the model from three threads at once."""

    def call(**inputs):
        results = [None] * 3

        def run(at):
            with torch.no_grad():
                results[at] = model(**inputs)

        threads = [threading.Thread(target=run, args=(at,)) for at in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tuple(results)

    yield call
