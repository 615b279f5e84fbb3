"""Random calls of `quantize_fp8`, and its formula. The formula gives the bits of the results."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import Draw
from .norms import rows_of
from .precision import Exact

BLOCK = 128


def draw_quantize_fp8(g: Draw) -> Case:
    shape, dtype = g.shape(), g.dtype()
    x = g.layout(len(shape))(g.rows(shape, dtype))
    options = dict(block=g.pick(None, BLOCK), dtype=g.pick(torch.float8_e4m3fn, torch.float8_e5m2))
    dtypes = (options["dtype"], torch.float32)
    return Case(dict(x=x), options, (), rows_of("x", shape), ("x",), bits=(0, 1), dtypes=dtypes)


def quantize_fp8(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, Tensor]:
    cols, largest = t.x.shape[-1], torch.finfo(c.options["dtype"]).max
    x = t.x.unsqueeze(-2)
    if c.options["block"] is not None:
        x = F.pad(t.x, (0, -cols % BLOCK)).unflatten(-1, (-1, BLOCK))
    scale = m.f32(x.abs().amax(-1, keepdim=True) / largest)
    scale = torch.where(scale < 2.0**-126, 2.0**-126, scale)
    values = m.f32(x * m.f32(1 / scale)).clamp(-largest, largest)
    return values.flatten(-2)[..., :cols], scale[..., 0]


register("quantize_fp8", draw_quantize_fp8, quantize_fp8, contiguous=False)
