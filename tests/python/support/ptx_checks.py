"""Checks of PTX files, and of the machine code that ptxas generates from them, for `test_ptx.py`.

Each check takes a parsed PTX file (a `Module`) or a part of it, and returns a list of problems. ptxas and the
disassembler run without a GPU. The tests therefore find register spills, local arrays and narrow loads on
every machine.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

PTXAS_VERSION = "13.0.88"
NEWEST_ISA = (9, 0)  # the newest PTX version that driver R580 accepts
REGISTER_FILE = 65_536  # number of 32-bit registers per SM; equal for all supported architectures

_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\([^)]*\)(?P<directives>[^{]*)\{")
_USAGE = re.compile(
    r"Function properties for (\w+)\s+"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*:\s*Used (?P<registers>\d+) registers"
)
_REMARK = re.compile(r"^ptxas info\s*: \(C\d+\) (.*)$", re.M)
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]+)\*/\s+(?P<predicate>@!?\w+\s+)?(?P<opcode>[A-Z]\w*)(?P<modifiers>(?:\.\w+)*)"
    r"(?P<operands>[^;]*)",
    re.M,
)


TILED = ("attention", "linear")
"""The beginnings of the names of kernels that move tiles instead of rows."""


class Instruction(NamedTuple):
    """One machine instruction: opcode (`LDG`), modifiers (`.E.128.CONSTANT`), address and branch target.

    `always` is True if the instruction has no predicate.
    """

    opcode: str
    modifiers: str
    address: int
    target: int | None
    always: bool


Sass = dict[str, list[Instruction]]  # machine code by name of entry


class PtxasError(Exception):
    """Raised if ptxas rejects a file. The message is the output of ptxas."""


@dataclass(frozen=True)
class Entry:
    """Launch bounds that a kernel entry declares. `threads` is None if the entry has no `.maxntid`
    directive."""

    threads: int | None
    min_blocks: int = 1


@dataclass(frozen=True)
class Usage:
    """Resources of a kernel entry, as reported by ptxas: registers per thread, and bytes of stack and of
    spills."""

    registers: int
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0


@dataclass(frozen=True)
class Module:
    """A PTX file with its declarations. After `assemble`, it also has the resource report and machine code
    from ptxas."""

    isa: tuple[int, int]
    target: str
    entries: dict[str, Entry]
    usage: dict[str, Usage] = field(default_factory=dict)
    sass: Sass = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def find_tool(name: str) -> Path | None:
    """Return the path of a CUDA tool. Search NVIDIA's Python wheels first, then the PATH. Return None if
    it is not found."""
    for scheme in ("purelib", "platlib"):
        path = Path(sysconfig.get_path(scheme)) / "nvidia" / "cu13" / "bin" / name
        if path.exists():
            return path
    found = shutil.which(name)
    return Path(found) if found else None


def ptxas_version(ptxas: Path) -> str:
    """Return the version of ptxas, such as `13.0.88`."""
    said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", said)
    return match[1] if match else f"unknown: {said!r}"


def parse(ptx: str) -> Module:
    """Parse the declarations of a PTX file. Raise `ValueError` if `.version` or `.target` is missing."""
    version, target = re.search(r"^\.version\s+(\d+)\.(\d+)", ptx, re.M), re.search(r"^\.target\s+(\w+)", ptx, re.M)
    if not version or not target:
        raise ValueError("no .version or no .target: not a PTX file")
    entries = {}
    for match in _ENTRY.finditer(ptx):
        blocks = re.search(r"\.minnctapersm\s+(\d+)", match["directives"])
        bounds = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", match["directives"])
        threads = int(bounds[1]) * int(bounds[2] or 1) * int(bounds[3] or 1) if bounds else None
        entries[match[1]] = Entry(threads, int(blocks[1]) if blocks else 1)
    return Module((int(version[1]), int(version[2])), target[1], entries)


def assemble(ptx: str, arch: str, folder: Path) -> Module:
    """Assemble `ptx` for `arch` and return the module with resource usage and machine code.

    Raise `PtxasError` if ptxas rejects the file.
    """
    tools = {name: find_tool(name) for name in ("ptxas", "cuobjdump", "nvdisasm")}
    ptxas, cuobjdump, nvdisasm = tools.values()
    if not ptxas or not cuobjdump or not nvdisasm:
        raise FileNotFoundError(f"not found: {', '.join(name for name, path in tools.items() if not path)}")
    source, cubin = folder / f"{arch}.ptx", folder / f"{arch}.cubin"
    source.write_text(ptx)
    command: list[str | Path] = [ptxas, "-v", f"-arch={arch}", source, "-o", cubin]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise PtxasError(run.stderr.strip())
    usage = {
        match[1]: Usage(*(int(match[key]) for key in ("registers", "stack", "stores", "loads")))
        for match in _USAGE.finditer(run.stderr)
    }
    path = {"PATH": f"{nvdisasm.parent}:/usr/bin:/bin"}  # cuobjdump looks for nvdisasm on the PATH
    dump = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True, env=path).stdout
    _, *functions = re.split(r"^\s*Function : (\w+)$", dump, flags=re.M)
    bodies = zip(functions[::2], functions[1::2], strict=True)
    sass = {name: [_instruction(match) for match in _INSTRUCTION.finditer(body)] for name, body in bodies}
    module = parse(ptx)
    return replace(module, usage=usage, sass=sass, remarks=tuple(_REMARK.findall(run.stderr)))


def _instruction(match: re.Match[str]) -> Instruction:
    target = re.search(r"0x([0-9a-f]+)\s*$", match["operands"]) if match["opcode"] in {"BRA", "CALL"} else None
    places = int(match["address"], 16), int(target[1], 16) if target else None
    return Instruction(match["opcode"], match["modifiers"], *places, always=match["predicate"] is None)


def merge(modules: Iterable[Module]) -> Module:
    """Merge the modules of several PTX files of one architecture. The result has the PTX version and the
    target of the first file."""
    first, *others = modules
    for other in others:
        entries, usage, sass = first.entries | other.entries, first.usage | other.usage, first.sass | other.sass
        first = replace(first, entries=entries, usage=usage, sass=sass, remarks=first.remarks + other.remarks)
    return first


def assemble_all(units: dict[str, str], arch: str, folder: Path) -> Module:
    """Assemble several PTX files, given by name, in parallel, and merge the resulting modules."""

    def work(name: str) -> Module:
        (folder / name).mkdir()
        return assemble(units[name], arch, folder / name)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return merge(pool.map(work, units))


def check_header(module: Module, arch: str) -> list[str]:
    """Check that the PTX targets `arch` and that its ISA is at most `NEWEST_ISA`."""
    problems = []
    if module.target != arch:
        problems.append(f"target is {module.target}, expected {arch}")
    if module.isa > NEWEST_ISA:
        problems.append(f"PTX ISA is {module.isa[0]}.{module.isa[1]}, expected {NEWEST_ISA[0]}.{NEWEST_ISA[1]} at most")
    return problems


def declared_entries(source: str) -> set[str]:
    """Return the kernel entries that the macro `entry!` exports in a Rust source file.

    For example, `foo<T: [f32, f16]>(x: Rows) => a(x), [bf16] => b(x)` declares the three entries `foo_f32`, `foo_f16`
    and `foo_bf16`.
    """
    declarations = list(re.finditer(r"\b(\w+)<\w+: \[([\w, ]+)\]>\s*\(", source))
    ends = [declaration.start() for declaration in declarations[1:]] + [len(source)]
    entries = set()
    for declaration, end in zip(declarations, ends, strict=True):
        more = re.findall(r",\s*\[([\w, ]+)\]\s*=>", source[declaration.end() : end])
        dtypes = ",".join([declaration[2], *more]).split(",")
        entries |= {f"{declaration[1]}_{dtype.strip()}" for dtype in dtypes}
    return entries


def declared_overlaps(source: str) -> dict[str, str]:
    """Map each kernel entry that has an attribute `@overlap(...)` in the Rust source to the value of this
    attribute: `Before` or `Plain`.

    Each of these values restricts programmatic dependent launch. Launches of an entry without the attribute overlap
    with the previous and the next launch.
    """
    others = r"(?:@shared\([^\n]*\)\s*)?(?:@only\(\w+\)\s*)?"
    kernels = re.findall(rf"@overlap\((\w+)\)\s*{others}(\w+<\w+: \[[\w, ]+\]>\s*\()", source)
    return {name: overlap for overlap, declaration in kernels for name in declared_entries(declaration)}


def check_entries(names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Check that the PTX has exactly the entries of the source."""
    names, expected = set(names), set(expected)
    problems = [f"{name}: no such entry" for name in sorted(expected - names)]
    return problems + [f"{name}: not in the source" for name in sorted(names - expected)]


