"""Small models for the tests: norms as models write them, a diffusion transformer of diffusers, and
language models."""

import pytest
import torch
from helpers import random
from torch import nn


class BeforeWeightRMSNorm(nn.Module):
    """RMSNorm of LLaMA, which rounds before it multiplies by the weight."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        h = hidden_states.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * h.to(hidden_states.dtype)


class OffsetRMSNorm(nn.Module):
    """RMSNorm of Gemma, which multiplies by 1 + weight."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


class BareRMSNorm(nn.Module):
    """RMSNorm without a weight, like the value norm of Gemma 4."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class Net(nn.Module):
    """A residual network with one norm of each class."""

    def __init__(self, dim=64):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.before = BeforeWeightRMSNorm(dim)
        self.offset = OffsetRMSNorm(dim)
        self.bare = BareRMSNorm()
        self.torch_norm = nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x):
        x = x + self.inner(self.before(x))
        # This is not a sequence of operations that `patch` replaces.
        return self.torch_norm(torch.add(self.bare(x), self.offset(x)))


NORMS = ("before", "offset", "bare", "torch_norm")


def net(dtype=torch.float32, device="cpu", dim=64) -> Net:
    """Return a `Net` with fixed random weights that do not require gradients."""
    model = Net(dim).requires_grad_(False)
    for seed, parameter in enumerate(model.parameters()):
        parameter.copy_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.3))
    return model.to(dtype).to(device).eval()


def net_input(dtype=torch.float32, device="cpu", dim=64):
    return random((2, 5, dim), dtype, device, seed=9)


def ltx(dtype=torch.float32, device="cpu", layers=2):
    """Return a small LTX-Video transformer with 6 norms per layer. Two of these norms have no weight."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.LTXVideoTransformer3DModel(
        num_layers=layers, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, caption_channels=24
    )
    return nn.Module.to(model, dtype).to(device).eval().requires_grad_(False)


def ltx_input(dtype=torch.float32, device="cpu"):
    return dict(
        hidden_states=random((2, 24, 128), dtype, device),
        encoder_hidden_states=random((2, 8, 24), dtype, device, seed=1),
        timestep=torch.tensor([500.0, 500.0], device=device),
        encoder_attention_mask=torch.ones(2, 8, device=device),
        num_frames=2,
        height=3,
        width=4,
        return_dict=False,
    )


def qwen(dtype=torch.float32, device="cpu"):
    """Return a small Qwen3 with 4 norms per layer, and a final norm.

    Two norms per layer normalize each head separately.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.Qwen3Model(config).to(dtype).to(device).eval().requires_grad_(False)


def t5(dtype=torch.float32, device="cpu"):
    """Return a small T5 encoder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config).to(dtype).to(device).eval().requires_grad_(False)
