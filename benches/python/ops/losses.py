"""Benchmarks of `softmax` and `cross_entropy`. The last dimension is the vocabulary of a language model."""

import torch
import torch.nn.functional as F
from forms import NO_MODE, ONE_ROUNDING, Form, Inputs, Peer, Shape, Source
from torch import Tensor

import oxiwarp

CLAIMS = {NO_MODE: ONE_ROUNDING}
SOFTCAP = 30.0  # of the logits of Gemma 2
SMOOTHING = 0.1
VOCABULARIES = (
    ("Llama 3 vocabulary", (1, 8192, 128256)),
    ("Qwen vocabulary", (1, 4096, 151936)),
    ("Gemma 3 vocabulary", (1, 2048, 262144)),
)


def _inputs(source: Source, shape: Shape) -> Inputs:
    return {"x": source.normal(shape[0] * shape[1], shape[2], scale=2.0)}


def _inputs_target(source: Source, shape: Shape) -> Inputs:
    logits = source.normal(shape[0] * shape[1], shape[2], scale=2.0)
    return {"logits": logits, "target": source.indices(shape[0] * shape[1], shape[2])}


def _causal_lm(logits: Tensor, target: Tensor) -> Tensor:
    """Compute transformers' `ForCausalLMLoss` in float32.

    Return one loss per row instead of the mean, so that every row can be checked.
    """
    return F.cross_entropy(logits.float(), target, reduction="none")


def _reference(x: Tensor) -> Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _reference_loss(logits: Tensor, target: Tensor) -> Tensor:
    largest = logits.amax(-1, keepdim=True)
    logarithm = (logits - largest).exp().sum(-1).log() + largest[:, 0]
    return logarithm - logits.gather(-1, target[:, None])[:, 0]


def _inputs_weight(source: Source, shape: Shape) -> Inputs:
    return _inputs_target(source, shape) | {"weight": source.weight(shape[2])}


def _weighted(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), target, weight.float(), reduction="none", label_smoothing=SMOOTHING)


def _reference_weighted(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    losses = torch.logsumexp(logits, -1, keepdim=True) - logits
    smooth = (losses * weight).mean(-1)
    of_target = losses.gather(-1, target[:, None])[:, 0] * weight[target]
    return (1 - SMOOTHING) * of_target + SMOOTHING * smooth


def _gemma(logits: Tensor, target: Tensor) -> Tensor:
    """Compute the softcap of transformers' `Gemma2ForCausalLM`, and its loss."""
    return _causal_lm(torch.tanh(logits / SOFTCAP) * SOFTCAP, target)


FAMILY = "losses"
FORMS = (
    Form(
        op="softmax",
        chain="last dimension",
        cases=(("attention scores", (1, 32768, 4096)), ("wide rows", (1, 8192, 32768)), *VOCABULARIES[1:]),
        inputs=_inputs,
        eager=lambda x: F.softmax(x, dim=-1),
        reference=_reference,
        ours=lambda x: oxiwarp.softmax(x),
        claims=CLAIMS,
        peers={
            "Liger": Peer("liger_kernel.ops.softmax", lambda liger, x: liger._softmax_forward(x)[0]),
            "QuACK": Peer("quack", lambda quack, x: quack.softmax(x)),
        },
    ),
    Form(
        op="cross_entropy",
        chain="causal language models",
        cases=VOCABULARIES,
        inputs=_inputs_target,
        eager=_causal_lm,
        reference=_reference_loss,
        ours=lambda logits, target: oxiwarp.cross_entropy(logits, target, reduction="none"),
        claims=CLAIMS,
        library=("F.cross_entropy", lambda logits, target: F.cross_entropy(logits, target, reduction="none")),
        # Liger is not a baseline, because its forward pass also computes the gradient.
        peers={
            "QuACK": Peer("quack", lambda quack, logits, target: quack.cross_entropy(logits, target, reduction="none"))
        },
    ),
    Form(
        op="cross_entropy",
        chain="softcap: Gemma 2",
        cases=(("Gemma 2 vocabulary", (1, 2048, 256000)),),
        inputs=_inputs_target,
        eager=_gemma,
        reference=lambda logits, target: _reference_loss(SOFTCAP * (logits / SOFTCAP).tanh(), target),
        ours=lambda logits, target: oxiwarp.cross_entropy(logits, target, reduction="none", softcap=SOFTCAP),
        claims=CLAIMS,
    ),
    Form(
        op="cross_entropy",
        chain="class weights, label smoothing",
        cases=(("ImageNet-21k", (1, 65536, 21841)), VOCABULARIES[0]),
        inputs=_inputs_weight,
        eager=_weighted,
        reference=_reference_weighted,
        ours=lambda logits, target, weight: oxiwarp.cross_entropy(
            logits, target, weight=weight, reduction="none", label_smoothing=SMOOTHING
        ),
        claims=CLAIMS,
    ),
)
