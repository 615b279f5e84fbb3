"""Three small models in the style of research code. They define their own norms and helper functions. Their
gates are an argument, or are computed from an argument."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 32


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


class GainRMSNorm(nn.Module):
    """An RMSNorm that rounds before it applies its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        n = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return n.to(x.dtype) * self.weight


class Mixer(nn.Module):
    """A stand-in for an attention module, in which each token sees the mean of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + x.mean(1, keepdim=True))


class GatedMLP(nn.Module):
    """An MLP with two linears before its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.wing, self.land = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.land(F.silu(self.lift(tokens)) * self.wing(tokens))


class Tabled(nn.Module):
    """A block with a table of modulations, as in PixArt and Wan. One kernel must replace operations that are
    spread over two statements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, WIDTH) * 0.3)
        self.norm_a, self.norm_b = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.mix, self.mlp = Mixer(), GatedMLP()

    def forward(self, stream: Tensor, cond: Tensor) -> Tensor:
        sh, sc, g, sh2, sc2, g2 = (self.table[None] + cond.unflatten(-1, (6, -1))).chunk(6, dim=1)
        normed = self.norm_a(stream)
        mixed = self.mix(normed * (1 + sc) + sh)
        stream = stream + mixed * g
        return stream + self.mlp(modulate(self.norm_b(stream), sh2, sc2)) * g2


class Adaptive(nn.Module):
    """A block whose modulation is the output of a linear. Its gates have the shape `[B, D]`."""

    def __init__(self) -> None:
        super().__init__()
        self.ada = nn.Linear(WIDTH, 6 * WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.mix, self.mlp = Mixer(), GatedMLP()

    def forward(self, z: Tensor, cond: Tensor) -> Tensor:
        shift1, scale1, alpha, shift2, scale2, beta = self.ada(F.silu(cond)).chunk(6, dim=-1)
        h = modulate(self.norm1(z), shift1.unsqueeze(1), scale1.unsqueeze(1))
        z = z + alpha[:, None] * self.mix(h)
        h = self.norm2(z) * (1 + scale2[:, None]) + shift2[:, None]
        z = z + beta[:, None] * self.mlp(h)
        return z


class PreNorm(nn.Module):
    """A block of a language model's decoder. It takes a gate as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = GainRMSNorm(WIDTH), GainRMSNorm(WIDTH)
        self.mix, self.mlp = Mixer(), GatedMLP()

    def forward(self, hidden: Tensor, gate: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_norm(hidden)
        hidden = residual + self.mix(hidden)
        residual = hidden
        hidden = self.post_norm(hidden)
        hidden = self.mlp(hidden)
        return residual + gate * hidden


class Research(nn.Module):
    """A model that consists of two blocks of one class."""

    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block() for _ in range(2)])

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, by)
        return x


def build(block: type[nn.Module], dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a model and its arguments."""
    torch.manual_seed(0)
    model = Research(block)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    wide = {Tabled: 6 * WIDTH, Adaptive: WIDTH, PreNorm: WIDTH}[block]
    by = torch.randn(2, 1, wide) if block is PreNorm else torch.randn(2, wide)
    return model.to(dtype).eval(), (torch.randn(2, 5, WIDTH).to(dtype), by.to(dtype))
