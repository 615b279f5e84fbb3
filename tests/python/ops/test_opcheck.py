"""Every registered operator passes `torch.library.opcheck`: schema, fake, autograd, under AOTAutograd.

One call of each. What else an operator takes is checked beside its other tests.
"""

import pytest
import torch
from helpers import random
from test_rope_compile import rotation

OPS = torch.ops.oxiwarp
BF16, COLS = torch.bfloat16, 32


def arguments(device):
    """By operator. Results that it writes to are part of a wider tensor where it takes strides."""
    x, y, z, wide = (random((4, 3, COLS), BF16, device, seed) for seed in range(4))
    wide = torch.cat([wide, wide], 2)[..., :COLS]
    side, vector = random((4, 1, COLS), BF16, device, 4), random((COLS,), BF16, device, 5)
    angles = random((3, COLS // 2), torch.float32, device, 6)
    lse, target = x.float().logsumexp(-1), torch.zeros(4, 3, dtype=torch.long, device=device)
    heads = [random((1, 4, 2, 64), BF16, device, seed) for seed in range(4)]
    matrix, rows = random((COLS, COLS), BF16, device, 7), [part.reshape(-1, COLS) for part in (x, y)]
    q, turn = x.unsqueeze(2), rotation(angles.cos(), angles.sin())
    norms = (vector, vector, None, None, 2, False, 1e-6)
    gated = (None, None, 0, True, 0.0, True)
    attend = (None, None, None, False, False, 0.125, -1, -1, 0.0)
    affine, pair = (vector, vector, False, 1e-6, True), (side, None, side, None)
    return {
        "activation": (x, vector, 0, True),
        "activation_out": (x, vector, 0, True, wide),
        "activation_backward": (x, y, vector, 0, True),
        "ada_norm": (x, *pair, *affine),
        "ada_norm_pair": (x, *pair, *pair, *affine),
        "add_product": (rows[0], rows[1], matrix),
        "add_rms_norm": (x, y, vector, 1e-6, 0.0, True),
        "attention": (*heads[:3], *attend, True),
        "attention_backward": (*heads[:3], *attend, heads[3], torch.zeros(1, 2, 4, device=device), heads[0]),
        "attention_out": (*heads[:3], *attend, heads[3]),
        "copy_into": (wide, y),
        "cross_entropy": (x, target, -100, 0.1, 0.01),
        "cross_entropy_backward": (x, target, lse, lse, -100, 0.1, 0.01),
        "gated_activation": (x, *gated),
        "gated_activation_out": (x, *gated, wide[..., : COLS // 2]),
        "gated_activation_backward": (y[..., : COLS // 2].contiguous(), x, *gated),
        "gated_residual": (x, y, side, None, True, False),
        "gated_residual_ada_norm": (x, y, side, None, *pair, *affine, False),
        "layer_norm": (x, vector, vector, 1e-5),
        "layer_norm_backward": (x, y, vector, vector, z, 1e-5, True, True),
        "qk_norm_rope": (q, y.unsqueeze(2), *norms, *turn),
        "qk_norm_rope_one": (q, *norms, *turn),
        "qk_norm_rope_out": (q, y.unsqueeze(2), *norms, *turn, wide.unsqueeze(2), z.unsqueeze(2)),
        "residual_tanh_gated_rms_norm": (x, y, side, 1e-6),
        "residual_tanh_gated_rms_norm_modulated": (x, y, side, side, None, 1e-6),
        "rms_norm": (x, vector, 1e-6, 0.0, True),
        "rms_norm_backward": (x, y, vector, z, 1e-6, 0.0, True),
        "rms_norm_gated": (x, y, vector, 1e-6, True, False, False),
        "rms_norm_out": (x, vector, 1e-6, 0.0, True, z),
        "rope": (q, *turn),
        "rope_pair": (q, y.unsqueeze(2), *turn),
        "softmax": (x, False),
        "softmax_backward": (x, y, False),
        "write_product": (vector, rows[1], matrix, rows[0]),
    }


def registered():
    return {
        schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas() if schema.name[:9] == "oxiwarp::"
    }


def test_all():
    assert arguments("cpu").keys() == registered()


@pytest.mark.parametrize("name", sorted(registered()))
def test_opcheck(name, device):
    torch.library.opcheck(getattr(OPS, name).default, arguments(device)[name])
