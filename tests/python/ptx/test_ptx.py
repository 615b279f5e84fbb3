"""The PTX that the wheel embeds: complete, in registers, 16 bytes at a time. No GPU needed.

`make ptx` leaves `target/ptx/oxiwarp-kernels-gpu/<arch>/<op>.ptx`; `OXIWARP_PTX_DIR` names another folder than
`target/ptx`. Where the files or the tools are missing the tests are skipped with the reason, except in CI, where that
is a failure.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from checkout import ROOT
from ptx_checks import (
    PTXAS_VERSION,
    Module,
    assemble_all,
    check_bounds,
    check_entries,
    check_header,
    check_local,
    check_memory,
    check_names,
    check_registers,
    check_serial,
    check_width,
    declared_entries,
    declared_overlaps,
    find_tool,
    merge,
    parse,
    ptxas_version,
)
from ptx_wait import check_wait

FOLDER = Path(os.environ.get("OXIWARP_PTX_DIR") or ROOT / "target" / "ptx") / "oxiwarp-kernels-gpu"
ARCHES = ("sm_75", "sm_80", "sm_90")
# `mma.m16n8k16` begins with sm_80: sm_75 has no entry.
TENSOR_CORES = ("attention", "attention_backward", "attention_decode")
NATIVE = "sm_90a"  # what runs on one GPU alone, for the ops that have such kernels
OVERLAPPING = ("sm_90", NATIVE)


def unavailable(reason: str) -> NoReturn:
    """Skip on a developer's machine; in CI nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (a failure, because CI is set)")
    pytest.skip(reason)


@cache
def units_of(arch: str) -> dict[str, str]:
    """The PTX of `arch`, by op."""
    units = {path.stem: path.read_text() for path in sorted((FOLDER / arch).glob("*.ptx"))}
    if not units:
        unavailable(f"{FOLDER / arch} has no PTX: run `make ptx`")
    return units


def sources(layer: str, arch: str) -> dict[str, str]:
    """The Rust source of each op in a layer that `arch` has, by op."""
    folder = ROOT / layer / "src" / "ops"
    if not folder.exists():
        pytest.skip("no source tree here")
    ops = {path.stem: path.read_text() for path in folder.glob("*.rs") if path.stem != "mod"}
    return {op: text for op, text in ops.items() if op.endswith("_hopper") == (arch == NATIVE)}


def overlapping(units: dict[str, str]) -> dict[str, str]:
    """The PTX as the host loads it where launches overlap: entries wait, and most then let the next launch start."""
    source = ROOT / "host" / "src" / "device" / "ptx" / "overlap.rs"
    if not source.exists():
        pytest.skip("no source tree here")
    wait, leave, trigger = re.findall(r'^const \w+: &str = "(.*?)";$', source.read_text(), re.M | re.S)
    overlaps: dict[str, str] = {}
    for path in (ROOT / "kernels-gpu" / "src" / "ops").glob("*.rs"):
        overlaps |= declared_overlaps(path.read_text())
    begins = {"Plain": wait, "Before": wait + leave, "Both": wait + leave + trigger}

    def begun(entry: re.Match[str]) -> str:
        begin = begins[overlaps.get(entry["name"], "Both")]
        return entry[0].replace(wait, begin) if wait in entry[0] else entry["head"] + begin + entry["body"]

    entry = re.compile(r"(?P<head>\.visible \.entry (?P<name>\w+)[^{]*\{)(?P<body>.*?^\})", re.M | re.S)
    return {op: entry.sub(begun, text) for op, text in units.items()}


def need_tools() -> None:
    """ptxas and the disassembler, from NVIDIA's wheels or a toolkit."""
    missing = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not find_tool(name)]
    if missing:
        unavailable(f"{', '.join(missing)} not found: pip install --no-deps -r py-bindings/requirements-ptx.txt")


@pytest.fixture(scope="session", params=(*ARCHES, NATIVE))
def arch(request: pytest.FixtureRequest) -> str:
    """Each architecture of the wheel."""
    return str(request.param)


