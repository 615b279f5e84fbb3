"""How much each kernel that holds rows has on the way, by architecture.

`python scripts/occupancy.py target/ptx/oxiwarp-kernels-gpu`

For every bf16 kernel whose threads hold n packs of a row (`…_hold<n>`, `…_beside<n>`: of one of its rows) or n quads
(`…_held<n>`, `…_team<n>`, `…_block<n>`): registers and spills as ptxas says, the threads of the largest block that its
bounds allow, how many of those fit a multiprocessor, and the bytes that they load of one operand before the first has
arrived. docs/internals/launch-configuration.md says how much a memory needs. Needs ptxas: py-bindings/requirements-ptx.txt.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python" / "support"))
from ptx_checks import REGISTER_FILE, find_tool, parse, ptxas_version

BYTES = {"hold": 16, "beside": 16, "held": 8, "team": 8, "block": 8}  # of a pack and of a quad
WARP = 32
HELD = re.compile(rf"_({'|'.join(BYTES)})(\d+)(?:_\w+)?_bf16$")
USAGE = re.compile(
    r"Function properties for (\w+)\s+\d+ bytes stack frame, (\d+) bytes spill stores, \d+ bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers"
)


@dataclass(frozen=True)
class Multiprocessor:
    """What one holds, and the bytes that its share of the memory needs on the way."""

    gpu: str
    threads: int
    blocks: int
    needed: int

    @staticmethod
    def of(gpu: str, threads: int, blocks: int, tb_per_s: float, count: int) -> "Multiprocessor":
        """Bandwidth times a latency of 0.6 µs, over so many multiprocessors."""
        return Multiprocessor(gpu, threads, blocks, round(tb_per_s * 0.6e6 / count))

    def resident(self, threads: int, registers: int) -> int:
        """Blocks of so many threads; a warp's registers come in units of 256."""
        of_warp = -(-registers * WARP // 256) * 256
        return min(REGISTER_FILE // of_warp * WARP // threads, self.threads // threads, self.blocks)


ARCHES = {
    "sm_75": Multiprocessor.of("T4", 1024, 16, 0.32, 40),
    "sm_80": Multiprocessor.of("A100", 2048, 32, 2.04, 108),
    "sm_90": Multiprocessor.of("H200", 2048, 32, 4.8, 132),
}


def rows(path: Path, arch: str, ptxas: Path):
    """A line for each kernel of a file."""
    entries = parse(path.read_text()).entries
    said = subprocess.run(
        [ptxas, "-v", f"-arch={arch}", path, "-o", "/dev/null"], capture_output=True, text=True, check=True
    ).stderr
    for kernel, spilled, registers in USAGE.findall(said):
        held = HELD.search(kernel)
        if not held or ("_cluster_" in kernel and arch != "sm_90"):
            continue
        threads, processor = entries[kernel].threads, ARCHES[arch]
        blocks = processor.resident(threads, int(registers))
        way = blocks * threads * int(held[2]) * BYTES[held[1]]
        yield f"{kernel:46} {registers:>9} {spilled:>7} {threads:>7} {blocks:>6} {blocks * threads:>8} {way:>8}"


def main() -> None:
    """Print a table for each architecture."""
    folder, ptxas = Path(sys.argv[1]), find_tool("ptxas")
    if not ptxas:
        sys.exit("ptxas not found: pip install --no-deps -r py-bindings/requirements-ptx.txt")
    print(f"python scripts/occupancy.py {sys.argv[1]}; ptxas {ptxas_version(ptxas)}")
    for arch, processor in ARCHES.items():
        print(f"\n{arch}: {processor.gpu} needs {processor.needed} bytes on the way")
        print(f"{'kernel':46} registers spilled threads blocks resident    bytes")
        for path in sorted((folder / arch).glob("*.ptx")):
            for row in rows(path, arch, ptxas):
                print(row)


if __name__ == "__main__":
    main()
