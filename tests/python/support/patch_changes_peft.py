"""Changes for test_patch_matrix.py that add peft adapters to a model or quantize its linear layers.

Each change is a generator function.
"""

import functools

import pytest
import torch
from patch_changes import change, linears, norms

# Maps the name of a change to the class of the peft configuration and its options. By default, some adapter
# weights are zero, so that the adapter does not change the results. The options make these weights random.
ADAPTERS = {
    "lora": ("LoraConfig", dict(r=2, init_lora_weights=False)),
    "dora": ("LoraConfig", dict(r=2, init_lora_weights=False, use_dora=True)),
    "rslora": ("LoraConfig", dict(r=2, lora_alpha=2, init_lora_weights=False, use_rslora=True)),
    "loha": ("LoHaConfig", dict(r=2, init_weights=False)),
    "lokr": ("LoKrConfig", dict(r=2, init_weights=False)),
    "oft": ("OFTConfig", dict(oft_block_size=4, init_weights=False)),
    "ia3": ("IA3Config", dict(feedforward_modules=[], init_ia3_weights=False)),
    "vera": ("VeraConfig", dict(r=2, init_weights=False)),
}


def adapted(model, kind="lora", **options):
    """Return the model in peft's wrapper, with an adapter at each linear layer of its blocks."""
    peft = pytest.importorskip("peft")
    cls, own = ADAPTERS[kind]
    return peft.get_peft_model(model, getattr(peft, cls)(target_modules=linears(model), **own, **options))


def adapter(model, kind):
    made = adapted(model, kind)
    yield made
    made.unload()


for kind in ADAPTERS:
    change("-cogvideox-packed", name=kind, grad=True)(functools.partial(adapter, kind=kind))


@change(grad=True)
def lora_with_dropout(model):
    made = adapted(model, lora_dropout=0.5)
    yield made.train()
    made.eval().unload()


@change("-net", grad=True)
def lora_and_saved_norms(model):
    """Train copies of the norms, which peft's `modules_to_save` puts into wrappers."""
    made = adapted(model, modules_to_save=norms(model))
    yield made
    made.unload()


@change()
def lora_disabled(model):
    made = adapted(model)
    made.base_model.disable_adapter_layers()
    yield made
    made.unload()


@change()
def lora_merged(model):
    """Merge adapters into the weights of the linear layers, and unmerge them afterwards."""
    made = adapted(model)
    made.merge_adapter()
    yield made
    made.unmerge_adapter()
    made.unload()


@change()
def lora_for_good(model):
    yield adapted(model).merge_and_unload()


@change(grad=True)
def two_loras(model):
    """Add two adapters and activate the second one."""
    made = adapted(model)
    made.add_adapter("second", made.peft_config["default"])
    made.set_adapter("second")
    yield made
    made.unload()


@change(kernels=None, off=0.03)
def quantize_dynamic(model):
    """Replace linear layers by torch's dynamically quantized int8 layers."""
    from torch.ao.quantization import quantize_dynamic

    quantize_dynamic(model, set(linears(model)), dtype=torch.qint8, inplace=True)
    yield


def quantized(model, config):
    """Quantize linear layers with torchao, which replaces the weight tensors but keeps the modules."""
    quantization = pytest.importorskip("torchao.quantization")
    chosen = set(linears(model))
    quantization.quantize_(model, getattr(quantization, config)(), filter_fn=lambda module, name: name in chosen)
    yield


for name, config in {
    "torchao-int8": "Int8WeightOnlyConfig",
    "torchao-float8": "Float8WeightOnlyConfig",
    "torchao-int8-activations": "Int8DynamicActivationInt8WeightConfig",
}.items():
    change(name=name, kernels=None, off=0.03)(functools.partial(quantized, config=config))