@pytest.fixture(scope="session")
def declared(arch: str) -> Module:
    """Its PTX, as text."""
    return merge(map(parse, units_of(arch).values()))


@pytest.fixture(scope="session")
def assembled(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Its PTX, assembled once for all tests (a second for each op)."""
    units = units_of(arch)
    need_tools()
    return assemble_all(units, arch, tmp_path_factory.mktemp(arch))


def expect_none(problems: list[str]) -> None:
    """Fail with every problem, not the first."""
    assert not problems, "\n" + "\n".join(problems)


def test_ptxas_version() -> None:
    """Another ptxas allots registers otherwise: this one is of the driver's generation."""
    need_tools()
    ptxas = find_tool("ptxas")
    assert ptxas is not None
    if (found := ptxas_version(ptxas)) != PTXAS_VERSION:
        unavailable(f"{ptxas} is {found}, expected {PTXAS_VERSION}")


def test_header(arch: str) -> None:
    problems = {op: check_header(parse(text), arch) for op, text in units_of(arch).items()}
    expect_none([f"{op}: {problem}" for op, found in problems.items() for problem in found])


def test_every_op_has_its_entries(arch: str) -> None:
    ops = sources("kernels-gpu", arch)
    assert set(units_of(arch)) == set(ops)
    for op, source in ops.items():
        assert (expected := declared_entries(source)), f"{op}: no entry! in its source"
        if arch == "sm_75" and op in TENSOR_CORES:
            expected = set()
        expect_none(check_entries(parse(units_of(arch)[op]).entries, expected))


def test_architectures_have_the_same_entries(arch: str, declared: Module) -> None:
    if arch == NATIVE:
        pytest.skip("what only one GPU has")
    newest = merge(map(parse, units_of(ARCHES[-1]).values()))
    left_out = {name for name in newest.entries if name.startswith(TENSOR_CORES)} if arch == "sm_75" else set()
    assert set(declared.entries) == set(newest.entries) - left_out


def test_launched_kernels_exist(arch: str, declared: Module) -> None:
    """Every variant that an op of the host names is in the PTX, by its name or by names that begin with it."""
    kernels = {name.rpartition("_")[0] for name in declared.entries}
    named = {name for op, text in sources("host", arch).items() for name in re.findall(rf'"({op}_\w+)"', text)}
    if arch == "sm_75":
        named = {name for name in named if not name.startswith(TENSOR_CORES)}
    assert named
    missing = [name for name in sorted(named - kernels) if not any(k.startswith(f"{name}_") for k in kernels)]
    expect_none([f"{name}: launched, not in the PTX" for name in missing])


def test_every_entry_has_bounds(declared: Module) -> None:
    expect_none(check_bounds(declared.entries))


def test_no_spill_and_no_stack(assembled: Module) -> None:
    expect_none(check_memory(assembled))


def test_a_block_fits_the_register_file(assembled: Module) -> None:
    expect_none(check_registers(assembled))


def test_no_local_memory(assembled: Module) -> None:
    assert set(assembled.sass) == set(assembled.entries)
    expect_none(check_local(assembled.sass))


def test_products_run_beside_other_work(assembled: Module) -> None:
    expect_none(check_serial(assembled))


@pytest.mark.parametrize("arch", OVERLAPPING)
def test_launches_may_overlap(arch: str, tmp_path: Path) -> None:
    """A launch may begin before the one ahead of it has written what it reads; waiting for that costs no spill."""
    units = overlapping(units_of(arch))
    need_tools()
    module = assemble_all(units, arch, tmp_path)
    expect_none([*check_wait(module.sass), *check_memory(module), *check_registers(module), *check_serial(module)])


def test_entries_follow_the_scheme(arch: str) -> None:
    for op, text in units_of(arch).items():
        expect_none(check_names(parse(text).entries, op))


def test_rows_move_in_wide_accesses(assembled: Module) -> None:
    expect_none(check_width(assembled.sass))
