"""Changes for test_patch_matrix.py and test_rewrite_adaptations.py that quantize linear layers.

Each change is a generator function. The changes use bitsandbytes, or the GGUF classes of diffusers. Both
libraries replace the linear modules.
"""

import functools

import pytest
import torch
from patch_changes import change, linears


def bitsandbytes(model, bits):
    """Replace linear layers by linear layers of bitsandbytes. `.to("cpu")` quantizes their weights."""
    layers = pytest.importorskip("bitsandbytes.nn")
    for path in linears(model):
        old = model.get_submodule(path)
        shape, bias = (old.in_features, old.out_features), old.bias is not None
        if bits == 8:
            new = layers.Linear8bitLt(*shape, bias=bias, has_fp16_weights=False, threshold=6.0)
        else:
            new = layers.Linear4bit(*shape, bias=bias, compute_dtype=old.weight.dtype, quant_type="nf4")
        new.load_state_dict(old.state_dict())
        if bias:
            new.bias = old.bias  # the new layer keeps the dtype of the bias
        model.set_submodule(path, new.to("cpu").requires_grad_(False))
    yield


# With 8 bits, bitsandbytes also rounds the activations to integers. A difference in the last bit of an
# activation may then change its integer by 1.
change(name="bitsandbytes-int8", off=0.03)(functools.partial(bitsandbytes, bits=8))
change(name="bitsandbytes-nf4")(functools.partial(bitsandbytes, bits=4))


@change("diffusers")
def gguf(model):
    """Quantize linear layers to Q8_0, as diffusers does when it loads a GGUF file."""
    quants = pytest.importorskip("gguf.quants")
    from diffusers.quantizers.gguf.utils import GGUFParameter, _replace_with_gguf_linear

    kind, state = quants.GGMLQuantizationType.Q8_0, {}
    block = quants.GGML_QUANT_SIZES[kind][0]  # All values of a block share one scale.
    old = {path: model.get_submodule(path) for path in linears(model)}
    for path, layer in old.items():
        if layer.in_features % block == 0:
            raw = torch.from_numpy(quants.quantize(layer.weight.detach().float().numpy(), kind))
            state[f"{path}.weight"] = GGUFParameter(raw, quant_type=kind)
    assert state
    _replace_with_gguf_linear(model, next(model.parameters()).dtype, state)
    for name, weight in state.items():
        path = name.removesuffix(".weight")
        model.get_submodule(path)._parameters.update(weight=weight, bias=old[path].bias)
    yield
