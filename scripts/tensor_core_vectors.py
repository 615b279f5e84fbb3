"""Record results of a GPU's tensor cores, with which the tests compare the CPU executor
(cuda-std/src/cpu/tensor_core.rs).

`tensor_core_vectors.py record VECTORS.npz` records single matrix products on a Hopper GPU, through Triton.
`tensor_core_vectors.py pack VECTORS.npz OUT.bin.lzma` converts a recording to the file of the Rust tests.

The .npz file has four float32 arrays for each case, under the keys `kind|K|instruction|inputs|accumulator|x`.
The arrays are: x = a [M, K], b [N, K], the accumulator c [M, N] and the result d = a bᵀ + c [M, N]. For
operands of two types, the kind is `kind_of_a,kind_of_b`.

The packed file is a sequence of cases. A case consists of the length of its name (u8), the name, M (u8), N
(u8), and the bits of a, b, c and d, row by row and little-endian. tf32 operands are stored as f32.
"""

import lzma
import sys
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

TYPES = {
    "bfloat16": (torch.bfloat16, torch.int16),
    "float16": (torch.float16, torch.int16),
    "tf32": (torch.float32, torch.int32),
    "float8_e4m3fn": (torch.float8_e4m3fn, torch.uint8),
    "float8_e5m2": (torch.float8_e5m2, torch.uint8),
}
STEPS = {"bfloat16": 16, "float16": 16, "tf32": 32, "float8_e4m3fn": 32, "float8_e5m2": 32}
"""The K of a recorded product. Triton has no tf32 product with K = 8, so tf32 vectors have four steps."""
MIXED = [("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn")]
KEPT = 12
"""Rows and columns of each product that the file keeps."""


def bits(values: np.ndarray, kind: str) -> bytes:
    """Return the bits of the float32 array `values` in the operand type `kind`, which must represent them."""
    dtype, integer = TYPES[kind]
    given = torch.from_numpy(values)
    converted = given.to(dtype)
    assert torch.equal(converted.float().nan_to_num(nan=12345.0), given.nan_to_num(nan=12345.0)), kind
    return converted.view(integer).numpy().tobytes()


