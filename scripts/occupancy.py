"""Prints the bytes in flight of each kernel that keeps rows in registers, by architecture.

    python scripts/occupancy.py target/ptx/oxiwarp-kernels-gpu

The bytes in flight are the bytes that the resident threads of an SM have requested from memory before the
first of them arrive. The script computes them for the bf16 kernels `..._warp<n>`, `..._block<n>` and
`..._cluster<n>`. In such a kernel, a thread loads `n` vectors of 16 bytes each, or of 8 bytes each.

The script also prints registers and spills as reported by ptxas, the maximum threads per block, and the
resident blocks and threads of an SM. docs/internals/launch-configuration.md explains how many bytes in flight
are necessary to use the memory bandwidth. The script needs ptxas, see py-bindings/requirements-ptx.txt.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python" / "support"))
from ptx_checks import PACKS, REGISTER_FILE, find_tool, parse, ptxas_version

PACK_BYTES, VEC4_BYTES = 16, 8  # Bytes that one load of a thread reads in bf16.
WARP = 32
IN_REGISTERS = re.compile(r"(\w+_(?:warp|block|cluster)(\d+))_bf16")
USAGE = re.compile(
    r"Function properties for (\w+)\s+\d+ bytes stack frame, (\d+) bytes spill stores, \d+ bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers"
)


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of an SM. To reach the full memory bandwidth, each SM must have at least `needed` bytes in
    flight, which means that the loads were issued but have not completed.
    """

    gpu: str
    threads: int
    blocks: int
    needed: int

    @staticmethod
    def of(gpu: str, threads: int, blocks: int, tb_per_s: float, count: int) -> "Multiprocessor":
        """Return the limits of an SM.

        The field `needed` is the product of memory bandwidth and latency (0.6 µs), divided by the number of
        SMs.
        """
        return Multiprocessor(gpu, threads, blocks, round(tb_per_s * 0.6e6 / count))

    def resident(self, threads: int, registers: int) -> int:
        """Return how many blocks of `threads` threads fit on an SM if a thread uses `registers` registers.

        The hardware allocates the registers of a warp in units of 256.
        """
        of_warp = -(-registers * WARP // 256) * 256
        return min(REGISTER_FILE // of_warp * WARP // threads, self.threads // threads, self.blocks)


ARCHES = {
    "sm_75": Multiprocessor.of("T4", 1024, 16, 0.32, 40),
    "sm_80": Multiprocessor.of("A100", 2048, 32, 2.04, 108),
    "sm_90": Multiprocessor.of("H200", 2048, 32, 4.8, 132),
}


def rows(path: Path, arch: str, ptxas: Path):
    """Yield a line for each kernel of a PTX file."""
    entries = parse(path.read_text()).entries
    said = subprocess.run(
        [ptxas, "-v", f"-arch={arch}", path, "-o", "/dev/null"], capture_output=True, text=True, check=True
    ).stderr
    for kernel, spilled, registers in USAGE.findall(said):
        match = IN_REGISTERS.fullmatch(kernel)
        if not match or ("_cluster" in kernel and arch != "sm_90") or kernel.startswith("attention"):
            continue
        threads, processor = entries[kernel].threads, ARCHES[arch]
        blocks = processor.resident(threads, int(registers))
        load = PACK_BYTES if PACKS.fullmatch(match[1]) else VEC4_BYTES
        in_flight = blocks * threads * int(match[2]) * load
        yield f"{kernel:52} {registers:>9} {spilled:>7} {threads:>7} {blocks:>6} {blocks * threads:>8} {in_flight:>8}"


def main() -> None:
    """Print a table for each architecture."""
    folder, ptxas = Path(sys.argv[1]), find_tool("ptxas")
    if not ptxas:
        sys.exit("ptxas not found: pip install --no-deps -r py-bindings/requirements-ptx.txt")
    print(f"python scripts/occupancy.py {sys.argv[1]}; ptxas {ptxas_version(ptxas)}")
    for arch, processor in ARCHES.items():
        print(f"\n{arch}: {processor.gpu} needs {processor.needed} bytes in flight per SM")
        print(f"{'kernel':52} registers spilled threads blocks resident    bytes")
        for path in sorted((folder / arch).glob("*.ptx")):
            for row in rows(path, arch, ptxas):
                print(row)


if __name__ == "__main__":
    main()
