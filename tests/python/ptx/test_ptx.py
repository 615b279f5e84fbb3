"""Tests of the PTX in the wheel. For example, all entries exist, no kernel spills registers, and kernels for
rows access 16 bytes at a time.

The tests need no GPU. `make ptx` writes `target/ptx/oxiwarp-kernels-gpu/<arch>/<op>.ptx`. The environment
variable `OXIWARP_PTX_DIR` names another folder instead of `target/ptx`. If files or tools are missing, the
tests are skipped, but in CI they fail.
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
EXTRA = ARCHES[:-1]  # `make test` compiles no PTX for these architectures; `make test-ptx` does
# These ops use the instruction `mma.m16n8k16`, which sm_75 does not support. Their PTX for sm_75 has no
# entries.
TENSOR_CORES = (
    "attention",
    "attention_backward",
    "attention_decode",
    "linear",
    "linear_activation",
    "linear_gated_activation",
    "linear_gated_residual",
)
NATIVE = "sm_90a"  # The target for PTX that runs only on Hopper. Only some ops have kernels for this target.
OVERLAPPING = ("sm_90", NATIVE)


def unavailable(reason: str) -> NoReturn:
    """Skip the test with `reason`, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (a failure, because CI is set)")
    pytest.skip(reason)


@cache
def units_of(arch: str) -> dict[str, str]:
    """Return the PTX text of each op for `arch`."""
    units = {path.stem: path.read_text() for path in sorted((FOLDER / arch).glob("*.ptx"))}
    if not units:
        unavailable(f"{FOLDER / arch} has no PTX: run `make ptx`")
    return units


def sources(layer: str, arch: str) -> dict[str, str]:
    """Return the Rust source of each op that has kernels for `arch`. `layer` is the folder of the sources,
    "kernels-gpu" or "host"."""
    if not (ROOT / layer).exists():
        pytest.skip("no source tree here")
    folder = ROOT / layer / "src" / "ops"
    ops = {path.stem: path.read_text() for path in folder.glob("*.rs") if path.stem != "mod"}
    return {op: text for op, text in ops.items() if op.endswith("_hopper") == (arch == NATIVE)}


def overlapping(units: dict[str, str]) -> dict[str, str]:
    """Make the changes to the PTX that the host makes for programmatic dependent launch (PDL), and return the
    result.

    The host inserts `griddepcontrol.wait` into each entry. In most entries, it also inserts instructions that
    let the next launch start early.
    """
    if not (ROOT / "host").exists():
        pytest.skip("no source tree here")
    source = ROOT / "host" / "runtime" / "src" / "kernels" / "overlap.rs"
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
    """Skip the test if ptxas or a disassembler is missing. NVIDIA's wheels and the CUDA toolkit contain them."""
    missing = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not find_tool(name)]
    if missing:
        unavailable(f"{', '.join(missing)} not found: pip install --no-deps -r py-bindings/requirements-ptx.txt")


@pytest.fixture(
    scope="session",
    params=[pytest.param(arch, marks=pytest.mark.extra if arch in EXTRA else ()) for arch in (*ARCHES, NATIVE)],
)
def arch(request: pytest.FixtureRequest) -> str:
    """Return one of the architectures for which the wheel has PTX. A test with this fixture runs once for
    each architecture."""
    return str(request.param)


@pytest.fixture(scope="session")
def declared(arch: str) -> Module:
    """Return the entries that the PTX text of one architecture declares."""
    return merge(map(parse, units_of(arch).values()))


@pytest.fixture(scope="session")
def assembled(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Return the assembled PTX of one architecture, as the host loads it.

    For Hopper, this PTX contains the instructions for programmatic dependent launch (PDL). All tests share
    the assembled code, because assembly takes 1 s per op.
    """
    units = units_of(arch)
    if arch in OVERLAPPING:
        units = overlapping(units)
    need_tools()
    return assemble_all(units, arch, tmp_path_factory.mktemp(arch))


def expect_none(problems: list[str]) -> None:
    """Fail the test with a list of all problems, if there are any."""
    assert not problems, "\n" + "\n".join(problems)


def test_ptxas_version() -> None:
    """The installed ptxas has the expected version. The other tests check numbers of registers, which differ
    between versions.
    """
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
    """The PTX contains every kernel that the host's sources launch."""
    kernels = {name.rpartition("_")[0] for name in declared.entries}
    named = {name for op, text in sources("host", arch).items() for name in re.findall(rf"launch::({op}_\w+)", text)}
    if arch == "sm_75":
        named = {name for name in named if not name.startswith(TENSOR_CORES)}
    assert named
    expect_none([f"{name}: launched, not in the PTX" for name in sorted(named - kernels)])


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
    """ptxas does not report that it serialized asynchronous `wgmma` instructions."""
    expect_none(check_serial(assembled))


def test_launches_may_overlap(arch: str, assembled: Module) -> None:
    """With programmatic dependent launch (PDL), no kernel accesses global memory before
    `griddepcontrol.wait`.

    With PDL, a kernel can start before the previous kernel has written its results.
    """
    if arch not in OVERLAPPING:
        pytest.skip("launches overlap on Hopper only")
    expect_none(check_wait(assembled.sass))


@pytest.mark.extra
@pytest.mark.parametrize("arch", OVERLAPPING)
def test_launches_without_overlap(arch: str, tmp_path: Path) -> None:
    """The checks also pass for PTX without the instructions for programmatic dependent launch (PDL).

    Users can disable PDL, and old drivers do not support PDL.
    """
    units = units_of(arch)
    need_tools()
    module = assemble_all(units, arch, tmp_path)
    assert set(module.sass) == set(module.entries)
    problems = [check_memory(module), check_registers(module), check_serial(module)]
    problems += [check_local(module.sass), check_width(module.sass)]
    expect_none([problem for found in problems for problem in found])


def test_entries_follow_the_scheme(arch: str) -> None:
    for op, text in units_of(arch).items():
        expect_none(check_names(parse(text).entries, op))


def test_rows_move_in_wide_accesses(assembled: Module) -> None:
    expect_none(check_width(assembled.sass))
