"""Rotary functions in the styles of several libraries, and random methods that normalize and rotate heads."""

import random
import types
from pathlib import Path

import torch
from torch import Tensor, nn

BATCH, HEADS, COLUMNS, TOKENS = 2, 3, 16, 5
WIDTH = HEADS * COLUMNS


def heads(dtype: torch.dtype, tokens: int = TOKENS) -> Tensor:
    """Return random queries or keys."""
    return torch.randn(BATCH, tokens, HEADS, COLUMNS).to(dtype)


def rotated_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rotate_halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[None, :, None], sin[None, :, None]
    return q * cos + rotated_half(q) * sin, k * cos + rotated_half(k) * sin


def rotate_pairs(x: Tensor, tables: tuple[Tensor, Tensor], dim: int = 1) -> Tensor:
    cos, sin = (table[None, :, None] if dim == 1 else table[None, None] for table in tables)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    other = torch.stack((-b, a), dim=-1).flatten(-2)
    return (x.float() * cos + other.float() * sin).to(x.dtype)


def rope_of_wan(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate with every second column of each table, as Wan does."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[None, :, None, 0::2], sin[None, :, None, 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = a * cos - b * sin
    out[..., 1::2] = a * sin + b * cos
    return out


def rope_complex(x: Tensor, table: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table[:, None]
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def rope_angles(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate only the first columns of each head, in the dtype of `x`."""
    size = angles.shape[-1]
    own, rest = x[..., :size], x[..., size:]
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    return torch.cat((own * cos + rotated_half(own) * sin, rest), dim=-1)


def rope_chunks(x: Tensor, table: Tensor) -> Tensor:
    cos, sin = table.unsqueeze(-2).chunk(2, dim=-1)
    return x * cos + rotated_half(x) * sin


def rope_matrices(x: Tensor, table: Tensor) -> Tensor:
    """Rotate by multiplying each pair of columns by a 2x2 matrix, as Kandinsky 6 does."""
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2).float()
    return (table * pairs).sum(dim=-1).reshape(x.shape).to(x.dtype)


def rope_matrices_written_out(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by multiplying each pair of columns by a 2x2 matrix, as HiDream does."""
    made = []
    for x in (q, k):
        pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
        out = table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]
        made.append(out.reshape(x.shape).type_as(x))
    return made[0], made[1]


def rope_wide_angles(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate only the first columns of each head, and compute everything in float32."""
    size = angles.shape[-1]
    own, angles = x[..., :size].float(), angles.float()[:, None]
    own = own * angles.cos() + rotated_half(own) * angles.sin()
    return torch.cat((own.to(x.dtype), x[..., size:]), dim=-1)


def rope_swapped(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Rotate with the sine table before the cosine table in the arguments, as GPT-J does. Each table has one
    entry per pair of columns."""
    sin, cos = (table.repeat_interleave(2, -1)[:, None] for table in (sin, cos))
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2) * sin


def rope_back(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate by the negative angle, as NanoChat does."""
    cos, sin = cos[:, None], sin[:, None]
    return q * cos - rotated_half(q) * sin, k * cos - rotated_half(k) * sin


def rope_last(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate only the last columns of each head, as DeepSeek V4 does."""
    cos, sin = (table.repeat_interleave(2, -1)[:, None] for table in (cos, sin))
    rest, own = x[..., : -cos.shape[-1]], x[..., -cos.shape[-1] :].float()
    other = torch.stack((-own[..., 1::2], own[..., ::2]), dim=-1).flatten(-2)
    return torch.cat((rest, (own * cos + other * sin).to(x.dtype)), dim=-1)


def rope_apart(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Rotate adjacent pairs of columns, and return the pairs in two halves, as DeepSeek V3 does."""
    cos, sin = (table[:, None, : table.shape[-1] // 2] for table in (cos, sin))
    pairs = [(x[..., 0::2], x[..., 1::2]) for x in (q, k)]
    return [torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1) for a, b in pairs]


def rope_patches(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate only the last tokens, as DINOv3 does. The tables have one row per rotated token."""
    start, made = q.shape[1] - cos.shape[0], []
    for x in (q, k):
        own = x[:, start:]
        made.append(torch.cat((x[:, :start], own * cos[:, None] + rotated_half(own) * sin[:, None]), dim=1))
    return made[0], made[1]


def rope_prompt(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate only the first tokens. The tables have one row per rotated token."""
    stop = cos.shape[0]
    return torch.cat((rotate_halves(x[:, :stop], x[:, :stop], cos, sin)[0], x[:, stop:]), dim=1)


def rotate_and_scale(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate and multiply by 2. There is no kernel for this function."""
    return 2 * rope_of_wan(x, cos, sin)


def rotate_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate in float32 and round once, even if the tables have 16 bits."""
    cos, sin = cos[None, :, None].float(), sin[None, :, None].float()
    return (x.float() * cos + rotated_half(x).float() * sin).to(x.dtype)


def rotate_and_clear(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate, and then write to the columns of the cos table that the rotation does not read."""
    out = rope_of_wan(x, cos, sin)
    cos[..., 1::2] = 0
    return out


def rotate_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate in place. There is no kernel that writes to its argument."""
    return x.copy_(rope_of_wan(x, cos, sin))


class OwnRMSNorm(nn.Module):
    """An RMSNorm that rounds before it applies its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(width) * 0.2 + 1.0), 1e-5
        self.bias = None  # `bias` is an attribute with the value None, as in diffusers' RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        n = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return n.to(x.dtype) * self.weight


class Attention(nn.Module):
    """A base class with the norms that the methods of this file use."""

    def __init__(self, norm: type[nn.Module] = nn.RMSNorm, across: bool = False) -> None:
        super().__init__()
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (
            norm(WIDTH if across else COLUMNS) for _ in range(4)
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, 1.0, 0.3)
        self.flag = True


def tables(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    angles = torch.randn(TOKENS, COLUMNS // 2).repeat_interleave(2, -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Maker:
    """Makes random methods that normalize, concatenate, view, read and rotate queries and keys."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def method(self) -> list[str]:
        """Return the statements of a method."""
        lines = ["log = []"]
        for name in ("q", "k"):
            lines += self.normed(name)
        for _ in range(self.random.randrange(3)):
            lines += self.between()
        rotation = ["q = rotate_pairs(q, tables)", "k = rotate_pairs(k, tables)"]
        if self.random.random() < 0.3:
            rotation.insert(1, "log.append(v.mean())")
        lines += self.guarded(rotation)
        if self.random.random() < 0.3:
            lines.append("v.add_(1)")
        return [*lines, "return q, k, v, *log"]

    def guarded(self, lines: list[str]) -> list[str]:
        """Put statements into an `if`, a loop or a `with`, or return them unchanged."""
        head = self.random.choice(
            ["", "", "if tables is not None:", "if flag:", "for _ in range(1):", "with torch.no_grad():"]
        )
        return [head, *(f"    {line}" for line in lines)] if head else lines

    def normed(self, name: str) -> list[str]:
        """Return statements that normalize a variable."""
        norm = f"self.norm_{name}"
        line = self.random.choice(
            [f"{name} = {norm}({name})", f"{name} = {norm}({name})", f"{name} = {norm}({name} * 2)"]
        )
        return self.guarded([line]) if self.random.random() < 0.4 else [line]

    def between(self) -> list[str]:
        """Return random statements for the place between a norm and a rotation."""
        name = self.random.choice("qk")
        return self.random.choice(
            [
                [f"{name} = torch.cat([v, {name}], dim=1)[:, : q.shape[1]]"],
                [f"{name} = {name}.transpose(1, 2)", f"{name} = {name}.transpose(1, 2)"],
                [f"log.append({name}.mean())"],
                [f"{name}.mul_(2)"],
                ["v.mul_(2)"],
                [f"other = {name}", "other.mul_(2)"],
                [f"v = {name} + v"],
                [f"if flag and {name}.sum() > 0:", "    v = v + 1"],
                [f"del {name}", f"{name} = v * 1"],
                [f"log.append((lambda: {name}.mean())())"],
                [f"v = torch.cat([{name}, v], dim=1)[:, : v.shape[1]]"],
                [
                    "e = self.norm_added_q(v)",
                    f"{name} = torch.cat([{name}[:, :2], e[:, 2:]], dim=1)",
                ],
                [
                    "half = q.shape[1] // 2" if name == "q" else "half = k.shape[1] // 2",
                    "e = self.norm_added_q(v[:, :half])",
                    f"{name} = torch.cat([e, {name}], dim=1)",
                    f"{name} = {name}[:, half:]",
                ],
            ]
        )


def load(methods: dict[str, list[str]], folder: Path) -> types.ModuleType:
    """Write the methods to a module file, each as the `forward` of a class, and import the module."""
    text = "import torch\nimport rotary_models\nfrom rotary_models import rotate_pairs\n\n\n"
    for name, lines in methods.items():
        text += f"class {name}(rotary_models.Attention):\n    def forward(self, q, k, v, tables, flag):\n"
        text += "".join(f"        {line}\n" for line in lines) + "\n\n"
    path = folder / "random_rotations.py"
    path.write_text(text)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    import linecache
    import sys

    sys.modules[path.stem] = module
    linecache.checkcache(str(path))
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
