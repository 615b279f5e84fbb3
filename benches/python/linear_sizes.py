"""The matrix products that `linear_tables.py` measures. Their sizes come from published models, from the
command line, and from a patched model, which looks up its sizes in the tables.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from oxiwarp.patching.fusions.core import linear
from oxiwarp.patching.fusions.core.linear_tables import GATED_RESIDUAL, SPEED, Product, capability_of

ROWS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Each product with an epilogue is also timed with these numbers of rows, up to the number of the model."""


class Size(NamedTuple):
    """The size of a product: rows of the input, its columns K, and columns of the result N. `kind` says which
    operations follow the product; None if there are none."""

    m: int
    k: int
    n: int
    kind: str | None = None


SIZES = (
    # FLUX.1, 1024 x 1024, 512 text tokens and 4096 image tokens.
    # Query, key and value; with the input of the feed-forward in a single-stream block.
    *(Size(4608, 3072, n) for n in (9216, 21504)),
    # The output of an attention.
    *(Size(m, 3072, 3072, GATED_RESIDUAL) for m in (4096, 4608)),
    # The first linear of a feed-forward: text, image, single-stream block.
    *(Size(m, 3072, 12288, "gelu_tanh") for m in (512, 4096, 4608)),
    # The second linear of a feed-forward: text, image.
    *(Size(m, 12288, 3072, GATED_RESIDUAL) for m in (512, 4096)),
    # The output of a single-stream block, from the results of attention and feed-forward.
    Size(4608, 15360, 3072, GATED_RESIDUAL),
    # LTX-Video, 49 and 161 frames: query, key and value, then the two linears of a feed-forward.
    *(Size(m, 2048, 6144) for m in (5376, 16128)),
    *(Size(m, 2048, 8192, "gelu_tanh") for m in (5376, 16128)),
    *(Size(m, 8192, 2048, GATED_RESIDUAL) for m in (5376, 16128)),
    # The two linears of a feed-forward.
    Size(32760, 1536, 8960, "gelu_tanh"),  # Wan 2.1 1.3B, 480p, 81 frames
    Size(32760, 8960, 1536, GATED_RESIDUAL),
    Size(32760, 5120, 13824, "gelu_tanh"),  # Wan 2.1 14B
    Size(32760, 13824, 5120, GATED_RESIDUAL),
    Size(8192, 640, 5120, "geglu"),  # SDXL UNet, 1024 x 1024, batch 2
    Size(2048, 1280, 10240, "geglu"),
    Size(8192, 4096, 28672, "swiglu"),  # Llama 8B, the projections `gate_proj` and `up_proj` together
    Size(8192, 14336, 4096),  # Llama 8B, the projection `down_proj`
    Size(8192, 8192, 8192),
)


def with_rows(sizes: Iterable[Size]) -> list[Size]:
    """Return each size that has an epilogue, with several numbers of rows. These are the numbers of rows in
    `sizes`, and all smaller numbers in `ROWS`.
    """
    largest: dict[tuple[int, int, str | None], int] = {}
    for size in sizes:
        largest[size[1:]] = max(size.m, largest.get(size[1:], 0))
    more = [Size(m, *rest) for rest, most in largest.items() if rest[2] for m in ROWS if m < most]
    return sorted({*(size for size in sizes if size.kind), *more}, key=lambda size: (size.kind, *size[1:3], size.m))


def parsed(text: str) -> Size:
    """Return the size for the text "MxKxN" or "MxKxN:kind"."""
    numbers, _, kind = text.partition(":")
    m, k, n = map(int, numbers.split("x"))
    return Size(m, k, n, kind or None)


def of_model(name: str, place: str = "cuda", small: bool = False) -> list[Size]:
    """Return the sizes that a patched model looks up in the tables during one step. `name` is a workload of
    `python -m oxiwarp bench`. The weights are random. `small` says whether to build a small model, for tests.
    """
    import oxiwarp
    from oxiwarp.cli.bench.workloads import WORKLOADS

    workload, device, asked = WORKLOADS[name], torch.device(place), list[Product]()
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = workload.build(small).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    oxiwarp.patch(model, cpu_kernels=place == "cpu")
    known, refused = dict(SPEED), linear.refused
    SPEED.setdefault(capability_of(torch.empty(0, device=device).get_device()), {})
    linear.refused = lambda product, index, fast: (asked.append(product), "recorded")[1]  # type: ignore[assignment]
    try:
        with torch.no_grad():
            model(**workload.arguments(model, small, device, torch.bfloat16))
    finally:
        linear.refused = refused
        SPEED.clear()
        SPEED.update(known)
    return sorted({Size(product.m, product.k, product.n, product.kind) for product in asked})