def pack(source: str, target: str) -> None:
    """Convert a recording to the file of the Rust tests."""
    vectors = np.load(source)
    out = bytearray()
    # Cases that are adjacent in this order have similar values, so they compress well.
    for name in sorted({key.rsplit("|", 1)[0] for key in vectors.files}):
        a, b, c, d = (np.ascontiguousarray(vectors[f"{name}|{part}"]) for part in "abcd")
        kinds = name.split("|")[0].split(",")
        encoded = name.encode()
        out += bytes([len(encoded)]) + encoded + bytes([a.shape[0], b.shape[0]])
        out += bits(a, kinds[0]) + bits(b, kinds[-1]) + c.tobytes() + d.tobytes()
    options = {"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 20}
    Path(target).write_bytes(lzma.compress(out, lzma.FORMAT_ALONE, filters=[options]))


def inputs(name: str, kind: str, shape: tuple[int, int], random: torch.Generator) -> torch.Tensor:
    """Return float32 values for an operand of the type `kind`. `name` selects their distribution. They are
    not rounded to the type.
    """
    normal = torch.randn(shape, generator=random)
    largest = torch.finfo(TYPES[kind][0]).max
    smallest = torch.finfo(TYPES[kind][0]).smallest_normal
    exponents = {"float8_e4m3fn": 6, "float8_e5m2": 12, "float16": 12}.get(kind, 40)
    pick = torch.rand(shape, generator=random)
    if name == "positive":
        return normal.abs()
    if name == "wide":
        return normal * torch.exp2(torch.randint(-exponents, exponents, shape, generator=random).float())
    if name == "onebig":
        return torch.where(torch.arange(shape[1]) == shape[1] // 2, normal * 2.0 ** (exponents // 2), normal)
    if name == "cancel":
        half = normal[:, : shape[1] // 2]
        return torch.cat([half, half], 1)  # `record` negates the second half of b, so the products cancel.
    if name == "subnormal":
        return normal * smallest * torch.where(pick < 0.5, 1.0, 2.0**20 if exponents > 12 else 4.0)
    if name == "tiny":
        return normal * smallest**0.5 * 2.0**-4
    if name == "overflow":
        return normal.sign() * largest * (0.5 + 0.5 * pick)
    if name == "zeros":
        zeros = torch.zeros(shape).copysign(normal)
        return torch.where(pick < 0.95, zeros, normal)
    if name == "special":
        infinity = torch.full(shape, torch.inf).copysign(normal)
        normal = torch.where(pick < 0.01, infinity, normal)
        return torch.where(pick > 0.99, torch.full(shape, torch.nan), normal)
    assert name == "normal", name
    return normal


SORTS = ["normal", "positive", "wide", "onebig", "cancel", "subnormal", "tiny", "overflow", "zeros", "special"]


def rounded(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Round `values` to the operand type. tf32 is float32 without its lower 13 bits."""
    if kind == "tf32":
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    if kind == "float8_e4m3fn":
        values = torch.where(values.isnan(), values, values.clamp(-448, 448))
    return values.to(TYPES[kind][0])


@triton.jit
def product(a, b, c, d, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    at = m[:, None] * N + n[None, :]
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + n[None, :] * K + k[:, None])
    # Do not pass `max_num_imprecise_acc`, so that all K steps of fp8 products accumulate inside the tensor
    # core.
    z = tl.dot(x, y, tl.load(c + at), input_precision="tf32")
    tl.store(d + at, z)


def record(target: str) -> None:
    """Record the products on the GPU."""
    random = torch.Generator().manual_seed(0)
    vectors = {}
    for first, second in [(kind, kind) for kind in TYPES] + MIXED:
        kind = first if first == second else f"{first},{second}"
        step = STEPS[first]
        # Triton uses wgmma if M is at least 64, and mma.sync for smaller tiles. The executor has fp8 operands
        # only for wgmma. mma.sync with fp8 operands was not measured.
        shapes = [("wgmma", 64, 64)] + ([] if first.startswith("float8") else [("mma.sync", 16, 16)])
        for instruction, M, N in shapes:
            for sort in SORTS:
                for K in (step, 64) if sort in SORTS[:4] else (step,):
                    a = rounded(inputs(sort, first, (M, K), random), first)
                    b = inputs(sort, second, (N, K), random)
                    if sort == "cancel":
                        b[:, K // 2 :] = -b[:, : K // 2]
                    b = rounded(b, second)
                    normal = torch.randn((M, N), generator=random)
                    accumulators = {"0.0": torch.zeros(M, N), "c": normal}
                    if sort == "tiny":
                        accumulators["c"] = normal * 2.0**-130
                    elif sort == "zeros":
                        accumulators["c"] = torch.zeros(M, N).copysign(normal)
                    elif sort in SORTS[1:4]:
                        accumulators = {"0.0": torch.zeros(M, N).copysign(normal)}
                    if sort in SORTS[:4]:
                        accumulators |= {str(x): torch.full((M, N), x).copysign(normal) for x in (1.0, 300.0)}
                    for name, c in accumulators.items():
                        d = torch.empty((M, N), device="cuda")
                        compiled = product[(1,)](a.cuda(), b.cuda(), c.cuda(), d, M, N, K, num_warps=4)
                        used = "wgmma" if "wgmma.mma_async" in compiled.asm["ptx"] else "mma.sync"
                        assert used == instruction, (kind, used)
                        for part, matrix in zip("abcd", (a.float(), b.float(), c, d.cpu()), strict=True):
                            vectors[f"{kind}|{K}|{instruction}|{sort}|{name}|{part}"] = (
                                matrix[:KEPT, : (KEPT if part in "cd" else K)].contiguous().numpy()
                            )
    np.savez_compressed(target, **vectors)


if __name__ == "__main__":
    commands = {"record": record, "pack": pack}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
