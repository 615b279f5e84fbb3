"""Changes for test_patch_matrix.py that transformers makes to a decoder. Each change is a generator function.

Examples: generate tokens, change the attention implementation, train.
"""

import functools
import tempfile

import pytest
import torch
from patch_changes import change


def with_head(model):
    """Return a language model that consists of a decoder and a head with fixed random weights."""
    transformers = pytest.importorskip("transformers")
    name = type(model).__name__.removesuffix("Model").removesuffix("Text")
    torch.manual_seed(3)
    made = getattr(transformers, f"{name}ForCausalLM")(model.config).eval().requires_grad_(False)
    made.model = model
    made.generation_config.eos_token_id = None
    return made


def generating(model, options, padded=False):
    """Generate some tokens and return them with their logits."""
    whole = with_head(model)

    def call(input_ids, **_):
        mask = torch.ones_like(input_ids)
        mask[1, :3] = 0 if padded else 1
        made = whole.generate(
            input_ids=input_ids,
            attention_mask=mask,
            max_new_tokens=4,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )
        return made.sequences, made.logits

    yield call


GENERATE = {
    "generate": {},
    "generate-static-cache": {"cache_implementation": "static"},
    "generate-dynamic-cache": {"cache_implementation": "dynamic"},
    "generate-no-cache": {"use_cache": False},
    "generate-beams": {"num_beams": 2},
    "generate-sampled": {"do_sample": True, "top_k": 5},
}
for name, options in GENERATE.items():
    change("decoder", name=name, kernels=None)(functools.partial(generating, options=options))
change("decoder", name="generate-padded", kernels=None)(functools.partial(generating, options={}, padded=True))


def guessing(model, make_options):
    """Generate one sequence of tokens with speculative decoding."""
    whole = with_head(model)

    def call(input_ids, **_):
        return whole.generate(input_ids=input_ids[:1] % 4, max_new_tokens=6, **make_options(whole))

    yield call


for name, make_options in {
    "generate-prompt-lookup": lambda whole: {"prompt_lookup_num_tokens": 2},
    "generate-assisted": lambda whole: {"assistant_model": whole},
}.items():
    change("decoder", name=name, kernels=None)(functools.partial(guessing, make_options=make_options))


@change("decoder")
def two_turns(model):
    """Fill a KV cache in one call, reorder its batch entries, and read the cache in the next call."""
    cache_utils = pytest.importorskip("transformers.cache_utils")

    def call(input_ids, **_):
        cache = cache_utils.DynamicCache()
        first = model(input_ids=input_ids, past_key_values=cache, use_cache=True).last_hidden_state
        cache.reorder_cache(torch.tensor([1, 0]))
        second = model(input_ids=input_ids[:, :5] + 1, past_key_values=cache, use_cache=True).last_hidden_state
        return first, second

    yield call


@change("decoder")
def packed_positions(model):
    """Pass two texts packed into one row."""
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None].expand(2, -1)
    yield lambda **inputs: model(**inputs, position_ids=positions)


@change("decoder")
def mask_of_four_dimensions(model):
    mask = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    mask[1, :, :, :3] = False
    mask[1, :, :3] = mask[0, :, :3]
    yield lambda **inputs: model(**inputs, attention_mask=mask)


@change("decoder")
def inner_states(model):
    """Return the hidden states of all layers."""
    yield lambda **inputs: model(**inputs, output_hidden_states=True)


def attention_implementation(model, implementation, options):
    own = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    yield lambda **inputs: model(**inputs, **options)
    model.set_attn_implementation(own)


change("decoder", name="eager-attention")(
    functools.partial(attention_implementation, implementation="eager", options={"output_attentions": True})
)
change("decoder", name="sdpa-attention")(functools.partial(attention_implementation, implementation="sdpa", options={}))


def checkpointing(model, use_reentrant):
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    yield model.train()
    model.gradient_checkpointing_disable()
    model.eval()


for word, use_reentrant in {"": False, "-reentrant": True}.items():
    change("transformers", name=f"layer-checkpointing{word}", grad=True)(
        functools.partial(checkpointing, use_reentrant=use_reentrant)
    )


@change("decoder")
def is_causal(model):
    """Make attention bidirectional."""
    old = [module for module in model.modules() if getattr(module, "is_causal", False)]
    for module in old:
        module.is_causal = False
    yield
    for module in old:
        module.is_causal = True


@change("decoder", kernels=None, bits=False, repeats=False, orders=("before", "after"), slow=True)
def trainer(model):
    """Run two steps of transformers' `Trainer` with gradient checkpointing."""
    transformers = pytest.importorskip("transformers")
    whole = with_head(model).requires_grad_()

    def call(input_ids, **_):
        options = dict(use_cpu=True, report_to=[], max_steps=2, disable_tqdm=True, save_strategy="no")
        with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
            arguments = transformers.TrainingArguments(folder, gradient_checkpointing=True, **options)
            data = [{"input_ids": x, "labels": x} for x in input_ids]
            return torch.tensor(transformers.Trainer(whole, arguments, train_dataset=data).train().training_loss)

    yield call