def check_bounds(entries: dict[str, Entry]) -> list[str]:
    """Check that every entry has `.maxntid`.

    Without this directive, ptxas may use more registers per thread than the launch allows.
    """
    return [f"{name}: no .maxntid" for name, entry in entries.items() if entry.threads is None]


def check_memory(module: Module) -> list[str]:
    """Check that ptxas reports the resources of each kernel entry, and that no entry spills registers or has
    a stack frame."""
    problems = [f"{name}: ptxas says nothing about it" for name in module.entries if name not in module.usage]
    for name, usage in module.usage.items():
        if usage.spill_stores or usage.spill_loads:
            problems.append(f"{name}: spills {usage.spill_stores} bytes, loads {usage.spill_loads} back")
        if usage.stack:
            problems.append(f"{name}: stack frame of {usage.stack} bytes")
    return problems


def check_registers(module: Module) -> list[str]:
    """Check that the blocks per SM that an entry declares (`.minnctapersm`) fit into the register file of
    the SM."""
    problems = []
    for name, entry in module.entries.items():
        if entry.threads is None or name not in module.usage:
            continue
        # The hardware allocates the registers of a warp in units of 256, which is 8 per thread.
        registers, threads = -(-module.usage[name].registers // 8) * 8, -(-entry.threads // 32) * 32
        if registers * threads * entry.min_blocks > REGISTER_FILE:
            times = f" x {entry.min_blocks} blocks" if entry.min_blocks > 1 else ""
            problems.append(f"{name}: {registers} registers x {threads} threads{times} exceed {REGISTER_FILE}")
    return problems


def check_local(sass: Sass) -> list[str]:
    """Check that no instruction reads or writes local memory."""
    return _count(sass, "local memory", lambda opcode, _: opcode in {"LDL", "STL"})


def check_serial(module: Module) -> list[str]:
    """Check that every `wgmma` is asynchronous.

    If ptxas cannot keep these instructions asynchronous, it serializes them and prints a remark.
    """
    return [remark for remark in module.remarks if "wgmma" in remark and "serialized" in remark]


class Residency(NamedTuple):
    """Says where a kernel keeps a row after it has read the row once, and how wide the kernel's global memory
    accesses must be."""

    description: str
    elements: int
    """Minimum number of elements per access, or 0 if any number is allowed."""


# Entries are named `<op>[_<variant>]_<residency>[<n>]_<dtype>`, for example `rms_norm_block2_bf16`. The
# residency says where the kernel keeps its row. `n` is the number of packs (16-byte vectors) or vec4s (four
# elements) that a thread keeps in registers. For `smem`, `n` is the number of warps per row.
RESIDENCIES = {
    "warp": Residency("in the registers of a warp", 4),
    "block": Residency("in the registers of a block, or of one thread of it", 4),
    "cluster": Residency("in the registers of a cluster of blocks", 4),
    "smem": Residency("in shared memory", 4),
    "any": Residency("nowhere: it is read again, in any layout", 0),
}
# Kernels that access a row in packs (16-byte vectors). All other kernels access a row in vec4s (vectors of
# four elements).
PACKS = re.compile(
    r"(?:activation|add_rms_norm|cross_entropy|gated_activation|gated_residual(?:_per_row)?|modulate"
    r"|gated_residual_backward_per_(?:group|token)"
    r"|layer_norm_backward(?:_rows2)?|quantize_fp8_per_(?:block|row)|rms_norm|rms_norm_gated|softmax)(?:_backward)?(?:_sigmoid|_relu2|_inplace|_affine)?_(?:block|cluster)\d+"
)
# Kernels whose results are 8-bit floats. A thread stores one 8-bit float for each element that it loads.
TO_FP8 = re.compile(r"quantize_fp8_per_(?:block|row)_block\d+")
# A kernel loads a row in vectors. In addition, it may access single elements that do not belong to the row:
# the position of a token, the gate of a row or its gradient, or the partial sum of a warp. This dict gives
# the number of these accesses per kernel.
SINGLE_ELEMENTS = {
    "gated_residual_per_row_block1": 2,
    "gated_residual_backward_per_row_warp2": 4,
    "quantize_fp8_per_row_block2": 2,  # the scale, for each of two formats
    "quantize_fp8_per_row_block4": 2,
    "quantize_fp8_per_row_block8": 2,
    "quantize_fp8_per_block_block4": 8,
    "rope_warp1": 2,
    "rope_block": 1,
    "rope_positions_block": 4,
    "rope_positions_d64_warp1": 2,
    "rope_positions_d128_warp1": 2,
    "qk_norm_rope_positions_rms_d64_warp1": 2,
    "qk_norm_rope_positions_rms_d128_warp1": 2,
    "qk_norm_rope_positions_rms_warp1": 2,
    "qk_norm_rope_positions_rms_warp2": 2,
    "qk_norm_rope_positions_rms_smem": 2,
    "qk_norm_rope_positions_layer_warp1": 2,
    "qk_norm_rope_positions_layer_smem": 2,
    "layer_norm_backward_rows2_block2": 2,
    "layer_norm_backward_block3": 2,
}
_NAME = re.compile(rf"(?P<kernel>\w+?_(?P<residency>{'|'.join(RESIDENCIES)})\d*)_(?P<dtype>f32|f16|bf16)")
_BITS = re.compile(r"\.(?:U|S)?(8|16|32|64|128)\b")


def check_names(names: Iterable[str], op: str) -> list[str]:
    """Check entry names: each name starts with the name of the op, and ends with a residency (such as
    `block2`) and a dtype.

    The residency says where the kernel keeps its row.
    """
    scheme = f"<op>[_<variant>]_<{'|'.join(RESIDENCIES)}>[<n>]_<dtype>"
    return [
        f"{name}: expected a name of {op} by the scheme {scheme}"
        for name in sorted(names)
        if _NAME.fullmatch(name) is None or not name.startswith(f"{op}_")
    ]


def check_width(sass: Sass) -> list[str]:
    """Check the width of global memory accesses: 16 bytes in kernels whose name matches `PACKS`, otherwise as
    in `RESIDENCIES`. The stores of kernels whose name matches `TO_FP8` have one byte for each loaded element.

    The kernels of attention and of products are not checked, because they move tiles instead of rows. Loads
    of kernel parameters do not count, because parameters are in constant memory. A generic `LD` or `ST`
    instruction counts as a global access.
    """
    problems = []
    for name, code in sass.items():
        match = _NAME.fullmatch(name)
        if match is None or name.startswith(TILED) or not (elements := RESIDENCIES[match["residency"]].elements):
            continue
        bits = 128 if PACKS.fullmatch(match["kernel"]) or match["dtype"] == "f32" else 16 * elements
        stored = bits // (4 if match["dtype"] == "f32" else 2) if TO_FP8.fullmatch(match["kernel"]) else bits
        least = {"LDG": bits, "LD": bits, "LDGSTS": bits, "STG": stored, "ST": stored}
        accesses = [
            (opcode + modifiers, int(width[1]) if (width := _BITS.search(modifiers)) else 32, least[opcode])
            for opcode, modifiers, *_ in code
            if opcode in least
        ]
        narrow = [access for access, width, wanted in accesses if width < wanted]
        if len(narrow) > SINGLE_ELEMENTS.get(match["kernel"], 0):
            problems.append(f"{name}: narrow access: {len(narrow)} x {', '.join(sorted(set(narrow)))}")
        wide = {access[:3] for access, width, wanted in accesses if width >= wanted}
        problems += [f"{name}: no {opcode} of {least[opcode]} bits" for opcode in ("LDG", "STG") if opcode not in wide]
    return problems


def _count(sass: Sass, what: str, is_bad: Callable[[str, str], bool]) -> list[str]:
    """Return one line for each kernel entry that has instructions for which `is_bad` is True. The line has the
    number of these instructions and their opcodes."""
    problems = []
    for name, code in sass.items():
        bad = [opcode + modifiers for opcode, modifiers, *_ in code if is_bad(opcode, modifiers)]
        if bad:
            problems.append(f"{name}: {what}: {len(bad)} x {', '.join(sorted(set(bad)))}")
    return problems
